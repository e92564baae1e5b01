"""Recorded workloads as one stream of prompts, each a list of block ids. Plain data, any thread.

Equal ids mean equal blocks after equal prefixes, so that an id alone says where two prompts part.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. What follows its last whole block cannot be told from other prompts' ends."""

    time_s: float
    num_tokens: int
    blocks: Ids  # whole blocks only; ids are 1 or more
    system_len: int = 0  # blocks of tools + system; 0 when unknown


@dataclass(frozen=True, slots=True)
class Trace:
    """A stream of requests in the order of their arrival."""

    name: str
    block_len: int  # tokens
    requests: list[Request]

    @property
    def num_tokens(self) -> int:
        return sum(request.num_tokens for request in self.requests)

    @property
    def num_ids(self) -> int:
        """All ids are below."""
        return 1 + max((int(r.blocks.max()) for r in self.requests if len(r.blocks)), default=0)

    def message_ends(self) -> Iterator[tuple[Request, list[int]]]:
        """Each request with the positions, in blocks, where a message is known to end: where
        this prompt ends, and where an earlier one did that it begins with."""
        is_end = np.zeros(self.num_ids, dtype=bool)
        for request in self.requests:
            if len(request.blocks):
                is_end[request.blocks[-1]] = True
            yield request, [int(at) + 1 for at in np.flatnonzero(is_end[request.blocks])]


def interleaved(sessions: Sequence[Sequence[Request]], num_users: int) -> list[Request]:
    """Sessions, each in its own time, as `num_users` would have them: whoever ends one begins
    the next one at once."""
    free = [0.0] * min(num_users, max(1, len(sessions)))
    found: list[Request] = []
    for session in sessions:
        start = heapq.heappop(free)
        found += [Request(start + r.time_s, r.num_tokens, r.blocks, r.system_len) for r in session]
        heapq.heappush(free, start + max((r.time_s for r in session), default=0.0))
    return sorted(found, key=lambda request: request.time_s)
