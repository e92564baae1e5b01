"""Small caches for tests, and a look inside."""

from __future__ import annotations

from typing import Any

from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Node
from tests.cache.toy import TOYS, UNTHINNED

ROW_BYTES = 32  # of one leaf of a toy: keys and values of 4 floats


class Clock:
    """Time that passes when it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def cache_for(name: str, **settings: Any) -> PrefixCache:
    """A roomy cache for the toy of that name that drops nothing of its own accord."""
    chosen: dict[str, Any] = {"budget_bytes": 1 << 20, "placement": UNTHINNED, "clock": Clock()}
    return PrefixCache(TOYS[name].make, **{**chosen, **settings})


def node_at(cache: PrefixCache, position: int, namespace: str = "") -> Node:
    """The only node that ends there."""
    nodes = [n for n in cache._spaces[namespace].tree.nodes() if n.end == position]
    assert len(nodes) == 1
    return nodes[0]


def checkpoints(cache: PrefixCache, namespace: str = "") -> list[int]:
    """The positions of all checkpoints."""
    nodes = cache._spaces[namespace].tree.nodes()
    return sorted(node.end for node in nodes if node.checkpoint is not None)
