"""Attention on CUDA in one kernel for all lengths, which plans nothing.

A block has 64 rows of queries (the heads that share their keys beside each other) and walks over
the keys with the softmax running along, its products on tensor cores. Where that would be too few
blocks for the device, each takes a part of the keys, and what they leave is gathered. The bits
depend on the arguments alone, not on where the keys lie. Any thread that may use mlx.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import ceil
from typing import Any

import mlx.core as mx

from keepwarm.model.attention_source import ATTEND, GATHER, HEADER

LEAST_CAPABILITY = 8  # for copies on the way, and products of bfloat16
DTYPES = (mx.bfloat16, mx.float16)
ROWS = 64  # of queries in a block: 16 for each of its warps
THREADS = 2 * ROWS
# Sizes of heads, and how many keys are in shared memory at a time (twice: while these are used, the
# next are on their way). With more, heads of 256 would not have enough registers.
TILES = {64: 64, 96: 64, 128: 64, 256: 32}
PAD = 8  # numbers behind each key, so that eight of them lie in different banks
# So many blocks keep a large device busy; a part of the keys is to have a few tiles at least.
NUM_BLOCKS = 256
LEAST_PART = 256
MAX_GRID = 65_535  # blocks beside each other in all directions but the first


def can_run(q: Any, k: Any, v: Any, mask: Any = None, sinks: Any = None) -> bool:
    """Whether this device, these numbers and these sizes of heads are the kernel's; and each query
    has a key."""
    return (
        _has_device()
        and all(isinstance(a, mx.array) and a.ndim == 4 for a in (q, k, v))
        and q.dtype == k.dtype == v.dtype
        and q.dtype in DTYPES
        and q.shape[3] in TILES
        and q.shape[3] == k.shape[3] == v.shape[3]
        and q.shape[0] == k.shape[0]
        and k.shape[:3] == v.shape[:3]
        and 0 < q.shape[2] <= k.shape[2]
        and 0 < k.shape[0] * k.shape[1] <= MAX_GRID
        and q.shape[1] % k.shape[1] == 0
        and (mask is None or _is_mask(mask, (*q.shape[:3], k.shape[2])))
        and (sinks is None or (isinstance(sinks, mx.array) and sinks.shape == (q.shape[1],)))
    )


def _is_mask(mask: Any, shape: tuple[int, ...]) -> bool:
    """Whether it is "causal", or says for scores of that shape which are seen."""
    if isinstance(mask, str):
        return mask == "causal"
    return (
        isinstance(mask, mx.array)
        and mask.dtype == mx.bool_
        and mask.ndim <= len(shape)
        and all(a in (1, b) for a, b in zip(reversed(mask.shape), reversed(shape), strict=False))
    )


def run(
    q: mx.array,  # (B, heads, T, D)
    k: mx.array,  # (B, key heads, S, D)
    v: mx.array,
    scale: float,
    mask: mx.array | str | None = None,  # (B, heads, T, S), or broadcast to that
    sinks: mx.array | None = None,  # (heads,)
) -> mx.array:
    """For a positive `scale`. A causal query sees all keys up to its own; the last has the last.
    One that sees none gets zeros."""
    _prime(q.shape[3], q.dtype, has_sinks=sinks is not None)
    return _attended(q, k, v, scale, mask, sinks)


@cache
def _prime(depth: int, dtype: mx.Dtype, *, has_sinks: bool) -> None:
    """Makes the kernels that may be needed later with the first one, which is while the model loads:
    each takes seconds, and the reply of the first two requests at a time would stop for them."""
    q = mx.zeros((1, 1, 1, depth), dtype)
    sinks = mx.zeros(1) if has_sinks else None
    alone = _attended(q, q, q, 1.0, None, sinks)
    in_batch = _attended(q, q, q, 1.0, mx.ones((1, 1), dtype=mx.bool_), sinks)
    in_parts = _gathered(mx.zeros((2, 1, depth)), mx.zeros((2, 1, 2)), dtype, sinks)
    mx.eval(alone, in_batch, in_parts)


def _attended(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array:
    batch, num_heads, num_queries, depth = q.shape
    num_key_heads, num_keys = k.shape[1:3]
    num_tiles = ceil(num_heads // num_key_heads * num_queries / ROWS)
    num_parts = _num_parts(batch * num_key_heads * num_tiles, num_keys)
    num_rows = batch * num_heads * num_queries
    has_mask = isinstance(mask, mx.array)
    # To a single query without a mask both are the same, and one kernel less is to be made.
    is_causal = not has_mask and (mask is not None or num_queries == 1)
    seen = (
        mx.broadcast_to(mask, (*q.shape[:3], num_keys))
        if isinstance(mask, mx.array)
        else _nothing(mx.bool_)
    )
    beside = _nothing(mx.float32) if sinks is None else mx.contiguous(sinks.astype(mx.float32))
    is_split = num_parts > 1
    # What is not to be written has one number, for none may have none.
    out, parts, marks = _attend(depth)(
        inputs=[q, k, v, _as_array(scale), seen, beside],
        template=[
            ("InT", q.dtype), ("D", depth), ("ROWS", ROWS), ("KEYS", TILES[depth]),
            ("THREADS", THREADS), ("PAD", PAD), ("IS_CAUSAL", is_causal), ("HAS_MASK", has_mask),
            ("HAS_SINKS", sinks is not None),
        ],
        grid=(num_tiles * THREADS, batch * num_key_heads, num_parts),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[
            (1,) if is_split else (num_rows, depth),
            (num_parts, num_rows, depth) if is_split else (1,),
            (num_parts, num_rows, 2) if is_split else (1,),
        ],
        output_dtypes=[q.dtype, mx.float32, mx.float32],
    )  # fmt: skip
    if is_split:
        out = _gathered(parts, marks, q.dtype, None if sinks is None else beside)
    assert isinstance(out, mx.array)
    # As models want it: the heads of a token beside each other, without another copy.
    return out.reshape(batch, num_queries, num_heads, depth).swapaxes(1, 2)


def _gathered(
    parts: mx.array, marks: mx.array, dtype: mx.Dtype, sinks: mx.array | None
) -> mx.array:
    _, num_rows, depth = parts.shape
    [out] = _gather()(
        inputs=[parts, marks, _nothing(mx.float32) if sinks is None else sinks],
        template=[("InT", dtype), ("D", depth), ("HAS_SINKS", sinks is not None)],
        grid=(num_rows * depth, 1, 1),
        threadgroup=(depth, 1, 1),
        output_shapes=[(num_rows, depth)],
        output_dtypes=[dtype],
    )
    assert isinstance(out, mx.array)
    return out


def _has_device() -> bool:
    is_cuda = mx.cuda.is_available() and mx.default_device() == mx.gpu
    return is_cuda and _capability() >= LEAST_CAPABILITY


@lru_cache(maxsize=1)
def _capability() -> int:
    return int(mx.device_info(mx.gpu).get("compute_capability_major", 0))


def _num_parts(num_blocks: int, num_keys: int) -> int:
    """A power of two, so that few different sizes are needed."""
    most = max(1, min(NUM_BLOCKS // num_blocks, num_keys // LEAST_PART))
    return 1 << (most.bit_length() - 1)


@lru_cache(maxsize=len(TILES))
def _attend(depth: int) -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_attend",
        input_names=["q", "k", "v", "scale", "mask", "sinks"],
        output_names=["out", "parts", "marks"],
        source=ATTEND,
        header=HEADER,
        ensure_row_contiguous=False,
        shared_memory=8 * TILES[depth] * (depth + PAD),
    )


@lru_cache(maxsize=1)
def _gather() -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_gather",
        input_names=["parts", "marks", "sinks"],
        output_names=["out"],
        source=GATHER,
        header=HEADER,
    )


@lru_cache(maxsize=8)
def _as_array(scale: float) -> mx.array:
    return mx.array([scale], dtype=mx.float32)


@lru_cache(maxsize=2)
def _nothing(dtype: mx.Dtype) -> mx.array:
    """Where there is no mask, or no sinks. With its number in it: what is to be computed would
    belong to the thread that asked first."""
    return mx.array([[[[0]]]], dtype)
