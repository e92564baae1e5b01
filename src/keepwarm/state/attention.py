"""Full attention: one row per token, cut and restored anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, QuantizedKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.base import (
    NO_ROWS,
    TOKEN_AXIS,
    Arrays,
    Interval,
    Kind,
    Rows,
    RowState,
    Run,
    joined,
    rounded_up,
)
from keepwarm.state.nested import flattened


class AttentionState(RowState):
    """What KVCache and its like have in common: `offset` rows, the oldest first."""

    kind = Kind.ROWS

    def needs(self, position: int) -> list[Interval]:
        return [(0, position)] if position else []

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def rows(self, cache: Any) -> Rows:
        if cache.keys is None:
            return NO_ROWS
        return rows_from(self.arrays(cache), 0, int(cache.offset))

    def arrays(self, cache: Any) -> Arrays:
        return (cache.keys, cache.values)


class PlainKV(AttentionState):
    """`KVCache`."""

    def fresh(self) -> KVCache:
        return KVCache()

    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> KVCache:
        cache = KVCache()
        # Room for what comes next: without it the first write would copy everything again.
        spare = rounded_up(position + reserve, KVCache.step) - position
        cache.keys = joined([keys for keys, _ in rows], spare)
        cache.values = joined([values for _, values in rows], spare)
        cache.offset = position
        return cache


class ConcatenatedKV(AttentionState):
    """`ConcatenateKVCache`: its length is the length of its arrays, so it gets no room."""

    def fresh(self) -> ConcatenateKVCache:
        return ConcatenateKVCache()

    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> ConcatenateKVCache:
        cache = ConcatenateKVCache()
        cache.state = (
            joined([keys for keys, _ in rows], 0),
            joined([values for _, values in rows], 0),
        )
        return cache


class QuantizedKV(AttentionState):
    """`QuantizedKVCache`: keys and values are each (packed, scales, biases)."""

    def __init__(self, group_size: int, bits: int) -> None:
        self.group_size = group_size
        self.bits = bits

    def fresh(self) -> QuantizedKVCache:
        return QuantizedKVCache(self.group_size, self.bits)

    def arrays(self, cache: Any) -> Arrays:
        return (*cache.keys, *cache.values)

    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> QuantizedKVCache:
        cache = self.fresh()
        spare = rounded_up(position + reserve, QuantizedKVCache.step) - position
        arrays = tuple(joined(pieces, spare) for pieces in zip(*rows, strict=True))
        cache.keys, cache.values = arrays[:3], arrays[3:]
        cache.offset = position
        return cache


def make_room(caches: Sequence[Any], num_tokens: int) -> None:
    """Room for that many tokens in all: a KVCache that is full copies all it has to grow by one
    step, at every chunk of a long prompt. Mutates. Leaves of other kinds stay as they are."""
    for leaf in flattened(caches):
        if type(leaf) is KVCache and leaf.keys is not None:
            spare = rounded_up(num_tokens, KVCache.step) - leaf.offset
            if leaf.offset + spare > leaf.keys.shape[TOKEN_AXIS]:
                leaf.keys = _roomy(leaf.keys[..., : leaf.offset, :], spare)
                leaf.values = _roomy(leaf.values[..., : leaf.offset, :], spare)


def _roomy(rows: mx.array, spare: int) -> mx.array:
    """The rows in a new buffer with `spare` empty ones. Written into zeros, which then are that
    buffer: to join both would hold as much again for a moment."""
    shape = list(rows.shape)
    shape[TOKEN_AXIS] += spare
    roomy = mx.zeros(shape, rows.dtype)
    roomy[..., : rows.shape[TOKEN_AXIS], :] = rows
    return roomy


def rows_from(arrays: Arrays, first: int, position: int) -> Rows:
    """Rows `first ... position - 1`, which lie at the start of `arrays`."""
    check_single(arrays)
    count = position - first
    if count < 0 or any(a.shape[TOKEN_AXIS] < count for a in arrays):
        raise CacheFault(f"a leaf at position {position} has too few rows from {first} on")
    return Rows(arrays, (Run(first, position, 0),) if count else ())


def check_single(arrays: Sequence[mx.array]) -> None:
    """Raises CacheFault for the cache of a batch: its padding must never be stored."""
    if any(a.shape[0] != 1 for a in arrays):
        raise CacheFault("only the cache of a single sequence can be stored")
