"""Attention of new tokens over all before them, on CUDA: whichever kernel is sooner done.

MLX's fused attention plans for 45 to 90 ms there whenever it meets a pair of lengths for the first
time, and a conversation shows it a new pair at every turn; with few queries over many keys
it also leaves most of the device idle, and for heads of 256 there is none. Ours takes and gives what MLX's does and differs
from it by roundings; which of them it is, depends on the arguments alone. Any thread that may use mlx.
"""

from __future__ import annotations

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
    is_plain = mask is None or (isinstance(mask, str) and mask == "causal")
    if (
        is_plain
        and sinks is None
        and not more
        and isinstance(scale, float | int)
        and scale > 0
        and attention_cuda.can_run(q, k, v)
        and is_ours_sooner(q.shape, k.shape[2])
    ):
        return attention_cuda.run(q, k, v, float(scale), is_causal=mask is not None)
    return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)


def is_ours_sooner(shape: tuple[int, ...], num_keys: int) -> bool:
    """Whether MLX would take longer for queries of that shape, its plan included where the lengths
    are likely to be new."""
    batch, num_heads, num_queries, depth = shape
    if depth not in FUSED:
        return True
    if num_queries == 1:
        return num_keys >= MANY_KEYS
    if num_queries <= FEW_QUERIES:
        return True
    return batch * num_heads * num_queries * num_keys <= MAX_PAIRS
