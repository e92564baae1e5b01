"""Room in memory for running sequences: the cache gives way to them. Engine thread."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from keepwarm.cache.store import PrefixCache
from keepwarm.engine.batch import Batch
from keepwarm.engine.memory import Footprint
from keepwarm.engine.scheduler import Job

# A request that waits this long for room is overtaken no more.
_PATIENCE_S = 10.0

# Tokens that a sequence is expected to generate when it is admitted; more is found on the way.
_HEADROOM = 256


class Room:
    """Counts what running sequences take, and lends them that much of the cache's budget."""

    def __init__(
        self, cache: PrefixCache, footprint: Footprint, memory_bytes: int, weights_bytes: int = 0
    ) -> None:
        self._cache = cache
        self._footprint = footprint
        self._weights_bytes = weights_bytes
        self.memory_bytes = memory_bytes
        self._last: tuple[int, int] | None = None

    def live_bytes(self, batch: Batch, reading: Sequence[int]) -> int:
        """Of all rows in decode, padding included, and of prompts (their lengths) being read."""
        at = self._footprint.at
        decoding = sum(len(group) * at(group.longest + 1) for group in batch.groups)
        return decoding + sum(at(num_tokens) for num_tokens in reading)

    def needed_bytes(self, num_tokens: int) -> int:
        """What a prompt of that length needs at least to be answered."""
        return self._footprint.at(num_tokens + 1)

    def max_padding(self, live_bytes: int) -> int:
        """Rows of padding that are worth it. A step reads all rows of a group and all weights:
        padding up to the weights costs less than another step, while there is room for it."""
        spare = (self.memory_bytes - live_bytes) // 2
        return min(self._weights_bytes, spare) // max(1, self._footprint.token_bytes)

    def fitting(self, ready: Sequence[Job], live_bytes: int) -> list[Job]:
        """Those that there is room for besides what runs, the cache not counted."""
        found = []
        for job in ready:
            if live_bytes + self._footprint.at(len(job.tokens) + _HEADROOM) <= self.memory_bytes:
                found.append(job)
            elif not live_bytes:
                found.append(job)  # it runs alone or never
            elif perf_counter() - job.arrived > _PATIENCE_S:
                break
        return found

    def has(self, live_bytes: int) -> bool:
        """Whether there is that much without evicting anything."""
        ledger = self._cache.ledger
        return live_bytes + ledger.held_bytes + ledger.staged_bytes <= self.memory_bytes

    def is_free(self, live_bytes: int) -> bool:
        """As `has`, but for the state at the end of the last prompt, which goes if need be. Mutates
        the cache."""
        if not self.has(live_bytes):
            self._cache.last_end.let_go()
        return self.has(live_bytes)

    def make(self, live_bytes: int) -> bool:
        """Evict what is in the way of that much. False when it cannot be, or when what is pinned
        does not allow it."""
        if live_bytes > self.memory_bytes:
            return False
        budget = self._cache.ledger.budget_bytes
        lent = max(0, budget - (self.memory_bytes - live_bytes))
        if (live_bytes, lent) == self._last:
            return True
        is_made = self._cache.lend(min(lent, budget))
        self._last = (live_bytes, lent) if is_made else None
        return is_made
