"""Making room: what goes, what stays, and that the bytes are really freed."""

from __future__ import annotations

from typing import Any

from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Node
from keepwarm.prompt.boundaries import Prompt
from tests.cache.toy import TOYS, UNTHINNED, live_at, store_at

KEEPING = TOYS["window_keep"]  # one window of 6 rows, of which the first 2 are kept
ROW_BYTES = 32  # of one leaf of a toy: keys and values of 4 floats


class Clock:
    """Time that passes when it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def cache_for(name: str, **settings: Any) -> PrefixCache:
    chosen: dict[str, Any] = {"budget_bytes": 1 << 20, "placement": UNTHINNED, "clock": Clock()}
    return PrefixCache(TOYS[name].make, **{**chosen, **settings})


def node_at(cache: PrefixCache, position: int, namespace: str = "") -> Node:
    nodes = [n for n in cache._spaces[namespace].tree.nodes() if n.end == position]
    assert len(nodes) == 1
    return nodes[0]


def checkpoints(cache: PrefixCache, namespace: str = "") -> list[int]:
    nodes = cache._spaces[namespace].tree.nodes()
    return sorted(node.end for node in nodes if node.checkpoint is not None)


def test_block_used_on_both_sides_of_a_hole_is_freed_at_once() -> None:
    """The rows that are kept and the last ones of a window may lie in one block."""
    cache = cache_for("window_keep")
    store_at(cache, KEEPING, list(range(20)), [6, 8])
    cache._evictor._drop_checkpoint(cache._spaces[""], node_at(cache, 6))
    cache.check()
    cache.clear()
    cache.check()
    assert cache.ledger.held_bytes == 0


def test_insert_makes_room_again_when_it_lost_rows_of_its_own_path() -> None:
    tokens = list(range(20))
    cache = cache_for("window_keep", budget_bytes=20 * ROW_BYTES, policy="fifo")
    store_at(cache, KEEPING, tokens, [8, 20])
    store_at(cache, KEEPING, [50] * 6, [6])
    # Its window begins with rows that only the checkpoint at 8 holds, and that one goes first.
    prompt = Prompt([*tokens[:9], 99])
    assert cache.insert(prompt, live_at(KEEPING, prompt, 10)).is_stored
    cache.check()
    assert 10 in checkpoints(cache)
