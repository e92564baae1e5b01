"""The state at the very end of the last prompt. It lies beside the tree and goes on from rows that are
in it: only the same prompt can use it, and where roles and chances are counted it would be in the
way. The thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from keepwarm.cache.blocks import Capture, held
from keepwarm.cache.explain import Match, Reason
from keepwarm.cache.intervals import Interval, length, subtracted
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.live import Live
from keepwarm.cache.placement import SHORT_TURN, StopKind
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Checkpoint, Node, Span
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.registry import Layout


@dataclass(frozen=True, slots=True)
class End:
    """Snapshots, and the rows that the tree did not hold before them: those of a generation prompt
    or a short turn, which a reply may store once more."""

    namespace: str
    anchor: int  # so many tokens lie in the tree
    digest: bytes  # of those
    is_from_tail: bool  # they end with the last message
    blocks: list[list[Block]]  # for each group
    checkpoint: Checkpoint

    @property
    def rows_bytes(self) -> int:
        return sum(block.nbytes for blocks in self.blocks for block in blocks)

    @property
    def nbytes(self) -> int:
        return self.rows_bytes + self.checkpoint.nbytes

    def is_of(self, namespace: str, prompt: Prompt) -> bool:
        """Whether that is the prompt that it ends."""
        return (
            self.namespace == namespace
            and self.checkpoint.position == len(prompt)
            and self.checkpoint.digest == prompt.digest(len(prompt))
        )

    def is_beside(self, namespace: str, prompt: Prompt) -> bool:
        """Whether the prompt begins with what it goes on from, and does not end there."""
        return (
            self.namespace == namespace
            and self.anchor < len(prompt)
            and self.digest == prompt.digest(self.anchor)
        )

    def added_to(self, found: Match, space: Space, keys: bytes) -> Match:
        """What was found in the tree of its prompt, and this beyond it, where it goes on from
        there."""
        position = self.checkpoint.position
        if found.cached_len == position or found.parted_at < self.anchor:
            return found
        path = space.tree.walk(keys).until(self.anchor)
        if not self._can_follow(space.layout, path):
            return found
        whole = replace(found, cached_len=position, parted_at=position, reason=Reason.EXACT)
        return replace(whole, node=path[-1], end=self)

    def _can_follow(self, layout: Layout, path: Sequence[Node]) -> bool:
        """Whether the rows that it goes on from are all there."""
        return not any(
            subtracted(group.state.needs(self.checkpoint.position), held(self.spans(path, index)))
            for index, group in enumerate(layout.groups)
        )

    def spans(self, path: Sequence[Node], group: int) -> list[Span]:
        """The rows of one group along a path through the anchor, and on from there."""
        before = [
            Span(span.block, span.lo, min(span.hi, self.anchor))
            for span in spans_of(path, group)
            if span.lo < self.anchor
        ]
        return before + [Span(block, block.lo, block.hi) for block in self.blocks[group]]


class LastEnd:
    """The one that is held, if any. Its bytes are in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.end: End | None = None

    @property
    def held_bytes(self) -> int:
        return self.end.nbytes if self.end is not None else 0

    def put(self, end: End) -> None:
        """There must be room for it. Mutates."""
        self.let_go()
        self._ledger.add(rows_bytes=end.rows_bytes, snapshot_bytes=end.checkpoint.nbytes)
        self.end = end

    def let_go(self) -> None:
        """Mutates; there may be none."""
        if self.end is not None:
            end, self.end = self.end, None
            self._ledger.remove(rows_bytes=end.rows_bytes, snapshot_bytes=end.checkpoint.nbytes)


def take_end(
    space: Space, match: Match, live: Live, fits: Callable[[int], bool], now: float
) -> End | None:
    """A copy of `live`, which has read all of the matched prompt, to go on from the checkpoint that
    was matched. None where there is no room for it, or more than a few tokens between.

    Raises CacheFault when the live caches are not what they should be.
    """
    prompt, position, node = match.prompt, live.position, match.node
    if node is None or match.cached_len != node.end or position - node.end > SHORT_TURN:
        return None
    capture = Capture(space.layout, live.caches, position)
    space.check_signature(capture.signature)
    lacking = [_lacking(space, node, capture, group) for group in range(len(space.layout.groups))]
    rows_bytes = sum(
        length(rows) * capture.row_bytes(group)
        for group, rows in zip(space.layout.groups, lacking, strict=True)
    )
    snapshot_bytes = capture.measure_snapshots()
    if not fits(rows_bytes + snapshot_bytes):
        return None
    blocks = [
        [capture.block(group, lo, hi, prompt.digest(lo)) for lo, hi in rows]
        for group, rows in zip(space.layout.groups, lacking, strict=True)
    ]
    snapshots = capture.snapshots()
    checkpoint = Checkpoint(position, live.digest, StopKind.END, snapshots, snapshot_bytes, now)
    # A copy of rows that is not made yet holds their buffers, and the next step would copy those
    # whole. The snapshots are not waited for.
    mx.eval([list(block.arrays.values()) for group in blocks for block in group])
    mx.async_eval(  # type: ignore[no-untyped-call]
        [snapshot.arrays for snapshot in snapshots.values()]
    )
    is_from_tail = node.end in (prompt.tail, position - 1)
    digest = prompt.digest(node.end)
    return End(space.name, node.end, digest, is_from_tail, blocks, checkpoint)


def _lacking(space: Space, node: Node, capture: Capture, index: int) -> list[Interval]:
    """The rows of one group that the path to `node` does not hold. Raises CacheFault where the live
    caches do not, either."""
    group = space.layout.groups[index]
    rows = subtracted(group.state.needs(capture.position), held(spans_of(node.path(), index)))
    capture.require(group, rows)
    return rows
