"""Sliding windows: rows, of which only the last ones (and a few first ones) are remembered.

position p, window W, keep K        rows a restore takes
p <= W                              [0, p)
p >  W                              [0, K) and [p - (W - K), p)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.attention import check_single, rows_from
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
)


class RotatingKV(RowState):
    """`RotatingKVCache`, with or without `keep`, saturated or not.

    A chunk of S tokens leaves W - 1 + S rows in the live cache and a decode step leaves W in
    rotated order. A restore always takes W (of which the oldest is dropped by the next token):
    with W - 1 rows, the next single token would try to grow the buffer by a negative size.
    """

    kind = Kind.WINDOW

    def __init__(self, max_size: int, keep: int) -> None:
        self.max_size = max_size
        self.keep = keep

    def fresh(self) -> RotatingKVCache:
        return RotatingKVCache(self.max_size, self.keep)

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def needs(self, position: int) -> list[Interval]:
        if position <= self.max_size:
            return [(0, position)] if position else []
        recent = (position - (self.max_size - self.keep), position)
        return [(0, self.keep), recent] if self.keep else [recent]

    def rows(self, cache: Any) -> Rows:
        if cache.keys is None:
            return NO_ROWS
        arrays = (cache._temporal_order(cache.keys), cache._temporal_order(cache.values))
        check_single(arrays)
        position, count = int(cache.offset), arrays[0].shape[TOKEN_AXIS]
        if count > position:
            raise CacheFault(f"a window at position {position} holds {count} rows")
        if count == position:
            return Rows(arrays, (Run(0, position, 0),))
        recent = Run(position - (count - self.keep), position, self.keep)
        if not self.keep:
            return Rows(arrays, (recent,))
        return Rows(arrays, (Run(0, self.keep, 0), recent))

    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> RotatingKVCache:
        cache = self.fresh()
        cache.keys = joined([keys for keys, _ in rows], 0)
        cache.values = joined([values for _, values in rows], 0)
        cache.offset = position
        cache._idx = cache.keys.shape[TOKEN_AXIS]
        return cache


class ChunkedKV(RowState):
    """`ChunkedKVCache`: the model drops all but the last `chunk_size` rows before each step.

    `trim` of that class clamps in silence at its front, so it is never used: a restore takes
    the rows that the next step would see, or does not happen.
    """

    kind = Kind.WINDOW

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def fresh(self) -> ChunkedKVCache:
        return ChunkedKVCache(self.chunk_size)

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def needs(self, position: int) -> list[Interval]:
        return [(max(0, position - self.chunk_size), position)] if position else []

    def rows(self, cache: Any) -> Rows:
        if cache.keys is None:
            return NO_ROWS
        return rows_from((cache.keys, cache.values), int(cache.start_position), int(cache.offset))

    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> ChunkedKVCache:
        cache = self.fresh()
        cache.keys = joined([keys for keys, _ in rows], 0)
        cache.values = joined([values for _, values in rows], 0)
        cache.offset = position
        cache.start_position = max(0, position - self.chunk_size)
        return cache
