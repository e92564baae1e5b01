"""Attention of new tokens over a long history, on CUDA: what a warm turn reads.

For each pair of lengths that it has not seen, MLX's fused attention plans for 40 to 80 ms there,
and a conversation shows it a new pair at every turn; with few queries it also leaves most of the
device idle. Plain products need no plan. It takes and gives what MLX's does, differs from it by
roundings, and depends on its arguments alone. On the thread that owns the arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mlx.core as mx

THREADS = 256

# The sizes of heads that MLX has a fused kernel for. Others it computes in products itself.
_HEAD_DIMS = (64, 96, 128)
_FLOATS = (mx.float32, mx.bfloat16, mx.float16)
# A chunk of a long prompt meets lengths that come again; and scores take memory.
MAX_QUERIES = 1024
MAX_SCORES = 1 << 26
# With fewer rows than that over more keys, these are split into so many parts, so that there is
# work for all. Over 3,000 keys that only costs; where it begins to gain was not measured.
_FEW_ROWS = 128
_MANY_KEYS = 8192
_NUM_PARTS = 32

# Each row of scores by the threads of one block. In MLX's own operations it would be six kernels,
# and starting them takes longer than what they do.
_SOURCE = """
    const int T = q_shape[2], S = scores_shape[1];
    const long long row = blockIdx.x;
    const int num_seen = IS_CAUSAL ? S - T + (int)(row % T) + 1 : S;
    const float* mine = scores + row * S;
    const int thread = threadIdx.x;
    __shared__ float shared[THREADS];

    float most = -INFINITY;
    for (int i = thread; i < num_seen; i += THREADS) most = fmaxf(most, mine[i] * scale[0]);
    shared[thread] = most;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (thread < half) shared[thread] = fmaxf(shared[thread], shared[thread + half]);
      __syncthreads();
    }
    most = shared[0];
    __syncthreads();

    float sum = 0.0f;
    for (int i = thread; i < num_seen; i += THREADS) sum += expf(mine[i] * scale[0] - most);
    shared[thread] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (thread < half) shared[thread] += shared[thread + half];
      __syncthreads();
    }
    const float whole = shared[0];
    for (int i = thread; i < S; i += THREADS) {
      const float weight = i < num_seen ? expf(mine[i] * scale[0] - most) / whole : 0.0f;
      weights[row * S + i] = static_cast<OutT>(weight);
    }
"""

# MLX's own, whatever stands under this name later.
_mlx_attention = mx.fast.scaled_dot_product_attention


def can_attend(q: Any, k: Any, v: Any, mask: mx.array | str | None) -> bool:
    """Every query over all keys, or causal; a single one has a kernel that needs no plan."""
    return (
        all(isinstance(a, mx.array) and a.ndim == 4 for a in (q, k, v))
        and q.dtype in _FLOATS
        and q.dtype == k.dtype == v.dtype
        and 1 < q.shape[2] <= MAX_QUERIES
        and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= MAX_SCORES
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
    """In products where that is worth it."""
    if more or sinks is not None or not can_attend(q, k, v, mask):
        return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)
    return _by_products(q, k, v, scale, is_causal=mask is not None)


def _by_products(
    q: mx.array, k: mx.array, v: mx.array, scale: float, *, is_causal: bool
) -> mx.array:
    """Scores in float32, as a fused kernel has them: rounded to 16 bits they would be off by
    percents where they are large."""
    batch, num_heads, num_queries, depth = q.shape
    num_key_heads, num_keys = k.shape[1], k.shape[2]
    # Heads that share their keys are rows of one product.
    rows = q.astype(mx.float32).reshape(batch, num_key_heads, -1, depth)
    scores = rows @ k.astype(mx.float32).swapaxes(-1, -2)  # (B, key heads, G * T, S)
    weights = _softmax(scores, q, scale, v.dtype, is_causal=is_causal)
    is_split = rows.shape[2] <= _FEW_ROWS and num_keys > _MANY_KEYS
    out = _weighed(weights, v) if is_split else weights @ v
    return out.astype(q.dtype).reshape(batch, num_heads, num_queries, -1)


def _softmax(
    scores: mx.array, q: mx.array, scale: float, dtype: mx.Dtype, *, is_causal: bool
) -> mx.array:
    """Of `scale * scores`. The scale comes only now: what has 16 bits went through the product
    unrounded."""
    num_queries, num_keys = q.shape[2], scores.shape[-1]
    num_rows = scores.size // num_keys
    if _has_kernel():
        [weights] = _kernel()(
            inputs=[scores.reshape(num_rows, num_keys), q, _as_array(scale)],
            template=[("OutT", dtype), ("IS_CAUSAL", is_causal), ("THREADS", THREADS)],
            grid=(num_rows * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[(num_rows, num_keys)],
            output_dtypes=[dtype],
        )
        assert isinstance(weights, mx.array)
        return weights.reshape(scores.shape)
    scores = scale * scores
    if is_causal:
        places = mx.arange(num_keys - num_queries, num_keys)[:, None] >= mx.arange(num_keys)
        apart = scores.reshape(*scores.shape[:2], -1, num_queries, num_keys)
        scores = mx.where(places, apart, -mx.inf).reshape(scores.shape)
    return mx.softmax(scores, axis=-1).astype(dtype)


def _has_kernel() -> bool:
    return mx.cuda.is_available() and mx.default_device() == mx.gpu


@lru_cache(maxsize=1)
def _kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_softmax",
        input_names=["scores", "q", "scale"],
        output_names=["weights"],
        source=_SOURCE,
    )


@lru_cache(maxsize=8)
def _as_array(scale: float) -> mx.array:
    return mx.array([scale], dtype=mx.float32)


def _weighed(weights: mx.array, v: mx.array) -> mx.array:
    """weights @ v, parts of the sum over keys side by side, and what is left over."""
    batch, num_key_heads, num_rows, num_keys = weights.shape
    part_len = num_keys // _NUM_PARTS
    upto = part_len * _NUM_PARTS
    left = (weights[..., upto:] @ v[:, :, upto:]).astype(mx.float32)
    if not part_len:
        return left
    parts = weights[..., :upto].reshape(batch, num_key_heads, num_rows, _NUM_PARTS, part_len)
    values = v[:, :, :upto].reshape(batch, num_key_heads, _NUM_PARTS, part_len, -1)
    total = (parts.swapaxes(2, 3) @ values).astype(mx.float32).sum(axis=2)
    return total + left if upto < num_keys else total
