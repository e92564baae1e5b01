"""Attention of a few queries over many keys, on CUDA: a generation prompt behind a long history.

There MLX has a kernel for up to three queries that spreads the keys over the whole device; for more
it takes a fused one with a thread block for each head, most of the device idle. Each function takes
and gives what MLX's does, differs from it by roundings, and depends on its arguments alone. On the
thread that owns the arrays.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

# From one to three queries MLX takes the kernel that spreads the keys.
_NUM_TOGETHER = 3
_HEAD_DIMS = (64, 96, 128)
_FLOATS = (mx.float32, mx.bfloat16, mx.float16)
MAX_QUERIES = 16
MIN_KEYS = 4096
# By products: into how many parts the keys are split, so that there is work for all.
_NUM_PARTS = 32

# MLX's own, whatever stands under this name later.
_mlx_attention = mx.fast.scaled_dot_product_attention


def can_attend(q: Any, k: Any, v: Any, mask: mx.array | str | None) -> bool:
    """More than one launch of the fast kernel, and few; every query over all keys, or causal."""
    return (
        all(isinstance(a, mx.array) and a.ndim == 4 for a in (q, k, v))
        and q.dtype in _FLOATS
        and q.dtype == k.dtype == v.dtype
        and _NUM_TOGETHER < q.shape[2] <= MAX_QUERIES
        and k.shape[2] >= MIN_KEYS
        and k.shape[:3] == v.shape[:3]
        and q.shape[3] == k.shape[3] == v.shape[3]
        and q.shape[3] in _HEAD_DIMS
        and (mask is None or (isinstance(mask, str) and mask == "causal"))
    )


def scaled_dot_product_attention(
    q: mx.array,  # (B, heads, T, D)
    k: mx.array,  # (B, key heads, S, D)
    v: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    **more: Any,
) -> mx.array:
    """A few queries at a time, each time over the keys that the last of them sees."""
    if more or not can_attend(q, k, v, mask):
        return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)
    num_queries, num_keys = q.shape[2], k.shape[2]
    outs = []
    for start in range(0, num_queries, _NUM_TOGETHER):
        end = min(start + _NUM_TOGETHER, num_queries)
        seen = num_keys if mask is None else num_keys - num_queries + end
        outs.append(
            _mlx_attention(
                q[:, :, start:end], k[:, :, :seen], v[:, :, :seen],
                scale=scale, mask=mask, sinks=sinks,
            )
        )  # fmt: skip
    return mx.concatenate(outs, axis=2)


def by_products(
    q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: str | None = None
) -> mx.array:
    """In plain matrix products, for heads of any size: to be compared with. Scores have the dtype
    of the keys, all after them is float32."""
    batch, num_heads, num_queries, depth = q.shape
    num_key_heads, num_keys = k.shape[1], k.shape[2]
    # Heads that share their keys are rows of one product.
    queries = (q * scale).reshape(batch, num_key_heads, -1, depth)
    scores = (queries @ k.swapaxes(-1, -2)).astype(mx.float32)  # (B, key heads, G * T, S)
    if mask == "causal":
        places = mx.arange(num_keys - num_queries, num_keys)[:, None] >= mx.arange(num_keys)
        apart = scores.reshape(batch, num_key_heads, -1, num_queries, num_keys)
        scores = mx.where(places, apart, -mx.inf).reshape(scores.shape)
    weights = mx.softmax(scores, axis=-1).astype(v.dtype)
    return _weighed(weights, v).astype(q.dtype).reshape(batch, num_heads, num_queries, -1)


def _weighed(weights: mx.array, v: mx.array) -> mx.array:
    """weights @ v in float32: parts of the sum over keys side by side, and what is left over."""
    batch, num_key_heads, num_rows, num_keys = weights.shape
    part_len = num_keys // _NUM_PARTS
    upto = part_len * _NUM_PARTS
    parts = weights[..., :upto].reshape(batch, num_key_heads, num_rows, _NUM_PARTS, part_len)
    values = v[:, :, :upto].reshape(batch, num_key_heads, _NUM_PARTS, part_len, -1)
    total = (parts.swapaxes(2, 3) @ values).astype(mx.float32).sum(axis=2)
    if upto < num_keys:
        total = total + weights[..., upto:] @ v[:, :, upto:]
    return total
