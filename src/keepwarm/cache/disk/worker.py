"""A thread that does one job after the other for the thread that owns the arrays. No mlx."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any


class Job:
    """What is to be done, and what came of it. `held` keeps arrays alive until `end`, which the
    owner of the arrays calls."""

    __slots__ = ("done", "error", "held", "result", "run")

    def __init__(
        self, run: Callable[[], Any], done: Callable[[Job], None], held: list[Any] | None = None
    ) -> None:
        self.run: Callable[[], Any] | None = run
        self.done = done
        self.held = held if held is not None else []
        self.result: Any = None
        self.error: Exception | None = None

    def end(self) -> None:
        """Owner's thread. Mutates."""
        self.run = None
        self.done(self)
        self.held.clear()


class Worker:
    """Jobs in their order, each ended on the thread that calls `drain`."""

    def __init__(self, name: str, on_done: Callable[[], None]) -> None:
        """`on_done` is called on the worker's thread after each job."""
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: deque[Job] = deque()
        self._began: float | None = None
        self.num_open = 0  # submitted and not drained; owner's thread
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, run: Callable[[], Any], done: Callable[[Job], None], held: list[Any] | None = None
    ) -> None:
        """Owner's thread."""
        self.num_open += 1
        self._jobs.put(Job(run, done, held))

    def drain(self) -> int:
        """End the jobs that are done; returns how many. Owner's thread."""
        count = 0
        while self._done:
            job = self._done.popleft()
            self.num_open -= 1
            count += 1
            job.end()
        return count

    @property
    def has_done(self) -> bool:
        return bool(self._done)

    @property
    def busy_s(self) -> float:
        """For how long the job at hand has been running."""
        began = self._began
        return monotonic() - began if began is not None else 0.0

    def stop(self, timeout_s: float) -> bool:
        """Take no more jobs and wait for the end of those there are; False when it takes longer."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._began = monotonic()
            try:
                assert job.run is not None
                job.result = job.run()
            except Exception as error:
                # Frames in a traceback would keep views of arrays alive.
                job.error = error.with_traceback(None)
                error.__context__ = error.__cause__ = None
            self._began = None
            self._done.append(job)
            del job
            self._on_done()
