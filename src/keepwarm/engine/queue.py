"""The requests whose prompts are not read to their end: what waits and what is being read.

Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from keepwarm.cache.explain import Match
from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.loading import Loading
from keepwarm.engine.scheduler import Job, Scheduler
from keepwarm.engine.sequence import Sequence
from keepwarm.events import Source
from keepwarm.prompt.boundaries import Prompt


class Queue:
    """Knows for each sequence how much of it the cache has, and lets the scheduler decide."""

    def __init__(self, cache: PrefixCache) -> None:
        layout = cache.layout
        is_cut = layout is not None and layout.can_cut and not cache.exact
        self._cache = cache
        self._scheduler = Scheduler(can_cut=is_cut, may_add_stops=not cache.exact)
        self._by_job: dict[Job, Sequence] = {}
        self._loading = Loading(cache)

    def __len__(self) -> int:
        return len(self._by_job)

    @property
    def sequences(self) -> list[Sequence]:
        return list(self._by_job.values())

    @property
    def started(self) -> list[Sequence]:
        return [self._by_job[job] for job in self._scheduler.started]

    @property
    def started_lengths(self) -> list[int]:
        """The tokens of each prompt that is being read."""
        return [len(job.tokens) for job in self._scheduler.started]

    @property
    def has_work(self) -> bool:
        """Whether any of them waits for nothing but its turn."""
        return len(self._by_job) > len(self._loading)

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_queued

    def prompt_of(self, sequence: Sequence) -> Prompt:
        """What is to be read: of a preempted sequence the reply too, where prefilled rows may
        stand for decoded ones."""
        return sequence.prompt if self._cache.exact else sequence.read

    def add(self, sequence: Sequence) -> None:
        """A new sequence, or one that was preempted. Mutates."""
        tokens = self.prompt_of(sequence).tokens
        sequence.job = Job(tokens, sequence.request.namespace, sequence.arrived)
        match = self._look_up(sequence)
        self._by_job[sequence.job] = sequence
        self._scheduler.add(sequence.job)
        self._loading.begin(sequence.job, match.prompt, match)

    def remove(self, sequence: Sequence) -> None:
        """Its prompt is read, or it is given up. Mutates; it may have left before."""
        if sequence.job is not None and self._by_job.pop(sequence.job, None) is not None:
            self._scheduler.remove(sequence.job)
            self._loading.forget(sequence.job)

    def clear(self) -> None:
        """Mutates."""
        self._by_job = {}
        self._scheduler.clear()
        self._loading.clear()

    def ready(self, fitting: Callable[[list[Job]], list[Job]]) -> list[Sequence]:
        """Those that may start now: there is room, and nobody is computing what they begin with.
        Looks anew at what those can start from who waited for another one. Mutates."""
        self._end_loads()
        window = [job for job in self._scheduler.window if job not in self._loading]
        waited = [job for job in window if job.waits_for is not None]
        ready = self._scheduler.ready(fitting(window))
        for job in waited:
            if job.waits_for is None:  # what it waited for is there, or will not come
                before = job.position
                self._look_up(self._by_job[job])
                if job.position > before:
                    self._by_job[job].source = Source.INFLIGHT
        return [self._by_job[job] for job in ready]

    def _end_loads(self) -> None:
        """Look up again what was loaded. Mutates."""
        for job in self._loading.over():
            sequence, before = self._by_job[job], job.position
            match = self._look_up(sequence)
            wait = self._loading.go_on(job, match.prompt, match)
            if wait is not None and wait.num_loads:
                sequence.waited_for_disk(perf_counter() - wait.began, wait.nbytes)
                if job.position > before:
                    sequence.source = Source.DISK

    def pick(self, ready: list[Sequence]) -> Sequence | None:
        """Whose chunk is read next, among those begun and `ready`. Counts its picks."""
        picked = self._scheduler.pick([s.job for s in ready if s.job is not None])
        return self._by_job[picked] if picked is not None else None

    def plan_stops(self, sequence: Sequence) -> None:
        """Stop where waiting prompts part, besides its own stops; what it stores may be what they
        wait for. Mutates the prefill."""
        job, prefill = sequence.job, sequence.prefill
        assert job is not None
        assert prefill is not None
        for position in self._scheduler.partings(job):
            prefill.stop_at(position)
        job.stops = prefill.stops
        prefill.is_awaited = any(other.waits_for is not None for other in self._scheduler.window)

    def _look_up(self, sequence: Sequence) -> Match:
        """Learn where it could start now, and where it would stop."""
        job = sequence.job
        assert job is not None
        match = self._cache.peek(self.prompt_of(sequence), namespace=job.namespace)
        stops = self._cache.stops(match, start=match.cached_len)
        job.position = match.cached_len
        job.stops = [stop.position for stop in stops if stop.kind is not StopKind.END]
        return match
