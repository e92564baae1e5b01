"""What reading and writing have in common: the folder of the model, what is in it, and whether the
tier is on. The thread that owns the arrays."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.index import File, Index
from keepwarm.cache.disk.opening import Opened, Shape, space_id
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.stats import Phase
from keepwarm.cache.disk.store import Folder
from keepwarm.cache.disk.worker import Job, Worker
from keepwarm.model.identity import Weights
from keepwarm.state.registry import Layout

if TYPE_CHECKING:
    from keepwarm.cache.disk.root import Root
    from keepwarm.cache.store import PrefixCache

log = logging.getLogger("keepwarm.disk")


class Shelf:
    """One model's files. It knows what each namespace has, and a writer that changes it."""

    def __init__(
        self, cache: PrefixCache, disk: Disk, model: Any, on_news: Callable[[], None]
    ) -> None:
        """`on_news` is called on the threads of the tier when a job is done."""
        self.cache = cache
        self.disk = disk
        self.model = model
        self.phase = Phase.OPENING
        self.off_because: str | None = None
        self.counts: Counter[str] = Counter()
        self.indexes: dict[str, Index] = {}
        self.other_bytes = 0  # in the folder, but in no index: files set aside
        self.writer = Worker("keepwarm-disk-write", on_news)
        self.reader = Worker("keepwarm-disk-read", on_news)
        self._opened: Opened | None = None
        self._weights: Weights | None = None
        self._on_off: list[Callable[[], None]] = []

    # On and off

    @property
    def is_on(self) -> bool:
        return self.phase is Phase.ON

    def look_at_model(self) -> None:
        """Remember whose weights these are. Mutates."""
        self._weights = Weights(self.model)

    def open(self, found: Opened) -> None:
        """Mutates."""
        self._opened, self.indexes = found, found.indexes
        self.counts.update({kind: count for kind, count in found.counts.items() if count})
        self.phase = Phase.ON

    def when_off(self, act: Callable[[], None]) -> None:
        """Call that when the tier is turned off. Mutates."""
        self._on_off.append(act)

    def turn_off(self, why: str, *, is_fault: bool = True) -> None:
        """From now on all is as without the tier. Mutates."""
        if self.phase is Phase.OFF:
            return
        self.phase, self.off_because = Phase.OFF, why
        self.counts["turned_off"] += is_fault
        log.log(logging.WARNING if is_fault else logging.INFO, "the disk cache is off: %s", why)
        for act in self._on_off:
            act()
        self.indexes = {}

    def is_same_model(self) -> bool:
        """Turns the tier off where the model has other weights than those it was opened for."""
        if self._weights is None or not self._weights.are_in(self.model):
            self.turn_off("the model's weights were replaced")
        return self.is_on

    def close(self, timeout_s: float) -> None:
        """Mutates; may be called again."""
        self.turn_off("closed", is_fault=False)
        ended = [worker.stop(timeout_s) for worker in (self.writer, self.reader)]
        self.writer.drain()
        self.reader.drain()
        if self._opened is not None and all(ended):
            self._opened.folder.release()
            self._opened = None

    # What there is

    @property
    def folder(self) -> Folder:
        assert self._opened is not None
        return self._opened.folder

    @property
    def root(self) -> Root:
        assert self._opened is not None
        return self._opened.root

    @property
    def place(self) -> str:
        return str(self._opened.folder.path if self._opened is not None else self.disk.path)

    @property
    def layout(self) -> Layout:
        layout = self.cache.layout
        assert layout is not None
        return layout

    def space_id(self, namespace: str) -> str:
        assert self._opened is not None
        return space_id(self._opened.salt, namespace)

    def index_of(self, namespace: str) -> Index | None:
        return self.indexes.get(self.space_id(namespace)) if self.is_on else None

    def index_for(self, namespace: str) -> Index:
        """Mutates: there is one from now on."""
        key, cache = self.space_id(namespace), self.cache
        if key not in self.indexes:
            shape = Shape.of(self.layout, cache.key_width, exact=cache.exact)
            self.indexes[key] = shape.index()
        return self.indexes[key]

    @property
    def nbytes(self) -> int:
        return self.other_bytes + sum(index.nbytes for index in self.indexes.values())

    @property
    def num_files(self) -> int:
        return sum(len(index.files) for index in self.indexes.values())

    # What changes

    def stage(self, nbytes: int) -> bool:
        """Have room for that much in RAM, if need be by evicting. Mutates."""
        ledger = self.cache.ledger
        if nbytes > ledger.free_bytes:
            allowed = ledger.held_bytes + ledger.free_bytes - nbytes
            if allowed < 0:
                return False
            self.cache.evict_to(allowed)
        return ledger.stage(nbytes)

    def drop_bad(self, name: str) -> None:
        """Set a file aside, and delete what cannot be reached without it. Mutates."""
        for index in self.indexes.values():
            dropped = index.drop_file(name)
            own = [file for file in dropped if file.name == name]
            if own:
                self.other_bytes += own[0].nbytes
                self.on_folder(lambda folder: folder.set_aside(name))
                self.delete([file for file in dropped if file.name != name])

    def delete(self, files: Sequence[File]) -> None:
        """They are in no index any more."""
        names = [file.name for file in files]
        if names:
            self.on_folder(lambda folder: folder.delete(names))

    def on_folder(self, act: Callable[[Folder], None]) -> None:
        """On the writer's thread, behind what it was given before."""
        if self.is_on:
            folder = self.folder
            self.writer.submit(lambda: act(folder), self._was_done)

    def _was_done(self, job: Job) -> None:
        if job.error is not None:
            self.turn_off(words(job.error))


def words(error: Exception) -> str:
    """For people."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error) or type(error).__name__
