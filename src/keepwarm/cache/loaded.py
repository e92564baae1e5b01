"""What was read from files, in place of live caches, as an insert takes it. The thread that owns the
arrays; all of them are evaluated, and nobody else has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import mlx.core as mx

from keepwarm.cache.blocks import BlockArrays, nbytes_of
from keepwarm.cache.intervals import Interval, merged, subtracted
from keepwarm.cache.tree import Block
from keepwarm.errors import CacheFault
from keepwarm.state.base import TOKEN_AXIS, Arrays, Rows, Run, Snapshot, owned
from keepwarm.state.registry import Group, Layout

# By leaf: the positions of rows, and the arrays that hold these rows and no others.
Pieces = Mapping[int, Sequence[tuple[Interval, Arrays]]]


class Loaded:
    """Rows and snapshots for one position."""

    can_join: ClassVar[bool] = False  # what is stored already was not read

    def __init__(
        self, layout: Layout, position: int, rows: Pieces, snapshots: dict[int, Snapshot]
    ) -> None:
        """Raises CacheFault unless all snapshots are there."""
        if tuple(sorted(snapshots)) != tuple(sorted(layout.whole)):
            raise CacheFault("some snapshots are missing")
        self.layout = layout
        self.position = position
        self._rows = {
            leaf: sorted(rows.get(leaf, ())) for group in layout.groups for leaf in group.leaves
        }
        self._snapshots = {leaf: snapshots[leaf] for leaf in layout.whole}

    @property
    def signature(self) -> tuple[Any, ...]:
        """As that of live caches."""
        return tuple(self._of(leaf).signature for leaf in self._rows)

    def _of(self, leaf: int) -> Rows:
        """The first rows of a leaf; all have the same form."""
        pieces = self._rows[leaf]
        if not pieces:
            return Rows((), ())
        (lo, hi), arrays = pieces[0]
        return Rows(arrays, (Run(lo, hi, 0),))

    def row_bytes(self, group: Group) -> int:
        return sum(self._of(leaf).row_bytes for leaf in group.leaves)

    def leaf_row_bytes(self, group: Group) -> int:
        return max(self._of(leaf).row_bytes for leaf in group.leaves)

    def require(self, group: Group, wanted: Sequence[Interval]) -> None:
        """Raises CacheFault unless the rows `wanted` were read."""
        for leaf in group.leaves:
            pieces = self._rows[leaf]
            if pieces and subtracted(wanted, merged(where for where, _ in pieces)):
                raise CacheFault(f"not all rows of leaf {leaf} were read")

    def seams(self, group: Group) -> list[int]:
        """Where pieces begin: one that is stored as it is need not be copied."""
        return [lo for (lo, _), _ in self._rows[group.leaves[0]]]

    def measure_snapshots(self) -> int:
        return sum(snapshot.nbytes for snapshot in self._snapshots.values())

    def snapshots(self) -> dict[int, Snapshot]:
        return dict(self._snapshots)

    def block(self, group: Group, lo: int, hi: int, digest: bytes) -> Block:
        arrays: BlockArrays = {
            leaf: self._cut(leaf, lo, hi) for leaf in group.leaves if self._rows[leaf]
        }
        return Block(lo, hi, arrays, nbytes_of(arrays), digest)

    def _cut(self, leaf: int, lo: int, hi: int) -> Arrays:
        found = []
        for (start, end), arrays in self._rows[leaf]:
            if (start, end) == (lo, hi):
                return arrays
            if start < hi and lo < end:
                at, to = max(lo, start) - start, min(hi, end) - start
                found.append(tuple(a[..., at:to, :] for a in arrays))
        if len(found) == 1:
            return tuple(owned(array) for array in found[0])
        return tuple(
            mx.concatenate(list(parts), axis=TOKEN_AXIS) for parts in zip(*found, strict=True)
        )

    def settle(self, blocks: Sequence[Block], snapshots: Sequence[Snapshot]) -> float:
        mx.eval([list(block.arrays.values()) for block in blocks], [s.arrays for s in snapshots])
        return 0.0
