"""Storing one state: find what is missing, make room, copy it, and only then touch the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from keepwarm.cache.blocks import Source, held
from keepwarm.cache.candidates import Newcomer
from keepwarm.cache.evict import Evictor
from keepwarm.cache.explain import Inserted
from keepwarm.cache.intervals import Interval, clipped, length, subtracted
from keepwarm.cache.joining import joinable
from keepwarm.cache.placement import LASTING, StopKind
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Checkpoint, Node, Span
from keepwarm.prompt.boundaries import BoundaryKind, Prompt
from keepwarm.state.registry import Group

# Of the budget, the part that may be kept free for cutting large blocks: one in so many.
_MAX_SCRATCH = 64


@dataclass(frozen=True, slots=True)
class Missing:
    """What the tree lacks for a checkpoint at one position."""

    base: Node  # where the new edge begins; it may end at the position already
    rows: list[list[Interval]]  # for each group
    rows_bytes: int
    snapshot_bytes: int
    leaf_bytes: int  # of the largest leaf of the largest block to come
    has_checkpoint: bool

    @property
    def nbytes(self) -> int:
        return self.rows_bytes + self.snapshot_bytes


class Insertion:
    """One insert: what can fail comes first, then `_link` changes the tree and the ledger."""

    def __init__(
        self, space: Space, keys: bytes, prompt: Prompt, capture: Source, evictor: Evictor
    ) -> None:
        self._space = space
        self._keys = keys[: capture.position * space.tree.width]
        self._prompt = prompt
        self._capture = capture
        self._evictor = evictor
        self._position = capture.position

    def run(
        self, kind: StopKind, now: float, spaces: Sequence[Space], *, is_awaited: bool = False
    ) -> tuple[Node | None, Inserted]:
        """The node at the position, or None when it is refused.

        Raises CacheFault when the live caches do not hold what is missing.
        """
        base = self._base()
        # Or making room could drop the very path that is extended. The place only: position 0
        # takes no window rows.
        base.holds.append(0)
        try:
            missing = self._missing(base)
            newcomer = self._newcomer(missing, kind, is_awaited)
            while not self._evictor.fits(missing.nbytes, missing.leaf_bytes):
                refusal = self._evictor.make_room(newcomer, missing.leaf_bytes, spaces, now)
                if refusal is not None:
                    return None, Inserted(self._position, nbytes=missing.nbytes, refusal=refusal)
                missing = self._missing(base)  # windows on the path may have gone to make room
                newcomer = self._newcomer(missing, kind, is_awaited)
            joined = self._joined(missing)
            self._evictor.expect(max(missing.leaf_bytes, self._leaf_bytes(missing, joined)))
            blocks = [
                self._blocks(group, rows, joined[group]) for group, rows in enumerate(missing.rows)
            ]
            checkpoint = self._checkpoint(missing, kind, now)
            wait_s = self._settle(blocks, checkpoint)
        finally:
            base.holds.remove(0)
        node = self._link(missing, blocks, joined, checkpoint, kind, now)
        num_rows = self._position - base.end
        self._evictor.thin(newcomer, node)
        return node, Inserted(self._position, num_rows, missing.nbytes, wait_s)

    def _newcomer(self, missing: Missing, kind: StopKind, is_awaited: bool) -> Newcomer:
        return Newcomer(
            self._space, missing.base, self._prompt, self._position, kind, missing.nbytes,
            is_awaited,
        )  # fmt: skip

    def _base(self) -> Node:
        """The deepest node that lies on the path; splits an edge where the path leaves it."""
        tree = self._space.tree
        walk = tree.walk(self._keys)
        if not walk.path:
            return tree.root
        if walk.is_inside:
            self._evictor.version += 1
            return tree.split(walk.path[-1], walk.matched)
        return walk.path[-1]

    def _missing(self, base: Node) -> Missing:
        layout, position, path = self._space.layout, self._position, base.path()
        rows: list[list[Interval]] = []
        rows_bytes = leaf_bytes = 0
        for index, group in enumerate(layout.groups):
            lacking = subtracted(group.state.needs(position), held(spans_of(path, index)))
            self._capture.require(group, lacking)
            rows.append(lacking)
            rows_bytes += length(lacking) * self._capture.row_bytes(group)
            longest = max((hi - lo for lo, hi in self._pieces(group, lacking)), default=0)
            leaf_bytes = max(leaf_bytes, longest * self._capture.leaf_row_bytes(group))
        has_checkpoint = base.end == position and base.checkpoint is not None
        snapshot_bytes = 0 if has_checkpoint else self._capture.measure_snapshots()
        return Missing(base, rows, rows_bytes, snapshot_bytes, leaf_bytes, has_checkpoint)

    def _joined(self, missing: Missing) -> list[list[Block]]:
        """For each group the blocks to be stored anew with the missing rows; none where that
        would take room that is not free."""
        if not self._capture.can_join:
            return [[] for _ in missing.rows]
        path = missing.base.path()
        joined: list[list[Block]] = []
        for index, rows in enumerate(missing.rows):
            group = self._space.layout.groups[index]
            spans = [] if group.is_window or not rows else spans_of(path, index)
            max_len = self._max_scratch_bytes // max(1, self._capture.leaf_row_bytes(group))
            # Of full attention the end of the path is missing, and nothing else.
            joined.append(joinable(spans, *rows[0], max_len) if spans else [])
        # For a moment what is joined is held twice.
        nbytes = sum(block.nbytes for blocks in joined for block in blocks)
        fits = self._evictor.fits(missing.nbytes + nbytes, self._leaf_bytes(missing, joined))
        return joined if fits else [[] for _ in joined]

    @property
    def _max_scratch_bytes(self) -> int:
        """As much as a leaf of the largest block is always kept free, to cut it."""
        return self._evictor.ledger.budget_bytes // _MAX_SCRATCH

    def _leaf_bytes(self, missing: Missing, joined: Sequence[Sequence[Block]]) -> int:
        """Of the largest leaf of the largest joined block."""
        groups = self._space.layout.groups
        return max(
            (
                (rows[0][1] - blocks[0].lo) * self._capture.leaf_row_bytes(group)
                for group, rows, blocks in zip(groups, missing.rows, joined, strict=True)
                if blocks
            ),
            default=0,
        )

    def _blocks(self, group: int, rows: Sequence[Interval], joined: Sequence[Block]) -> list[Block]:
        leaves = self._space.layout.groups[group]
        blocks = []
        for lo, hi in (
            self._joined_pieces(leaves, rows, joined) if joined else self._pieces(leaves, rows)
        ):
            digest = self._prompt.digest(lo)
            blocks.append(self._capture.block(leaves, lo, hi, digest))
        return blocks

    def _joined_pieces(
        self, group: Group, rows: Sequence[Interval], joined: Sequence[Block]
    ) -> Iterator[Interval]:
        """One for all that is joined and what is new, up to where the next turn may part."""
        (lo, hi), *_ = rows
        until = min([at for at in self._partings if lo < at < hi], default=hi)
        yield joined[0].lo, until
        if until < hi:
            yield from self._pieces(group, [(until, hi)])

    def _settle(self, blocks: Sequence[Sequence[Block]], checkpoint: Checkpoint | None) -> float:
        snapshots = list(checkpoint.snapshots.values()) if checkpoint is not None else []
        return self._capture.settle([block for new in blocks for block in new], snapshots)

    def _pieces(self, group: Group, rows: Sequence[Interval]) -> Iterator[Interval]:
        """`rows` in pieces of at most one prefill step: what is dropped later is dropped in
        pieces, and a piece that is cut then is copied. And cut where the next turn will part from
        a reply that begins with a thought: a block of both could never be joined."""
        step = self._evictor.placement.prefill_step
        partings = [] if group.is_window else self._partings
        partings = [*partings, *self._capture.seams(group)]
        for lo, hi in rows:
            starts = {*range(lo, hi, step), *(at for at in partings if lo < at < hi)}
            yield from pairwise([*sorted(starts), hi])

    @property
    def _partings(self) -> list[int]:
        ends = self._prompt.boundaries
        return [end.position for end in ends if end.kind is BoundaryKind.GENERATION]

    def _checkpoint(self, missing: Missing, kind: StopKind, now: float) -> Checkpoint | None:
        if missing.has_checkpoint:
            return None
        position = self._position
        snapshots = self._capture.snapshots()
        nbytes = sum(snapshot.nbytes for snapshot in snapshots.values())
        digest = self._prompt.digest(position)
        return Checkpoint(position, digest, kind, snapshots, nbytes, now)

    def _link(
        self,
        missing: Missing,
        blocks: Sequence[Sequence[Block]],
        joined: Sequence[Sequence[Block]],
        checkpoint: Checkpoint | None,
        kind: StopKind,
        now: float,
    ) -> Node:
        tree, ledger, node = self._space.tree, self._evictor.ledger, missing.base
        if node.end < self._position:
            node = tree.append(node, self._keys[node.end * tree.width :])
        for step in node.path():
            for group, new in enumerate(blocks):
                _detach(step, group, joined[group])
                _attach(step, group, new)
        ledger.add(rows_bytes=sum(block.nbytes for new in blocks for block in new))
        ledger.remove(rows_bytes=sum(block.nbytes for old in joined for block in old))
        if checkpoint is not None:
            node.checkpoint = checkpoint
            ledger.add(snapshot_bytes=checkpoint.nbytes)
            self._evictor.ghosts.forget(self._space.name, checkpoint.digest)
        elif node.checkpoint is not None and _outranks(kind, node.checkpoint.kind):
            node.checkpoint.kind = kind
        node.last_used = now
        self._evictor.version += 1
        return node


def _outranks(kind: StopKind, held: str) -> bool:
    """Whether a checkpoint is known by `kind` from now on."""
    return kind in LASTING or (kind is StopKind.USER and held not in LASTING)


def _detach(node: Node, group: int, blocks: Sequence[Block]) -> None:
    """Take the spans of `blocks` off this edge. Mutates."""
    if blocks:
        gone = set(blocks)
        node.spans[group][:] = [span for span in node.spans[group] if span.block not in gone]


def _attach(node: Node, group: int, blocks: Sequence[Block]) -> None:
    """Add the parts of `blocks` that lie on this edge. Mutates."""
    added = []
    for block in blocks:
        for lo, hi in clipped([(block.lo, block.hi)], node.start, node.end):
            added.append(Span(block, lo, hi))
            block.num_spans += 1
    if added:
        node.spans[group].extend(added)
        node.spans[group].sort(key=lambda span: span.lo)
