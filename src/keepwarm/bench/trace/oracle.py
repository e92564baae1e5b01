"""A policy that knows the future, for comparison: what our own tree would save if there were nothing
to guess. Holds no arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from keepwarm.bench.trace.stream import Trace
from keepwarm.cache.candidates import Newcomer
from keepwarm.cache.policy import Candidate, CostModel, Worth
from keepwarm.cache.tree import Node

_NEVER = 1e-12  # uses a second: of what nobody comes back to, the better part still goes last
_LEAST_S = 0.5  # requests of one moment come one after the other


class Oracle:
    """As `Worth`, with the time until something is used in place of its chance of use."""

    refuses: ClassVar[bool] = True

    def __init__(self, cost: CostModel, trace: Trace, current: Callable[[], int]) -> None:
        """`current` says which request of `trace` is being served."""
        self._worth = Worth(cost)
        self._current = current
        self._requests = trace.requests
        self._blocks = [frozenset(request.blocks.tolist()) for request in trace.requests]
        self._users: dict[int, list[int]] = defaultdict(list)  # of each block, in order
        for index, blocks in enumerate(self._blocks):
            for block in blocks:
                self._users[block].append(index)

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        worth = {
            id(c): self._worth.worth_of(replace(c, chance=self._chance(c, now))) for c in candidates
        }
        return sorted(candidates, key=lambda c: (worth[id(c)], c.last_used))

    def _chance(self, candidate: Candidate, now: float) -> float:
        handle = candidate.handle
        if isinstance(handle, Newcomer):
            last = int(handle.prompt.tokens[handle.position - 1])
            below = set() if handle.is_leaf else set(_ends_below(handle.base))
        else:
            last, below = _last_block(handle.node), set(_ends_below(handle.node))
        index = self._next_user(last, below)
        if index is None:
            return _NEVER
        return 1 / max(_LEAST_S, self._requests[index].time_s - now)

    def _next_user(self, block: int, others: set[int]) -> int | None:
        """The next request that goes through that block, and through none of the `others`: it would
        start from there. An id stands for all that leads to its block."""
        users = self._users[block]
        for index in users[bisect_right(users, self._current()) :]:
            if self._blocks[index].isdisjoint(others):
                return index
        return None


def _last_block(node: Node) -> int:
    return int(np.frombuffer(node.label[-4:], dtype="<i4")[0])


def _ends_below(node: Node) -> Iterator[int]:
    """The blocks at which the next checkpoints on all ways below end."""
    for child in node.children.values():
        if child.checkpoint is not None:
            yield _last_block(child)
        else:
            yield from _ends_below(child)
