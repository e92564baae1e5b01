"""Which checkpoints are too many, seen over the whole tree. No mlx; the thread that owns the tree.

A snapshot of a large hybrid weighs as much as thousands of rows. On the path that grows the
placement thins by distance. A conversation that rests, since another one goes on, will most likely
come back at its end: of the checkpoints before it those stay that spare as many tokens as they have
rows' weight.
"""

from __future__ import annotations

from collections.abc import Iterator

from keepwarm.cache.placement import LASTING, Placement, Stop, StopKind
from keepwarm.cache.space import Space, span_bytes
from keepwarm.cache.tree import Node

# Prefill steps: so much may have to be read again, however dear a snapshot is.
MAX_STEPS = 2


class Thinning:
    """Knows whose checkpoints were not looked at since they came to rest."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._awake: dict[int, tuple[Space, Node]] = {}  # tips

    def superfluous(self, space: Space, tip: Node) -> Iterator[tuple[Space, Node]]:
        """There is a new checkpoint at `tip`: those that may go. Mutates what it knows."""
        path = tip.path()
        yield from ((space, node) for node in self._on_growing(path))
        at_tip = {id(node) for node in path}
        running = [other.path() for _, other in self._awake.values() if other.pins]
        going = {id(node) for one in (path, *running) for node in one}
        for key, (home, other) in list(self._awake.items()):
            if key in at_tip or not is_in(home, other):
                del self._awake[key]
            elif not other.pins and not other.children:
                del self._awake[key]
                yield from (
                    (home, node) for node in self._on_resting(other) if id(node) not in going
                )
        self._awake[id(tip)] = (space, tip)

    def dear_between(self, path: list[Node], position: int, *, stays: bool) -> list[Node]:
        """The checkpoint at `position` on a path, or the one before if that `stays`, if those around
        it lie within min_span and it weighs more than the rows of a prefill step: at rest it would
        not stay, either."""
        marked = _marked(path)
        is_dear = self._spacing(path) > self._placement.prefill_step
        if not self._placement.thinning or not is_dear or position not in marked:
            return []
        places = [0, *sorted(marked)]
        place = places.index(position) - stays
        if not 0 < place < len(places) - 1:
            return []
        if places[place + 1] - places[place - 1] > self._placement.min_span:
            return []
        node = marked[places[place]]
        return [] if _standing(node) in LASTING else [node]

    def _on_growing(self, path: list[Node]) -> list[Node]:
        marked = _marked(path)
        return _droppable(marked, self._placement.superfluous(_stops(marked)))

    def _on_resting(self, tip: Node) -> list[Node]:
        path = tip.path()
        marked = _marked(path)
        found = self._placement.superfluous_at_rest(_stops(marked), self._spacing(path))
        return _droppable(marked, found)

    def _spacing(self, path: list[Node]) -> int:
        """Of how many tokens the rows weigh as much as a snapshot. Without any rows there is
        nothing that a snapshot is dear beside."""
        tip = path[-1]
        rows_bytes = sum(span_bytes(node) for node in path)
        if not rows_bytes:
            return 0
        snapshot_bytes = tip.checkpoint.nbytes if tip.checkpoint is not None else 0
        most = MAX_STEPS * self._placement.prefill_step
        return int(min(most, snapshot_bytes * tip.end / rows_bytes))


def _marked(path: list[Node]) -> dict[int, Node]:
    return {node.end: node for node in path if node.checkpoint is not None}


def _stops(marked: dict[int, Node]) -> list[Stop]:
    return [Stop(position, _kind_of(node)) for position, node in marked.items()]


def _kind_of(node: Node) -> StopKind:
    assert node.checkpoint is not None
    is_users = node.checkpoint.kind is StopKind.USER
    return StopKind.USER if is_users else _standing(node)


def _droppable(marked: dict[int, Node], stops: list[Stop]) -> list[Node]:
    """Those of `stops` that nobody else hangs on: the user's messages are told by their kind alone."""
    nodes = [marked[stop.position] for stop in stops]
    return [node for node in nodes if _standing(node) not in LASTING]


def _standing(node: Node) -> StopKind:
    """The kind of a checkpoint; one that several paths or a request hang on counts as a branch."""
    assert node.checkpoint is not None
    if len(node.children) > 1 or node.pins:
        return StopKind.BRANCH
    return StopKind(node.checkpoint.kind)


def is_in(space: Space, node: Node) -> bool:
    """Whether a node seen before still hangs on the tree."""
    while node.parent is not None:
        if node.parent.children.get(node.label[: space.tree.width]) is not node:
            return False
        node = node.parent
    return node is space.tree.root
