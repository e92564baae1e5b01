"""Tips: the stored sequences that no other stored sequence begins with. Changes nothing.

Rows and checkpoints are shared along the tree, so its tips are what can be counted like the
entries of a cache that shares nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keepwarm.cache.placement import StopKind
from keepwarm.cache.space import Space
from keepwarm.cache.tree import Block, Node


@dataclass(frozen=True, slots=True)
class Share:
    """What the tips of one kind hold."""

    num_tips: int = 0
    nbytes: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.num_tips + other.num_tips, self.nbytes + other.nbytes)


def tips(spaces: Sequence[Space]) -> Iterator[Node]:
    """Every leaf of every tree."""
    return (node for space in spaces for node in space.tree.nodes() if not node.children)


def shares(spaces: Sequence[Space], order: Sequence[StopKind]) -> dict[StopKind, Share]:
    """What the tips of each kind hold; together, all bytes that are held.

    What several tips share counts once, for the kind that comes first in `order`.
    """

    def rank(kind: StopKind) -> int:
        return order.index(kind) if kind in order else len(order)

    found: defaultdict[StopKind, Share] = defaultdict(Share)
    spare: dict[Block, tuple[StopKind, int]] = {}  # bytes of rows between those referred to
    kinds: dict[int, StopKind] = {}  # by node: the first among the tips below it
    for node in reversed([node for space in spaces for node in space.tree.nodes()]):
        below = [kinds[id(child)] for child in node.children.values()]  # seen before it
        kind = min(below or [_kind_of(node)], key=rank)
        kinds[id(node)] = kind
        found[kind] += Share(not below, node.checkpoint.nbytes if node.checkpoint else 0)
        for span in (span for spans in node.spans for span in spans):
            nbytes = span.block.bytes_of(span.hi - span.lo)
            found[kind] += Share(nbytes=nbytes)
            owner, left = spare.get(span.block, (kind, span.block.nbytes))
            spare[span.block] = min(owner, kind, key=rank), left - nbytes
    for kind, nbytes in spare.values():
        found[kind] += Share(nbytes=nbytes)
    return dict(found)


def _kind_of(tip: Node) -> StopKind:
    """A tip without a checkpoint is what is left of one that went on and was dropped."""
    return StopKind(tip.checkpoint.kind) if tip.checkpoint else StopKind.BRANCH
