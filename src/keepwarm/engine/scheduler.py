"""Who is read next, and who waits for a prefix that another one is computing. Pure, no mlx.

A   |system prompt ------|its question ------------|      being read
B   |system prompt ------|another question --|            waits until A has passed the
                         ^ shared                         checkpoint there, no longer
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from keepwarm.prompt.boundaries import Tokens, shared_len

# A stop that is made only because prompts part there costs one more pass over the weights; it
# must save the waiting prompts at least this many tokens in sum.
_MIN_SAVED = 8

# Rows that can be cut need no stop of their own where the next one is this near.
_NEAR = 512

# Waiting for less than this is not worth it.
_MIN_GAIN = 16

# One chunk in this many goes to whoever waits longest, so that short prompts starve nobody.
_TURN_OF_OLDEST = 4


@dataclass(slots=True, eq=False)
class Job:
    """What the scheduler knows of one prompt that is not read yet."""

    tokens: Tokens
    namespace: str
    arrived: float
    position: int = 0  # tokens that need not be read (again)
    stops: list[int] = field(default_factory=list)  # where its checkpoints will be, rising
    is_started: bool = False
    waits_for: int | None = None  # the position that another one is computing for it

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.position


class Scheduler:
    """Orders the prompts that are not read yet. Mutated by the engine only."""

    # How far into the queue it looks: what lies behind would wait anyway.
    WINDOW = 32

    def __init__(self, *, can_cut: bool, may_add_stops: bool) -> None:
        """`can_cut`: rows can be restored at any token, not only at a checkpoint.
        `may_add_stops`: a checkpoint may be made just because waiting prompts part there."""
        self._can_cut = can_cut
        self._may_add_stops = may_add_stops
        self._jobs: list[Job] = []  # by arrival
        self._shared: dict[tuple[int, int], int] = {}
        self._num_picks = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def started(self) -> list[Job]:
        return [job for job in self._jobs if job.is_started]

    @property
    def num_queued(self) -> int:
        return sum(not job.is_started for job in self._jobs)

    @property
    def window(self) -> list[Job]:
        """The first of those that were not begun, the oldest first."""
        return [job for job in self._jobs if not job.is_started][: self.WINDOW]

    def add(self, job: Job) -> None:
        """Mutates. A job that was here before (preempted) goes where its arrival puts it."""
        self._jobs.insert(bisect_right([other.arrived for other in self._jobs], job.arrived), job)

    def remove(self, job: Job) -> None:
        """Read, cancelled or failed: nobody waits for it any more. Mutates."""
        self._jobs.remove(job)
        self._shared = {pair: n for pair, n in self._shared.items() if id(job) not in pair}

    def clear(self) -> None:
        """Mutates."""
        self._jobs, self._shared = [], {}

    def ready(self, fitting: list[Job]) -> list[Job]:
        """Those of `fitting` (queued jobs that there is room for, the oldest first) that need not
        wait for another one. Notes in each job of the window what it waits for."""
        for job in self.window:
            job.waits_for = None
        ahead = [(job, self.partings(job)) for job in self.started]
        ready = []
        for job in fitting:
            goals = [self._goal(other, extra, job) for other, extra in ahead]
            job.waits_for = max((goal for goal in goals if goal is not None), default=None)
            if job.waits_for is None:
                ready.append(job)
            ahead.append((job, []))
        return ready

    def _goal(self, other: Job, extra: list[int], job: Job) -> int | None:
        """How far `job` can start once `other` has got there, if that is still ahead."""
        shared = min(self._shared_len(other, job), len(job.tokens) - 1)
        if shared - job.position < _MIN_GAIN:
            return None
        stops = sorted({*other.stops, *extra}) if extra else other.stops
        place = bisect_right(stops, shared)
        before = stops[place - 1] if place else 0
        # Rows that can be cut are there once the stop behind them was reached.
        is_cut = self._can_cut and before < shared and place < len(stops)
        goal, reached = (shared, stops[place]) if is_cut else (before, before)
        is_ahead = goal - job.position >= _MIN_GAIN and other.position < reached
        return goal if is_ahead else None

    def partings(self, job: Job) -> list[int]:
        """Where to stop a job besides its own stops, because the prompts that wait part there."""
        if not self._may_add_stops:
            return []
        saved: dict[int, int] = {}
        for other in self.window:
            shared = 0 if other is job else self._shared_len(job, other)
            if not job.position < shared < min(len(job.tokens), len(other.tokens)):
                continue
            place = bisect_right(job.stops, shared)
            start = max(other.position, job.stops[place - 1] if place else 0)
            if self._can_cut and place < len(job.stops) and job.stops[place] - shared < _NEAR:
                continue  # soon the rows are there anyway, and can be cut
            if shared > start:
                saved[shared] = saved.get(shared, 0) + shared - start
        return sorted(at for at, tokens in saved.items() if tokens >= _MIN_SAVED)

    def pick(self, ready: list[Job]) -> Job | None:
        """Whose chunk is read next, among the started and `ready` ones: the shortest rest first,
        and now and then the oldest. Counts its picks."""
        found = [*self.started, *ready]
        if not found:
            return None
        self._num_picks += 1
        if self._num_picks % _TURN_OF_OLDEST == 0:
            return min(found, key=lambda job: job.arrived)
        return min(found, key=lambda job: (job.remaining, job.arrived))

    def _shared_len(self, a: Job, b: Job) -> int:
        if a.namespace != b.namespace:
            return 0
        pair = _pair(a, b)
        if pair not in self._shared:
            self._shared[pair] = shared_len(a.tokens, b.tokens)
        return self._shared[pair]


def _pair(a: Job, b: Job) -> tuple[int, int]:
    return (id(a), id(b)) if id(a) < id(b) else (id(b), id(a))
