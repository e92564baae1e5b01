"""The disk tier as the cache sees it: tells what files would give, reads them into RAM, and writes
what rests. The thread that owns the arrays; two threads of its own read and write for it.

A fault here never reaches a request: a file that does not hold is a miss, and a disk that fails
turns the tier off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.load import Load
from keepwarm.cache.disk.opening import Opened, opened, plan_of
from keepwarm.cache.disk.reading import Reading
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.shelf import Shelf, words
from keepwarm.cache.disk.stats import DiskStats, Phase
from keepwarm.cache.disk.store import Taken
from keepwarm.cache.disk.worker import Job
from keepwarm.cache.disk.writing import Writing
from keepwarm.cache.explain import Match
from keepwarm.cache.space import Space
from keepwarm.cache.tree import Node
from keepwarm.prompt.boundaries import Prompt

if TYPE_CHECKING:
    from keepwarm.cache.store import PrefixCache

log = logging.getLogger("keepwarm.disk")


class Tier:
    """The files of one model, and what is on its way from and to them."""

    def __init__(self, cache: PrefixCache, disk: Disk, model: Any) -> None:
        """Never raises because of the folder: it is off then, and says why."""
        self.on_news: Callable[[], None] = lambda: None  # any thread: `step` has something to do
        self._news = Event()
        self._disk = disk
        self._has_files = False
        self._shelf = Shelf(
            cache, disk, disk.model if disk.model is not None else model, self._tell
        )
        self._reading = Reading(self._shelf)
        self._writing = Writing(self._shelf)
        self._open()

    def _tell(self) -> None:
        """On a worker's thread."""
        self._news.set()
        self.on_news()

    # Its life

    def _open(self) -> None:
        shelf = self._shelf
        try:
            plan = plan_of(shelf.cache, shelf.model)
            shelf.look_at_model()
            self._has_files = any(self._disk.path.glob("*/*-*"))
        except Exception as error:  # whatever a foreign model may raise when it is looked at
            shelf.turn_off(str(error))
            return
        shelf.writer.submit(partial(opened, plan, self._disk), self._opened, held=[plan])

    def _opened(self, job: Job) -> None:
        shelf = self._shelf
        if job.error is not None:
            shelf.turn_off(words(job.error), is_fault=not isinstance(job.error, Taken))
            return
        found: Opened = job.result
        if not self.is_opening:  # it was closed meanwhile
            found.folder.release()
            return
        shelf.open(found)
        self._writing.open(found.others)
        for line in found.stale:
            log.info("prompts of this model on disk are not used, %s", line)
        megabytes = shelf.nbytes / 1e6
        log.info("disk cache: %.1f MB, %d files in %s", megabytes, shelf.num_files, shelf.place)

    def wait_open(self, timeout_s: float = 60.0) -> bool:
        """Whether it is on before the time is over."""
        self.wait_until(lambda: not self.is_opening, timeout_s)
        return self._shelf.is_on

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Go on until it is so, or the time is over; whether it is."""
        until = monotonic() + timeout_s
        while not is_so() and monotonic() < until:
            self._news.clear()
            if not self.step():
                self._news.wait(min(0.05, max(0.0, until - monotonic())))
        return is_so()

    def rest(self) -> None:
        """Nobody will say that time passes: what was stored rests from now on."""
        self._writing.rest()
        self.step()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Write all that is worth a file, now; whether that was done in time."""
        self._writing.rest()
        return self.wait_until(lambda: self._writing.is_done, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is due and let go of the folder. May be called again; never raises."""
        if self._shelf.is_on and not self.flush(timeout_s):
            log.warning("the disk cache was closed before all was written")
        self._shelf.close(timeout_s)

    # One round

    def step(self) -> bool:
        """Take what the threads have done, and give them more. Whether there was anything. Never
        waits."""
        shelf = self._shelf
        has_worked = False
        with self._guarded():
            has_worked = bool(shelf.writer.drain() + shelf.reader.drain())
            if shelf.is_on:
                has_worked |= self._reading.step()
                has_worked |= self._writing.step()
        if not shelf.is_on:
            return has_worked
        slowest_s = max(shelf.writer.busy_s, shelf.reader.busy_s)
        if slowest_s > self._disk.hang_s:
            shelf.turn_off(f"the disk has not answered for {slowest_s:.0f} s")
        return has_worked

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A fault of the tier is never a request's fault: it turns the tier off."""
        try:
            yield
        except Exception as error:
            log.error("the disk cache failed", exc_info=error)
            self._shelf.turn_off(words(error))

    # What the cache tells and asks

    def stored(self, space: Space, node: Node) -> None:
        """There is something new at `node`. Mutates."""
        with self._guarded():
            self._writing.stored(space, node)

    def load(self, prompt: Prompt, match: Match) -> Load | None:
        """Begin to load what files give beyond `match`; None where that is nothing. `step` goes on
        with it. Mutates."""
        found = None
        with self._guarded():
            found = self._reading.load(prompt, match) if self._shelf.is_on else None
        return found if self._shelf.is_on else None

    def load_now(self, prompt: Prompt, match: Match) -> Load | None:
        """As `load`, and wait for it, but no longer than the deadline."""
        if self.will_open:
            self.wait_open(self.deadline_s)
        load = self.load(prompt, match)
        if load is not None:
            self.wait_until(lambda: load.is_over, self.deadline_s)
        return load

    def fetch(self, prompt: Prompt, match: Match, timeout_s: float) -> Load | None:
        """As `load_now`, for whoever asked for it: however long reading the tokens would take."""
        load = self._reading.load_held(prompt, match) if self._shelf.is_on else None
        if load is not None:
            self.wait_until(lambda: load.is_over, timeout_s)
        return load

    def nodes(self, namespace: str) -> list[Node]:
        """Where files begin, end and part."""
        index = self._shelf.index_of(namespace)
        return list(index.tree.nodes()) if index is not None else []

    # What it knows

    @property
    def is_opening(self) -> bool:
        return self._shelf.phase is Phase.OPENING

    @property
    def will_open(self) -> bool:
        """Whether there may be something once it is open."""
        return self.is_opening and self._has_files

    @property
    def off_because(self) -> str | None:
        return self._shelf.off_because

    @property
    def deadline_s(self) -> float:
        return self._disk.deadline_s

    def stats(self) -> DiskStats:
        """A reading."""
        shelf, counts = self._shelf, dict(self._shelf.counts)
        return DiskStats(
            phase=shelf.phase,
            off_because=shelf.off_because,
            folder=shelf.place,
            num_files=shelf.num_files,
            nbytes=shelf.nbytes,
            read_bytes=counts.pop("read_bytes", 0),
            written_bytes=counts.pop("written_bytes", 0),
            events=counts,
        )
