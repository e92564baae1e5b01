"""The disk tier as the cache sees it: tells what files would give, reads them into RAM, and writes
what rests. The thread that owns the arrays; two threads of its own read and write for it.

A fault here never reaches a request: a file that does not hold is a miss, and a disk that fails
turns the tier off.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.format import BadFile
from keepwarm.cache.disk.index import File, Found, Index
from keepwarm.cache.disk.load import Load
from keepwarm.cache.disk.opening import Opened, Shape, opened, plan_of, space_id
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.spill import Draft, Spill, Where, full_group, keys_to
from keepwarm.cache.disk.stats import DiskStats, Phase
from keepwarm.cache.disk.store import Folder, Taken
from keepwarm.cache.disk.worker import Job, Worker
from keepwarm.cache.explain import Match
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import LASTING, StopKind
from keepwarm.cache.space import Space
from keepwarm.cache.thinning import is_in
from keepwarm.cache.tree import Node
from keepwarm.errors import CacheFault
from keepwarm.model.identity import Weights
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.registry import Layout

if TYPE_CHECKING:
    from keepwarm.cache.store import PrefixCache

log = logging.getLogger("keepwarm.disk")

# Less is not worth a file's reading.
_MIN_GAIN = 16
# What is believed of a disk before it was measured.
_GUESS_BYTES_PER_S = 500e6
_HANG_S = 60.0


@dataclass(slots=True)
class Due:
    """The end of a conversation, to be written at `at` unless it goes on."""

    space: Space
    node: Node
    at: float


class Tier:
    """The files of one model, and what is on its way from and to them."""

    def __init__(self, cache: PrefixCache, disk: Disk, model: Any) -> None:
        """Never raises because of the folder: it is off then, and says why."""
        self.phase = Phase.OPENING
        self.off_because: str | None = None
        self.counts: Counter[str] = Counter()
        self.on_news: Callable[[], None] = lambda: None  # any thread: `step` has something to do
        self._cache = cache
        self._disk = disk
        self._news = Event()
        self._writer = Worker("keepwarm-disk-write", self._tell)
        self._reader = Worker("keepwarm-disk-read", self._tell)
        self._folder: Folder | None = None
        self._salt = b""
        self._indexes: dict[str, Index] = {}
        self._due: dict[int, Due] = {}
        self._loads: list[Load] = []
        self._bytes_per_s = _GUESS_BYTES_PER_S
        self._like: list[Any] = []
        self._model = disk.model if disk.model is not None else model
        self._open()

    def _tell(self) -> None:
        """On a worker's thread."""
        self._news.set()
        self.on_news()

    # Its life

    def _open(self) -> None:
        try:
            plan = plan_of(self._cache, self._disk, self._model)
            self._weights = Weights(self._model)
            self._like = self._layout.leaves(self._cache.fresh().caches)
        except Exception as error:  # whatever a foreign model may raise when it is looked at
            self._turn_off(str(error))
            return
        self._writer.submit(partial(opened, plan, self._disk.files), self._opened, held=[plan])

    def _opened(self, job: Job) -> None:
        if job.error is not None:
            self._turn_off(_words(job.error), is_fault=not isinstance(job.error, Taken))
            return
        found: Opened = job.result
        self._folder, self._salt, self._indexes = found.folder, found.salt, found.indexes
        self.counts.update(found.counts)
        self.phase = Phase.ON
        log.info("disk cache: %s in %d files at %s", *self._words_of_size(), found.folder.path)

    def _words_of_size(self) -> tuple[str, int]:
        return f"{self.nbytes / 1e6:.1f} MB", self.num_files

    def _turn_off(self, why: str, *, is_fault: bool = True) -> None:
        """From now on all is as without it. Mutates."""
        if self.phase is Phase.OFF:
            return
        self.phase, self.off_because = Phase.OFF, why
        self.counts["turned_off"] += is_fault
        log.warning("the disk cache is off: %s", why)
        self._due.clear()
        for load in list(self._loads):
            self._end(load)
        self._indexes = {}

    def wait_open(self, timeout_s: float = 60.0) -> bool:
        """Whether it is on before the time is over."""
        self._wait_until(lambda: self.phase is not Phase.OPENING, timeout_s)
        return self.phase is Phase.ON

    def _wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        until = monotonic() + timeout_s
        while not is_so() and monotonic() < until:
            self._news.clear()
            if not self.step():
                self._news.wait(min(0.05, max(0.0, until - monotonic())))
        return is_so()

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is due and let go of the folder. May be called again; never raises."""
        if self.phase is Phase.ON and not self.flush(timeout_s):
            log.warning("the disk cache was closed before all was written")
        self._turn_off("closed", is_fault=False)
        ended = [worker.stop(timeout_s) for worker in (self._writer, self._reader)]
        self._writer.drain()
        self._reader.drain()
        if self._folder is not None and all(ended):
            self._folder.release()
            self._folder = None

    def rest(self) -> None:
        """Nobody will say that time passes: what was stored rests from now on."""
        for due in self._due.values():
            due.at = 0.0
        self.step()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Write all that rests or does not, if it is worth a file; whether that was done in time."""
        self.rest()
        return self._wait_until(lambda: not self._due and not self._writer.num_open, timeout_s)

    @property
    def is_opening(self) -> bool:
        return self.phase is Phase.OPENING

    @property
    def deadline_s(self) -> float:
        return self._disk.deadline_s

    def stats(self) -> DiskStats:
        """A reading."""
        path = str(self._folder.path if self._folder is not None else self._disk.path)
        counts = dict(self.counts)
        return DiskStats(
            phase=self.phase,
            off_because=self.off_because,
            folder=path,
            num_files=self.num_files,
            nbytes=self.nbytes,
            read_bytes=counts.pop("read_bytes", 0),
            written_bytes=counts.pop("written_bytes", 0),
            events=counts,
        )

    @property
    def nbytes(self) -> int:
        return sum(index.nbytes for index in self._indexes.values())

    @property
    def num_files(self) -> int:
        return sum(len(index.files) for index in self._indexes.values())

    # One round

    def step(self) -> bool:
        """Take what the threads have done, and give them more. Whether there was anything. Never
        waits."""
        has_worked = bool(self._writer.drain() + self._reader.drain())
        if self.phase is Phase.ON:
            try:
                has_worked |= self._read_on()
                has_worked |= self._write_on()
                self._watch()
            except Exception as error:
                log.error("the disk cache failed", exc_info=error)
                self._turn_off(_words(error))
        return has_worked

    def _watch(self) -> None:
        slowest = max(self._writer.busy_s, self._reader.busy_s)
        if slowest > _HANG_S:
            self._turn_off(f"the disk does not answer since {slowest:.0f} s")

    # Reading

    def find(self, prompt: Prompt, match: Match) -> Found | None:
        """What files would give beyond `match`; None when that is nothing, or would take longer
        than to read the tokens. Changes nothing."""
        index = self._indexes.get(self._space_id(match.namespace))
        if self.phase is not Phase.ON or index is None:
            return None
        keys = self._cache.keys_of(prompt)
        num_rows = self._num_rows(keys, match.namespace)
        found = index.find(keys, len(prompt) - 1, num_rows)
        if found is None or found.position - match.cached_len < _MIN_GAIN:
            return None
        prefill_s = self._cache.cost.prefill_s(match.cached_len, found.position)
        if found.nbytes / self._bytes_per_s > prefill_s and self.counts["loads"]:
            return None
        return found

    def _num_rows(self, keys: bytes, namespace: str) -> int:
        """How many rows of that path RAM has."""
        space = self._cache.space_of(namespace)
        if space is None or full_group(space.layout) is None:
            return 0
        return space.tree.walk(keys).matched

    def load(self, prompt: Prompt, match: Match) -> Load | None:
        """Begin to load what files give beyond `match`, or join a load of the same files; None where
        there is nothing to be loaded. `step` goes on with it. Mutates."""
        found = self.find(prompt, match)
        if found is None or not self._is_same_model():
            return None
        names = {file.name for file in found.files}
        for load in self._loads:
            if names & load.names:
                return load
        return self._begin(prompt, match.namespace, found)

    def load_now(self, prompt: Prompt, match: Match) -> Load | None:
        """As `load`, and wait for it, but no longer than the deadline."""
        load = self.load(prompt, match)
        if load is not None:
            self._wait_until(lambda: load.is_over, self._disk.deadline_s)
        return load

    def _begin(self, prompt: Prompt, namespace: str, found: Found) -> Load | None:
        cache, width = self._cache, self._cache.key_width
        keys = cache.keys_of(prompt)
        pin = self._pin(keys, namespace)
        nbytes = sum(file.header.payload_bytes for file in found.files)
        if not self._stage(nbytes):
            pin.release()
            self.counts["no_room"] += 1
            return None
        path_keys = keys[: found.position * width]
        load = Load(prompt, namespace, found, path_keys, pin, nbytes)
        self._loads.append(load)
        self.counts["loads"] += 1
        return load

    def _is_same_model(self) -> bool:
        """Turns the tier off where the model has other weights than those it was opened for."""
        if not self._weights.are_in(self._model):
            self._turn_off("the model's weights were replaced")
        return self.phase is Phase.ON

    def _pin(self, keys: bytes, namespace: str) -> Pin:
        """Hold what RAM has of that path: it is not loaded."""
        pin, space = Pin(), self._cache.space_of(namespace)
        walk = space.tree.walk(keys) if space is not None else None
        if walk is not None and walk.path:
            pin.hold(walk.path[-1], walk.matched)
        return pin

    def _stage(self, nbytes: int) -> bool:
        """Have room for that much in RAM, if need be by evicting. Mutates."""
        ledger = self._cache.ledger
        if nbytes > ledger.free_bytes:
            allowed = ledger.held_bytes + ledger.free_bytes - nbytes
            if allowed < 0:
                return False
            self._cache.evict_to(allowed)
        return ledger.stage(nbytes)

    def _read_on(self) -> bool:
        has_worked = False
        for load in list(self._loads):
            for file in load.make_some():
                get = load.get(file)
                held: list[Any] = [get]
                self._reader.submit(
                    partial(self._own_folder.get, get), partial(self._was_read, load, file), held
                )
                has_worked = True
        return has_worked

    def _was_read(self, load: Load, file: File, job: Job) -> None:
        if job.error is not None:
            self._spoil(load, file, job.error)
            return
        load.num_read += 1
        load.num_bytes_read += job.result
        self.counts["read_bytes"] += job.result
        if load.num_read == len(load.found.files) and not load.is_over:
            self._finish(load)

    def _spoil(self, load: Load, file: File, error: Exception) -> None:
        """A file could not be read: nothing of the load is used."""
        self._end(load)
        if isinstance(error, BadFile):
            self.counts[f"bad_{error.kind}"] += 1
            log.warning("%s is not used: %s", file.name, error)
            self._drop_bad(file.name)
        else:
            self._turn_off(_words(error))

    def _drop_bad(self, name: str) -> None:
        """Set a file aside, and delete what cannot be reached without it."""
        for index in self._indexes.values():
            dropped = [file.name for file in index.drop_file(name)]
            if name in dropped:
                dropped.remove(name)
                self._on_folder(lambda folder: folder.set_aside(name))
                self._delete(dropped)

    def _finish(self, load: Load) -> None:
        """All was read, and verified on the way: it becomes a normal insert."""
        cache = self._cache
        try:
            loaded = load.loaded(self._layout, self._like)
        except CacheFault as fault:
            self._spoil(load, load.found.files[-1], BadFile("layout", str(fault)))
            return
        self._release(load)
        kind = StopKind(load.found.stop) if load.found.stop else StopKind.STEP
        done = cache.put_loaded(load.prompt, loaded, kind, load.namespace)
        if done.is_stored:
            load.position = done.position
            seconds = perf_counter() - load.began
            self._bytes_per_s += 0.3 * (load.found.nbytes / max(seconds, 1e-6) - self._bytes_per_s)
            self.counts["loaded_tokens"] += done.position
            self._used(load)
            log.debug(
                "loaded %d tokens, %d bytes, in %.3f s", done.position, load.found.nbytes, seconds
            )
        else:
            self.counts["load_refused"] += 1
        self._end(load)

    def _used(self, load: Load) -> None:
        index = self._indexes.get(self._space_id(load.namespace))
        if index is not None:
            now = time()
            names = index.use(load.path_keys, load.found.position, now)
            self._on_folder(lambda folder: folder.touch(names, now))

    def _release(self, load: Load) -> None:
        self._cache.ledger.unstage(load.staged_bytes)
        load.staged_bytes = 0
        load.pin.release()

    def _end(self, load: Load) -> None:
        if load in self._loads:
            self._loads.remove(load)
            self._release(load)
            load.ended = perf_counter()
            load.is_over = True
            load.arrays.clear()

    # Writing

    def stored(self, space: Space, node: Node) -> None:
        """There is something new at `node`. Mutates."""
        if self.phase is not Phase.ON:
            return
        now = monotonic()
        for step in node.path():
            if not self._is_shared(step):
                self._due.pop(id(step), None)  # the conversation went on
            elif step.checkpoint is not None and (step.checkpoint.hits or len(step.children) > 1):
                self._due.setdefault(id(step), Due(space, step, now))
        self._due[id(node)] = Due(space, node, now + self._disk.idle_s)

    @staticmethod
    def _is_shared(node: Node) -> bool:
        return node.checkpoint is not None and node.checkpoint.kind in LASTING

    def _write_on(self) -> bool:
        """Give the writer the next files, once it has written the last ones."""
        if self._writer.num_open:
            return False
        now = monotonic()
        for due in sorted(self._due.values(), key=lambda due: due.at):
            if due.at > now:
                return False
            drafts = self._drafts(due)
            if drafts and self._submit(drafts, due.space):
                return True
            self._due.pop(id(due.node), None)  # all is written, or it cannot be
        return False

    def _drafts(self, due: Due) -> list[Draft]:
        """The next files of one conversation; none when all that is worth it is there."""
        space, node = due.space, due.node
        is_there = self._cache.space_of(space.name) is space and is_in(space, node)
        if not is_there:
            self.counts["gone_before_written"] += 1
            return []
        for target in self._targets(space, node):
            if drafts := self._drafts_to(space, target):
                return drafts
        return []

    def _targets(self, space: Space, node: Node) -> list[Node]:
        """Where a restart should find the conversation that ends at `node`."""
        if space.can_cut and not space.window_groups:
            return [node]
        marked = [step for step in node.path() if step.checkpoint is not None]
        tip = marked[-1:]
        if len(marked) > 1 and _is_reply(marked[-1]) and self._is_cheap(space, marked[-2]):
            return [marked[-2], *tip]  # the same may be asked again, or the reply written otherwise
        return tip

    def _is_cheap(self, space: Space, node: Node) -> bool:
        """Whether a snapshot weighs no more than the rows of the least span."""
        assert node.checkpoint is not None
        return node.checkpoint.nbytes <= self._row_bytes(space) * self._cache.placement.min_span

    def _drafts_to(self, space: Space, target: Node) -> list[Draft]:
        index = self._index(space)
        durable = index.durable_len(keys_to(target))
        spared_s = self._cache.cost.prefill_s(durable, target.end)
        if durable >= target.end or spared_s < self._disk.min_spared_s:
            return []
        where = Where(self._own_folder.identity, self._space_id(space.name))
        drafts: list[Draft] = []
        room = self._disk.buffer_bytes
        try:
            for draft in Spill(space, target, where, self._max_rows(space)).drafts(index):
                if drafts and draft.nbytes > room:
                    break
                drafts.append(draft)
                room -= draft.nbytes
        except CacheFault as fault:
            self.counts["cannot_be_written"] += 1
            log.warning("a state is not written to disk: %s", fault)
        return drafts

    def _max_rows(self, space: Space) -> int:
        """Of one file: no more than a prefill step, nor than what may be on its way at once."""
        row_bytes, step = self._row_bytes(space), self._cache.placement.prefill_step
        return max(1, min(step, self._disk.buffer_bytes // row_bytes)) if row_bytes else step

    def _row_bytes(self, space: Space) -> int:
        """What a row of full attention weighs, over all layers."""
        if full_group(space.layout) is None:
            return 0
        blocks = (s.block for node in space.tree.nodes() for s in node.spans[0])
        block = next(blocks, None)
        return block.nbytes // (block.hi - block.lo) if block is not None else 0

    def _submit(self, drafts: Sequence[Draft], space: Space) -> bool:
        if not self._is_same_model():
            return False
        nbytes = sum(draft.nbytes for draft in drafts)
        held: list[Any] = [drafts, [draft.held for draft in drafts]]
        if not self._stage(nbytes):
            self.counts["no_room"] += 1
            return False
        self._writer.submit(
            partial(_put_all, self._own_folder, drafts),
            partial(self._was_written, space, drafts, nbytes),
            held,
        )
        return True

    def _was_written(self, space: Space, drafts: Sequence[Draft], nbytes: int, job: Job) -> None:
        """Acknowledged: from now on a restart finds it."""
        self._cache.ledger.unstage(nbytes)
        if job.error is not None:
            self._turn_off(_words(job.error))
            return
        if self.phase is not Phase.ON:
            return
        index = self._index(space)
        files: list[File] = job.result
        for file, draft in zip(files, drafts, strict=True):
            self.counts["written_bytes"] += file.nbytes
            self.counts["written_files"] += 1
            if not index.add(file, draft.path_keys):
                self._delete([file.name])
                continue
            tip = index.tree.walk(draft.path_keys).path[-1]
            superseded = index.drop_superseded(tip, self._cache.placement)
            self.counts["superseded"] += len(superseded)
            self._delete([old.name for old in superseded])

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._on_folder(lambda folder: folder.delete(names))

    def _on_folder(self, act: Callable[[Folder], None]) -> None:
        folder = self._folder
        if folder is not None and self.phase is Phase.ON:
            self._writer.submit(lambda: act(folder), self._was_done)

    def _was_done(self, job: Job) -> None:
        if job.error is not None:
            self._turn_off(_words(job.error))

    # Places

    @property
    def _layout(self) -> Layout:
        layout = self._cache.layout
        assert layout is not None
        return layout

    def _space_id(self, namespace: str) -> str:
        return space_id(self._salt, namespace)

    @property
    def _own_folder(self) -> Folder:
        assert self._folder is not None
        return self._folder

    def _index(self, space: Space) -> Index:
        key = self._space_id(space.name)
        if key not in self._indexes:
            cache = self._cache
            shape = Shape.of(self._layout, cache.key_width, exact=cache.exact)
            self._indexes[key] = shape.index()
        return self._indexes[key]


def _put_all(folder: Folder, drafts: Sequence[Draft]) -> list[File]:
    """On the writer's thread. Raises OSError."""
    files = [folder.put(draft.put) for draft in drafts]
    folder.settle()
    return files


def _is_reply(node: Node) -> bool:
    return node.checkpoint is not None and node.checkpoint.kind == StopKind.REPLY


def _words(error: Exception) -> str:
    """For people."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error) or type(error).__name__
