"""The contract of a layer state: what one leaf cache remembers and how it is kept.

A *leaf* is one mlx-lm cache object that is not a list of others. Each kind of leaf has one
`LayerState`, which knows nothing of tokens or trees: it cuts rows, takes snapshots and builds
live caches. Everything here runs on the thread that owns the arrays.

    rows      one per token, any [a, b) can be cut          KVCache, QuantizedKVCache, ...
    window    rows, of which a restore takes the last W     RotatingKVCache, ChunkedKVCache
    snapshot  whole or nothing, at one position only        ArraysCache, unknown classes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import mlx.core as mx

from keepwarm.errors import CacheFault

Arrays = tuple[mx.array, ...]
# Half open, in token positions: (lo, hi) holds the rows lo ... hi - 1.
Interval = tuple[int, int]
# What must agree before two captures of one leaf may be joined: per array, its shape without
# the token axis, and its dtype.
Signature = tuple[tuple[tuple[int, ...], str], ...]

TOKEN_AXIS = -2


class Kind(StrEnum):
    """How a leaf can be restored."""

    ROWS = "rows"
    WINDOW = "window"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `lo ... hi - 1` lie in the arrays from `index` on."""

    lo: int
    hi: int
    index: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a live leaf holds, oldest first. The arrays may be views: `cut` copies."""

    arrays: Arrays
    runs: tuple[Run, ...]

    @property
    def held(self) -> list[Interval]:
        return [(run.lo, run.hi) for run in self.runs]

    @property
    def signature(self) -> Signature:
        return tuple(
            ((*a.shape[:TOKEN_AXIS], *a.shape[TOKEN_AXIS + 1 :]), str(a.dtype)) for a in self.arrays
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all arrays."""
        return sum(a.nbytes // a.shape[TOKEN_AXIS] for a in self.arrays)

    def cut(self, lo: int, hi: int) -> Arrays:
        """Copies of the rows `lo ... hi - 1`, not yet evaluated.

        Raises CacheFault when the leaf does not hold them.
        """
        for run in self.runs:
            if run.lo <= lo and hi <= run.hi:
                start = run.index + lo - run.lo
                return tuple(owned(a[..., start : start + hi - lo, :]) for a in self.arrays)
        raise CacheFault(f"rows {lo}..{hi} asked of a leaf that holds {self.held}")


NO_ROWS = Rows((), ())


class LayerState(ABC):
    """How one leaf is captured and rebuilt. Immutable; holds settings, never arrays."""

    kind: Kind

    @abstractmethod
    def position(self, cache: Any) -> int | None:
        """How many tokens the live leaf has seen, or None when it cannot tell."""


class RowState(LayerState):
    """A leaf of kind rows or window."""

    @abstractmethod
    def fresh(self) -> Any:
        """An empty live leaf with the same settings."""

    @abstractmethod
    def needs(self, position: int) -> list[Interval]:
        """The rows that a restore at `position` takes, in order and apart from each other."""

    @abstractmethod
    def rows(self, cache: Any) -> Rows:
        """The rows that the live leaf holds; `NO_ROWS` when it never saw any."""

    @abstractmethod
    def rebuild(self, position: int, rows: Sequence[Arrays], reserve: int) -> Any:
        """A live leaf at `position` from pieces that cover `needs(position)` in order.

        The pieces are copied once, into buffers with room for `reserve` more tokens where the
        class can use it. Nothing that the new leaf does later reaches the pieces.
        """

    def can_restore(self, position: int, held: Sequence[Interval]) -> bool:
        """Whether rows in `held` (sorted, merged) suffice for `position`."""
        return all(
            any(lo <= need_lo and need_hi <= hi for lo, hi in held)
            for need_lo, need_hi in self.needs(position)
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole of one leaf at one position. `content` is of the state's own making."""

    content: Any
    nbytes: int
    arrays: Arrays


class SnapshotState(LayerState):
    """A leaf that is kept whole or not at all."""

    kind = Kind.SNAPSHOT

    @abstractmethod
    def snapshot(self, cache: Any) -> Snapshot:
        """A copy of the whole leaf, not yet evaluated. Raises CacheFault when it cannot be."""

    @abstractmethod
    def measure(self, cache: Any) -> int:
        """The bytes that `snapshot(cache)` would hold, without taking it."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> Any:
        """A live leaf with the snapshot's content; the snapshot stays as it is."""

    @abstractmethod
    def packed(self, snapshot: Snapshot) -> tuple[Any, Arrays]:
        """The snapshot as JSON and arrays, for a file. Raises CacheFault when it cannot be."""

    @abstractmethod
    def unpacked(self, plain: Any, arrays: Arrays, like: Any) -> Snapshot:
        """What `packed` was given; `like` is a live leaf of the model. Raises CacheFault when that
        is of another class, or the parts do not fit."""


def owned(array: mx.array) -> mx.array:
    """A copy that shares its buffer with nothing, so that its `nbytes` is what it holds.

    `mx.contiguous` is not enough: it shares the buffer of a contiguous view, and keeps the
    whole of it alive. Joining with an empty array always writes a new buffer.
    """
    flat = array.reshape(1) if array.ndim == 0 else array
    copied = mx.concatenate([flat, flat[:0]], axis=0)
    return copied.reshape(array.shape) if array.ndim == 0 else copied


def handle(array: mx.array) -> mx.array:
    """A second name for the same values: writing through one never shows in the other."""
    return mx.array(array)


def joined(pieces: Sequence[mx.array], spare: int) -> mx.array:
    """The pieces end to end along the token axis, in a new buffer with `spare` empty rows."""
    parts = list(pieces)
    shape = list(parts[0].shape)
    shape[TOKEN_AXIS] = spare
    parts.append(mx.zeros(shape, parts[0].dtype))
    return mx.concatenate(parts, axis=TOKEN_AXIS)


def rounded_up(count: int, step: int) -> int:
    return -(-count // step) * step
