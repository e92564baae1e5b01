"""What could be dropped, and what is to be stored, as a policy ranks them. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from keepwarm.cache.placement import LASTING, Placement, StopKind
from keepwarm.cache.policy import Candidate
from keepwarm.cache.space import Space, span_bytes, window_bytes
from keepwarm.cache.tree import Node
from keepwarm.cache.watch import Watch, nearest
from keepwarm.prompt.boundaries import Prompt


@dataclass(frozen=True, slots=True)
class Victim:
    """What a candidate stands for."""

    space: Space
    node: Node
    above: Node | None  # the checkpoint that a prefill would fall back to
    is_leaf: bool  # all of it goes; otherwise only its checkpoint


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A checkpoint that is to be stored."""

    space: Space
    base: Node  # of its path, the last node that is there; it may end at the position already
    prompt: Prompt
    position: int
    kind: StopKind
    nbytes: int  # to be added
    is_awaited: bool = False  # somebody waits for it

    @property
    def is_leaf(self) -> bool:
        return self.base.end < self.position or not self.base.children

    @property
    def above(self) -> Node | None:
        """The checkpoint that a prefill would start from without it."""
        return self.base if self.base.checkpoint is not None else nearest(self.base)

    @property
    def is_shared(self) -> bool:
        """Whether other conversations start from there."""
        return self.kind in LASTING or (not self.is_leaf and len(self.base.children) > 1)

    def is_end(self, placement: Placement) -> bool:
        """Whether the next turn goes on from there. (Nobody may ever come back to the end of a
        reply, if the model thinks.)"""
        return self.position == placement.end(self.prompt, exact=self.space.exact)


def candidates(space: Space, watch: Watch, now: float) -> Iterator[Candidate]:
    """All that could go from one space: leaves, and snapshots within the tree."""
    stack: list[tuple[Node, Node | None]] = [
        (node, None) for node in space.tree.root.children.values()
    ]
    while stack:
        node, above = stack.pop()
        if not node.pins:
            if not node.children:
                yield _leaf_candidate(space, node, above, watch.chance(space.name, node, now))
            elif (
                node.checkpoint is not None
                and space.layout.has_costly_checkpoints
                and not _is_before_loop(node)
            ):
                yield _checkpoint_candidate(space, node, above, watch.chance(space.name, node, now))
        below = node if node.checkpoint is not None else above
        stack.extend((child, below) for child in node.children.values())


def _is_before_loop(node: Node) -> bool:
    """Whether the user spoke last at this checkpoint, and a tool loop behind it still has
    checkpoints of its own besides its end: those go first."""
    assert node.checkpoint is not None
    if node.checkpoint.kind is not StopKind.USER:
        return False
    has_own = False
    while len(node.children) == 1:
        (node,) = node.children.values()
        if node.checkpoint is not None and node.checkpoint.kind is StopKind.USER:
            return False
        has_own = has_own or (node.checkpoint is not None and bool(node.children))
    return has_own


def candidate_of(newcomer: Newcomer, chance: float, is_tip: bool, now: float) -> Candidate:
    """As if it were held. If it goes on from the tip of a conversation (`is_tip`), the snapshot
    there will hardly be used any more, and makes room for its own."""
    space, base, above = newcomer.space, newcomer.base, newcomer.above
    nbytes = newcomer.nbytes
    if above is base and is_tip and newcomer.is_leaf:
        nbytes -= _checkpoint_candidate(space, base, None, 0.0).nbytes
    # Rows alone can be cut anywhere; windows may not reach as far as the rows do.
    start = base if space.can_cut and not space.window_groups else above
    return Candidate(
        handle=newcomer,
        nbytes=max(1, nbytes),
        position=newcomer.position,
        fallback=start.end if start is not None else 0,
        kind=newcomer.kind,
        created=now,
        last_used=now,
        hits=0,
        chance=chance,
    )


def _leaf_candidate(space: Space, node: Node, above: Node | None, chance: float) -> Candidate:
    candidate = _checkpoint_candidate(space, node, above, chance)
    nbytes = sum(span_bytes(step) for step in _chain(space, node))
    candidate = replace(
        candidate,
        handle=Victim(space, node, above, is_leaf=True),
        nbytes=nbytes + (node.checkpoint.nbytes if node.checkpoint else 0),
        last_used=max(node.last_used, candidate.last_used),
    )
    if space.can_cut and any(node.spans):
        return replace(candidate, position=node.end, fallback=node.start)
    return candidate


def _checkpoint_candidate(space: Space, node: Node, above: Node | None, chance: float) -> Candidate:
    fallback = above.end if above is not None else 0
    checkpoint = node.checkpoint
    return Candidate(
        handle=Victim(space, node, above, is_leaf=False),
        nbytes=checkpoint.nbytes + window_bytes(space, node) if checkpoint else 0,
        # Rows without a checkpoint that leads to them save nothing.
        position=node.end if checkpoint else fallback,
        fallback=fallback,
        kind=StopKind(checkpoint.kind) if checkpoint else None,
        created=checkpoint.created if checkpoint else node.last_used,
        # Not the node's: a hit further down took its rows, but not its snapshots.
        last_used=checkpoint.last_used if checkpoint else node.last_used,
        hits=checkpoint.hits if checkpoint else node.hits,
        chance=chance,
    )


def _chain(space: Space, leaf: Node) -> Iterator[Node]:
    """What goes with a leaf, from itself upwards: rows that no other checkpoint leads to."""
    yield leaf
    above = leaf.parent
    while above is not None and len(above.children) == 1 and not stays(space, above):
        yield above
        above = above.parent


def stays(space: Space, node: Node) -> bool:
    """Whether a node is of use, or in use, when nothing hangs on it."""
    is_held = node.is_root or node.pins or node.checkpoint is not None
    return bool(is_held or (space.can_cut and any(node.spans)))


def reclaimable_bytes(space: Space) -> int:
    """What could be freed at most: all that is neither pinned nor before something pinned."""
    total = 0
    staying: set[int] = set()
    for node in reversed(list(space.tree.nodes())):  # children before their parents
        if node.pins or id(node) in staying:
            staying.add(id(node.parent))
        else:
            total += span_bytes(node)
        if node.checkpoint is not None and not node.pins:
            total += node.checkpoint.nbytes
    return total
