"""Requests that wait for states to be loaded from the disk, while others are served. Engine thread."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from keepwarm.cache.explain import Match
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.scheduler import Job
from keepwarm.prompt.boundaries import Prompt

if TYPE_CHECKING:
    from keepwarm.cache.disk.load import Load

# What a request loads may be evicted before its turn comes; after so many loads it is read.
_MAX_LOADS = 2


@dataclass(slots=True)
class Wait:
    """A request that waits for `load`, or with None for the folder to be opened."""

    load: Load | None
    began: float
    until: float
    num_loads: int = 0
    nbytes: int = 0  # of all its loads


class Loading:
    """Who waits for what, and how long."""

    def __init__(self, cache: PrefixCache) -> None:
        self._tier = cache.disk
        self._cost = cache.cost
        self._waits: dict[Job, Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, job: Job) -> bool:
        return job in self._waits

    def begin(self, job: Job, prompt: Prompt, match: Match) -> None:
        """Let it wait if there are files for it. Mutates."""
        if self._tier is None:
            return
        now = perf_counter()
        if self._tier.will_open:
            # No longer than it would take to read the prompt.
            prefill_s = self._cost.prefill_s(match.cached_len, len(prompt))
            self._waits[job] = Wait(None, now, now + min(prefill_s, self._tier.deadline_s))
        elif (load := self._tier.load(prompt, match)) is not None:
            self._waits[job] = Wait(load, now, now + self._tier.deadline_s, 1)

    def over(self) -> list[Job]:
        """Those whose wait is over, one way or another."""
        if self._tier is None or not self._waits:
            return []
        now = perf_counter()
        return [
            job
            for job, wait in self._waits.items()
            if now > wait.until
            or (wait.load.is_over if wait.load is not None else not self._tier.is_opening)
        ]

    def go_on(self, job: Job, prompt: Prompt, match: Match) -> Wait | None:
        """It waited, and `match` is what RAM has now: let it wait for more, or return how it waited.
        Mutates."""
        wait = self._waits.pop(job)
        if wait.load is not None:
            wait.nbytes += wait.load.num_bytes_read
        if self._tier is None or perf_counter() > wait.until or wait.num_loads >= _MAX_LOADS:
            return wait
        load = self._tier.load(prompt, match)
        if load is None:
            return wait
        until = wait.began + self._tier.deadline_s
        self._waits[job] = Wait(load, wait.began, until, wait.num_loads + 1, wait.nbytes)
        return None

    def forget(self, job: Job) -> None:
        """Mutates; it may not wait."""
        self._waits.pop(job, None)

    def clear(self) -> None:
        """Mutates."""
        self._waits.clear()
