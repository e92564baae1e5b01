"""Attention of new tokens over all before them, on CUDA: whichever kernel is sooner done.

MLX's fused attention plans for 45 to 90 ms there whenever it meets a pair of lengths for the first
time, and a conversation shows it a new pair at every turn; with few queries over many keys it also
leaves most of the device idle, and for heads of 256 there is none. Ours takes and gives what MLX's
does and differs from it by roundings. Which of them it is, and the bits, depend on the arguments
alone, not on where they lie. Any thread that may use mlx.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import mlx.core as mx

from keepwarm.model import attention_cuda

# Heads that MLX has fused kernels for. That for a single query is sooner done over less than
# MANY_KEYS. With many queries MLX is, once it has planned for these lengths and for where the keys
# lie, which is another place with every prompt: by 2 ms a layer with 1,000 queries over 100,000 keys
# and 16 heads. From MAX_PAIRS on that is more than the plan takes.
FUSED = (64, 96, 128)
MANY_KEYS = 1 << 14
FEW_QUERIES = 256
MAX_PAIRS = 1 << 30
# From so many keys on MLX may take another kernel for a single query, see `beside`.
SOME_KEYS = 256

# MLX's own, whatever stands under this name later.
_mlx_attention = mx.fast.scaled_dot_product_attention


def scaled_dot_product_attention(
    q: mx.array,  # (B, heads, T, D)
    k: mx.array,  # (B, key heads, S, D)
    v: mx.array,
    *,
    scale: Any,  # a number; MLX takes an array, too
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    **more: Any,
) -> mx.array:
    """What `mx.fast.scaled_dot_product_attention` takes and gives."""
    is_known = not more and isinstance(scale, float | int) and scale > 0
    if is_known and attention_cuda.can_run(q, k, v, mask, sinks):
        has_mask = isinstance(mask, mx.array)
        way = chosen(q.shape, k.shape, has_mask=has_mask, has_sinks=sinks is not None)
        if way is Way.OURS:
            return attention_cuda.run(q, k, v, float(scale), mask, sinks)
        if way is Way.BESIDE:
            return beside(q, k, v, scale)
    return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)


class Way(Enum):
    """How attention is computed."""

    MLX = "mlx"
    BESIDE = "beside"  # by MLX, the key heads as if they were sequences
    OURS = "ours"


def chosen(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    *,
    has_mask: bool = False,
    has_sinks: bool = False,
) -> Way:
    """What takes least, MLX's plan included where the lengths are likely to be new."""
    batch, num_heads, num_queries, depth = q_shape
    num_key_heads, num_keys = k_shape[1:3]
    if depth not in FUSED:
        return Way.OURS
    if num_queries == 1 and not has_mask and num_keys < MANY_KEYS:
        if num_keys < SOME_KEYS:
            return Way.MLX
        return Way.BESIDE if batch == 1 < num_key_heads and not has_sinks else Way.OURS
    num_pairs = batch * num_heads * num_queries * num_keys
    return Way.OURS if num_queries <= FEW_QUERIES or num_pairs <= MAX_PAIRS else Way.MLX


def beside(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """A single query, with its key heads as if they were sequences. Nothing is copied, and the
    numbers are the same; but where keys lie in a buffer of a multiple of 256 tokens, MLX would
    hand them to a kernel that plans for every such size, and whose bits depend on it. The tokens
    of a key head lie behind each other, as in all caches: of others MLX could think the same."""
    _, num_heads, _, depth = q.shape
    q = q.reshape(k.shape[1], -1, 1, depth)
    out = _mlx_attention(q, k.swapaxes(0, 1), v.swapaxes(0, 1), scale=scale)
    return out.reshape(1, num_heads, 1, depth)
