"""The state at the very end of a prompt. It lies beside the tree and goes on from rows that are in
it: only the same prompt can use it, and where roles and chances are counted it would be in the way.
The thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from keepwarm.cache.blocks import Capture, held
from keepwarm.cache.explain import Match
from keepwarm.cache.intervals import length, subtracted
from keepwarm.cache.live import Live
from keepwarm.cache.placement import StopKind
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Checkpoint, Node, Span
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.registry import Layout


@dataclass(frozen=True, slots=True)
class End:
    """Snapshots, and the rows that the tree does not hold before them."""

    anchor: int  # so many tokens lie in the tree
    digest: bytes  # of those
    blocks: list[list[Block]]  # for each group
    checkpoint: Checkpoint

    @property
    def rows_bytes(self) -> int:
        return sum(block.nbytes for blocks in self.blocks for block in blocks)

    @property
    def nbytes(self) -> int:
        return self.rows_bytes + self.checkpoint.nbytes

    def goes_on_from(self, prompt: Prompt) -> bool:
        """Whether the prompt begins with what it goes on from, and does not end there."""
        return self.anchor < len(prompt) and prompt.digest(self.anchor) == self.digest

    def spans(self, path: Sequence[Node], group: int) -> list[Span]:
        """The rows of one group along a path through the anchor, and on from there."""
        before = [
            Span(span.block, span.lo, min(span.hi, self.anchor))
            for span in spans_of(path, group)
            if span.lo < self.anchor
        ]
        return before + [Span(block, block.lo, block.hi) for block in self.blocks[group]]

    def can_follow(self, layout: Layout, path: Sequence[Node]) -> bool:
        """Whether the rows that it goes on from are all there."""
        return not any(
            subtracted(group.state.needs(self.checkpoint.position), held(self.spans(path, index)))
            for index, group in enumerate(layout.groups)
        )


def take_end(
    space: Space, match: Match, live: Live, fits: Callable[[int], bool], now: float
) -> End | None:
    """A copy of `live`, which has read all of the matched prompt, to go on from what was matched.
    None where there is no room for it, or nothing to go on from.

    Raises CacheFault when the live caches are not what they should be.
    """
    prompt, position, node = match.prompt, live.position, match.node
    if node is None or match.cached_len != node.end:
        return None
    capture = Capture(space.layout, live.caches, position)
    space.check_signature(capture.signature)
    blocks, rows_bytes = [], 0
    for index, group in enumerate(space.layout.groups):
        lacking = subtracted(group.state.needs(position), held(spans_of(node.path(), index)))
        capture.require(group, lacking)
        rows_bytes += length(lacking) * capture.row_bytes(group)
        blocks.append([capture.block(group, lo, hi, prompt.digest(lo)) for lo, hi in lacking])
    if not fits(rows_bytes + capture.measure_snapshots()):
        return None
    snapshots = capture.snapshots()
    nbytes = sum(snapshot.nbytes for snapshot in snapshots.values())
    checkpoint = Checkpoint(position, live.digest, StopKind.END, snapshots, nbytes, now)
    # Not waited for: who waits for the next token does not wait for this as well.
    mx.async_eval(  # type: ignore[no-untyped-call]
        [list(block.arrays.values()) for group in blocks for block in group],
        [snapshot.arrays for snapshot in snapshots.values()],
    )
    return End(node.end, prompt.digest(node.end), blocks, checkpoint)
