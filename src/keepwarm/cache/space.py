"""One namespace: a tree and the layout of the model whose states it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keepwarm.cache.blocks import held
from keepwarm.cache.intervals import Interval, clipped, merged, subtracted
from keepwarm.cache.placement import EXACT_KEY_WIDTH, KEY_WIDTH
from keepwarm.cache.tree import Node, Span, Tree, Walk
from keepwarm.errors import CacheFault
from keepwarm.state.registry import Group, Layout


@dataclass(slots=True)
class Space:
    """What lives in one namespace. Two spaces never share a state."""

    name: str
    layout: Layout
    tree: Tree
    exact: bool
    signature: tuple[Any, ...] | None = None  # of the rows; learned from the first insert
    window_groups: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.window_groups = tuple(i for i, g in enumerate(self.layout.groups) if g.is_window)

    @classmethod
    def empty(cls, name: str, layout: Layout, exact: bool) -> Space:
        width = EXACT_KEY_WIDTH if exact else KEY_WIDTH
        return cls(name, layout, Tree(width, len(layout.groups)), exact)

    @property
    def can_cut(self) -> bool:
        """Whether a position between checkpoints can be restored."""
        return self.layout.can_cut and not self.exact

    def check_signature(self, signature: tuple[Any, ...]) -> None:
        """Raises CacheFault for rows that cannot be joined with those stored."""
        if self.signature not in (None, signature):
            raise CacheFault("the rows are of another shape or type than those stored")

    def deepest_checkpoint(self, walk: Walk, limit: int) -> Node | None:
        """The last node of the walk that carries a checkpoint at or before `limit`."""
        for node in reversed(walk.path):
            if node.checkpoint is not None and node.end <= min(limit, walk.matched):
                return node
        return None

    def deepest_cut(self, walk: Walk, limit: int) -> int:
        """The last position at or before `limit` whose rows are all there.

        Only for layouts that can be cut. Full rows are always there; windows may have holes.
        """
        position = min(limit, walk.matched)
        windows = [
            (self.layout.groups[g], held(spans_of(walk.path, g))) for g in self.window_groups
        ]
        settled = False
        while position and not settled:
            fitted = [_fit(group, intervals, position) for group, intervals in windows]
            settled = all(fit == position for fit in fitted)
            position = min([position, *fitted])
        return position

    def needed_rows(self, node: Node, group: int, rows: Sequence[Interval]) -> list[Interval]:
        """Which of the window `rows` of this edge a checkpoint or a pin below it takes.

        More than that when it is all of them: then the rest is not looked at.
        """
        state = self.layout.groups[group].state
        found: list[Interval] = []
        stack = [node]
        while stack and subtracted(rows, found):
            at = stack.pop()
            places = [*at.holds, at.end] if at.checkpoint is not None else at.holds
            needs = [need for place in places for need in state.needs(place)]
            found = merged([*found, *clipped(needs, node.start, node.end)])
            # The windows of all that lies further down begin later than this one.
            if clipped(state.needs(at.end + 1), node.start, node.end):
                stack.extend(at.children.values())
        return found


def _fit(group: Group, intervals: Sequence[Interval], limit: int) -> int:
    """The last position at or before `limit` that one group of windows can be restored at."""
    # Within one run of held rows, if its top does not have its window then no lower one does.
    tops = [min(hi, limit) for lo, hi in intervals if lo < limit]
    return max((top for top in tops if group.state.can_restore(top, intervals)), default=0)


def spans_of(path: Sequence[Node], group: int) -> list[Span]:
    """The spans of one group along a path, in order."""
    return [span for node in path for span in node.spans[group]]


def span_bytes(node: Node) -> int:
    """What the rows on the edge of a node weigh."""
    return sum(span.block.bytes_of(span.hi - span.lo) for spans in node.spans for span in spans)


def window_bytes(space: Space, node: Node) -> int:
    """About what the windows of a checkpoint within the tree weigh: those on its own edge."""
    return sum(
        span.block.bytes_of(span.hi - span.lo)
        for group in space.window_groups
        for span in node.spans[group]
    )
