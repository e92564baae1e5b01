"""Rows and snapshots as the tree holds them: captured from live caches, shrunk, put back.

Owned by the thread that owns the arrays. Everything stored is evaluated and shares its buffer
with nothing, so that `nbytes` is what is really held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import mlx.core as mx

from keepwarm.cache.intervals import Interval, merged, subtracted
from keepwarm.cache.tree import Block, Span
from keepwarm.errors import CacheFault
from keepwarm.state.base import TOKEN_AXIS, Arrays, Rows, Snapshot, owned
from keepwarm.state.registry import Group, Layout, rows_of

BlockArrays = dict[int, Arrays]  # by leaf


class Source(Protocol):
    """Where an insert takes rows and snapshots from: live caches (`Capture`), or files."""

    layout: Layout
    position: int
    # Whether it holds rows that are stored already, so that they can be stored anew with others.
    can_join: ClassVar[bool]

    @property
    def signature(self) -> tuple[Any, ...]: ...
    def row_bytes(self, group: Group) -> int: ...
    def leaf_row_bytes(self, group: Group) -> int: ...
    def require(self, group: Group, wanted: Sequence[Interval]) -> None: ...
    def seams(self, group: Group) -> list[int]: ...
    def measure_snapshots(self) -> int: ...
    def snapshots(self) -> dict[int, Snapshot]: ...
    def block(self, group: Group, lo: int, hi: int, digest: bytes) -> Block: ...
    def settle(self, blocks: Sequence[Block], snapshots: Sequence[Snapshot]) -> float: ...


class Capture:
    """What can be taken from the live caches of one sequence, of where they stand or of `at`, an
    earlier place."""

    can_join: ClassVar[bool] = True

    def __init__(
        self, layout: Layout, caches: Sequence[Any], position: int, at: int | None = None
    ) -> None:
        """Raises CacheFault when the caches are of another layout or stand elsewhere, or cannot
        be looked at as they were."""
        self.layout = layout
        self.position = position if at is None else at
        if self.position != position and not (layout.can_cut and 0 < self.position < position):
            raise CacheFault(f"caches at {position} do not tell what they were at {at}")
        self._leaves = layout.leaves(caches)
        layout.check_position(self._leaves, position)
        self._rows: dict[int, Rows] = rows_of(layout, self._leaves)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for captures whose rows can be joined."""
        return tuple(rows.signature for rows in self._rows.values())

    def row_bytes(self, group: Group) -> int:
        """What one row of the group weighs over all its leaves."""
        return sum(self._rows[leaf].row_bytes for leaf in group.leaves)

    def leaf_row_bytes(self, group: Group) -> int:
        """What one row of the group's largest leaf weighs."""
        return max(self._rows[leaf].row_bytes for leaf in group.leaves)

    def require(self, group: Group, wanted: Sequence[Interval]) -> None:
        """Raises CacheFault unless the live caches hold the rows `wanted`."""
        for leaf in group.leaves:
            rows = self._rows[leaf]
            if rows.arrays and subtracted(wanted, rows.held):
                raise CacheFault(f"leaf {leaf} holds {rows.held}, not all of {list(wanted)}")

    def seams(self, group: Group) -> list[int]:
        """Where blocks should begin, if anywhere."""
        return []

    def measure_snapshots(self) -> int:
        return sum(
            self.layout.snapshot_state(leaf).measure(self._leaves[leaf])
            for leaf in self.layout.whole
        )

    def snapshots(self) -> dict[int, Snapshot]:
        """Copies of every leaf that is kept whole, not yet evaluated."""
        return {
            leaf: self.layout.snapshot_state(leaf).snapshot(self._leaves[leaf])
            for leaf in self.layout.whole
        }

    def block(self, group: Group, lo: int, hi: int, digest: bytes) -> Block:
        """Copies of the group's rows `lo ... hi - 1`, not yet evaluated.

        Raises CacheFault when the live caches do not hold them any more.
        """
        arrays: BlockArrays = {
            leaf: self._rows[leaf].cut(lo, hi) for leaf in group.leaves if self._rows[leaf].arrays
        }
        return Block(lo, hi, arrays, nbytes_of(arrays), digest)

    def settle(self, blocks: Sequence[Block], snapshots: Sequence[Snapshot]) -> float:
        """Evaluate copies; returns the seconds that the live caches themselves still took.

        The copies are laid out while the model may still be computing what they copy, so that
        a device does not stand idle between two chunks of a prefill.
        """
        copies = [list(b.arrays.values()) for b in blocks], [s.arrays for s in snapshots]
        mx.async_eval(copies)  # type: ignore[no-untyped-call]
        start = time.perf_counter()
        mx.eval([rows.arrays for rows in self._rows.values()])
        wait_s = time.perf_counter() - start
        mx.eval(copies)
        return wait_s


def has_rows(block: Block) -> bool:
    """Whether all of its arrays have as many rows as it says."""
    found = {a.shape[TOKEN_AXIS] for leaf in block.arrays.values() for a in leaf}
    return found <= {block.hi - block.lo}


def nbytes_of(arrays: BlockArrays) -> int:
    return sum(array.nbytes for leaf in arrays.values() for array in leaf)


def shrink(block: Block, lo: int, hi: int) -> int:
    """Let go of the rows outside `lo ... hi - 1`; returns the bytes freed. Mutates.

    Leaf by leaf, so that no more than one leaf is held twice at a time.
    """
    before = block.nbytes
    for leaf, arrays in block.arrays.items():
        kept = tuple(owned(a[..., lo - block.lo : hi - block.lo, :]) for a in arrays)
        mx.eval(kept)
        block.arrays[leaf] = kept
    block.lo, block.hi = lo, hi
    block.nbytes = nbytes_of(block.arrays)
    return before - block.nbytes


def held(spans: Sequence[Span]) -> list[Interval]:
    """The positions that the spans cover."""
    return merged((span.lo, span.hi) for span in spans)


def pieces_of(spans: Sequence[Span], leaf: int, wanted: Sequence[Interval]) -> list[Arrays]:
    """The rows `wanted` of one leaf, in order, as views into the blocks.

    Raises CacheFault when the spans (sorted) leave a gap.
    """
    runs: list[tuple[Block, int, int]] = []
    for lo, hi in wanted:
        at = lo
        for span in spans:
            if span.hi <= at or span.lo >= hi:
                continue
            if span.lo > at:
                break
            end = min(span.hi, hi)
            runs.append((span.block, at, end))
            at = end
        if at < hi:
            raise CacheFault(f"rows {at}..{hi} of leaf {leaf} are missing")
    return [_view(block, leaf, lo, hi) for block, lo, hi in _long_runs(runs)]


def _long_runs(runs: Sequence[tuple[Block, int, int]]) -> Iterator[tuple[Block, int, int]]:
    """Rows of blocks, in order; what lies end to end in one block, though on several edges, is
    one run: each run is a copy."""
    last: tuple[Block, int, int] | None = None
    for block, lo, hi in runs:
        if last is not None and last[0] is block and last[2] == lo:
            last = (block, last[1], hi)
            continue
        if last is not None:
            yield last
        last = (block, lo, hi)
    if last is not None:
        yield last


def _view(block: Block, leaf: int, lo: int, hi: int) -> Arrays:
    arrays: Arrays = block.arrays[leaf]
    if lo == block.lo and hi == block.hi:
        return arrays
    return tuple(a[..., lo - block.lo : hi - block.lo, :] for a in arrays)
