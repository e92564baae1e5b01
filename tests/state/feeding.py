"""Filling live caches without a model. Every row and state is a hash of all the tokens before it,
so that one of another prompt, another position or another layer never passes for the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
# What a layer gives its attention: keys and values, or their quantized parts.
Fetched = list[mx.array]

_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Tape:
    """A third party's cache: no class of mlx-lm, and only the old protocol of `trim`."""

    def __init__(self) -> None:
        self.offset = 0
        self.parts: list[mx.array] = []
        self.last: dict[str, mx.array | None] = {"row": None}

    def record(self, rows: mx.array) -> mx.array:
        self.offset += rows.shape[2]
        self.parts.append(rows)
        self.last["row"] = rows[..., -1:, :]
        return mx.concatenate(self.parts, axis=2)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        self.offset -= n
        return n

    @property
    def state(self) -> tuple[Any, ...]:
        return (self.parts, self.last)


def prefix_hashes(tokens: Sequence[int]) -> Hashes:
    """For each token a hash of it and all before it."""
    found, state = [], 1
    for token in tokens:
        state = ((state ^ (int(token) + 1)) * _ODD) & _MASK
        state ^= state >> 29
        found.append(state)
    return np.array(found, dtype=np.uint64)


def rows_of(hashes: Hashes, salt: int, width: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """One row for each hash: (1, 1, tokens, width), of whole numbers below 2048."""
    lanes = np.array([(salt * 64 + i + 1) * _ODD & _MASK | 1 for i in range(width)], np.uint64)
    mixed = (hashes[:, None] * lanes[None, :]) >> np.uint64(53)
    return mx.array(mixed.astype(np.float32))[None, None].astype(dtype)


def feed(cache: Any, hashes: Hashes, salt: int = 1, dtype: mx.Dtype = mx.float32) -> Fetched:
    """What one layer of a model does with its cache for some tokens. Mutates the cache.

    Returns what the layer gets to see.
    """
    if isinstance(cache, CacheList):
        parts = [feed(part, hashes, salt * 7 + i, dtype) for i, part in enumerate(cache.caches)]
        return [array for part in parts for array in part]
    if isinstance(cache, ArraysCache):
        return _recur(cache, hashes, salt, dtype)
    if isinstance(cache, Tape):
        return [cache.record(rows_of(hashes, salt, 4, dtype))]
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()  # as the models that use it do before each step
    width = 32 if isinstance(cache, QuantizedKVCache) else 4
    keys = rows_of(hashes, salt, width, dtype)
    values = rows_of(hashes, salt + 1000, width, dtype)
    fetched = cache.update_and_fetch(keys, values)
    return _arrays(cache, *fetched)


def _recur(cache: ArraysCache, hashes: Hashes, salt: int, dtype: mx.Dtype) -> Fetched:
    """A short convolution's tail in the first entry and a running state in the last."""
    rows = np.array(rows_of(hashes, salt, 4))[0, 0]
    tail = np.zeros((2, 4), np.float32) if cache[0] is None else _floats(cache[0])
    last = len(cache.cache) - 1
    if last:
        state = np.zeros(4, np.float32) if cache[last] is None else _floats(cache[last])
        for row in rows:
            state = np.float32(0.75) * state + row
            if dtype != mx.float32:
                state = _floats(mx.array(state)[None].astype(dtype))
        cache[last] = mx.array(state)[None].astype(dtype)
    cache[0] = mx.array(np.concatenate([tail, rows])[-2:])[None].astype(dtype)
    return [entry for entry in cache.cache if entry is not None]


def _floats(array: mx.array) -> NDArray[np.float32]:
    return np.array(array.astype(mx.float32))[0]


def contents(caches: Sequence[Any]) -> list[Any]:
    """All that the caches remember, in one order; `are_same` compares two of these."""
    return [_content(cache) for cache in caches]


def _content(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return contents(cache.caches)
    if isinstance(cache, ArraysCache):
        return list(cache.cache)
    if isinstance(cache, Tape):
        joined = mx.concatenate(cache.parts, axis=2) if cache.parts else None
        return [cache.offset, joined, cache.last["row"]]
    if cache.keys is None:
        return [0]
    arrays = _arrays(cache, cache.keys, cache.values)
    return [cache.offset, *(_remembered(cache, array) for array in arrays)]


def _arrays(cache: Any, keys: Any, values: Any) -> Fetched:
    return [*keys, *values] if isinstance(cache, QuantizedKVCache) else [keys, values]


def _remembered(cache: Any, array: mx.array) -> mx.array:
    """The rows that the next token could look at, oldest first."""
    if isinstance(cache, RotatingKVCache):
        array = cache._temporal_order(array)
        surplus = array.shape[2] - cache.max_size
        if surplus > 0:
            kept = array[..., : cache.keep, :]
            array = mx.concatenate([kept, array[..., cache.keep + surplus :, :]], axis=2)
        return array
    if isinstance(cache, ChunkedKVCache):
        end = cache.offset - cache.start_position
        return array[..., max(0, end - cache.chunk_size) : end, :]
    return array[..., : cache.offset, :]


def are_same(a: Any, b: Any) -> bool:
    """Whether two lists of arrays and plain data are equal: shapes, dtypes and every bit."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(are_same, a, b))
    if isinstance(a, mx.array) and isinstance(b, mx.array):
        return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a, b).item())
    return type(a) is type(b) and bool(a == b)
