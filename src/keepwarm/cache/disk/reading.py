"""Reading: what files would give for a prompt, and loading it into RAM beside all else. The thread
that owns the arrays."""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter, time
from typing import Any

from keepwarm.cache.disk.format import BadFile
from keepwarm.cache.disk.index import File, Found
from keepwarm.cache.disk.load import Load
from keepwarm.cache.disk.shelf import Shelf, words
from keepwarm.cache.disk.spill import full_group
from keepwarm.cache.disk.worker import Job
from keepwarm.cache.explain import Match
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import StopKind
from keepwarm.errors import CacheFault
from keepwarm.prompt.boundaries import Prompt

log = logging.getLogger("keepwarm.disk")

# Less is not worth reading a file.
_MIN_GAIN = 16
# What is believed of a disk before it was measured.
_GUESS_BYTES_PER_S = 500e6
_NEW_SHARE = 0.3  # of a new measurement in what is believed


class Reading:
    """Loads that are on their way."""

    def __init__(self, shelf: Shelf) -> None:
        self.loads: list[Load] = []
        self.bytes_per_s = _GUESS_BYTES_PER_S
        self._shelf = shelf
        self._cache = shelf.cache
        self._like: list[Any] = []  # live leaves of the model
        shelf.when_off(self.give_up)

    def give_up(self) -> None:
        """Whoever waits is read cold. Mutates."""
        for load in list(self.loads):
            self._end(load)

    # What there is. Changes nothing.

    def find(self, prompt: Prompt, match: Match) -> Found | None:
        """What files would give beyond `match`; None when that is nothing, or would take longer
        than to read the tokens."""
        found = self._held(prompt, match)
        if found is None or found.position - match.cached_len < _MIN_GAIN:
            return None
        prefill_s = self._cache.cost.prefill_s(match.cached_len, found.position)
        is_slow = found.nbytes / self.bytes_per_s > prefill_s
        # The first one measures the disk.
        return None if is_slow and self._shelf.counts["loads"] else found

    def _held(self, prompt: Prompt, match: Match) -> Found | None:
        """What files have beyond `match`."""
        index = self._shelf.index_of(match.namespace) if self._shelf.is_on else None
        if index is None:
            return None
        keys = self._cache.keys_of(prompt)
        found = index.find(keys, len(prompt) - 1, self._num_rows(keys, match.namespace))
        return found if found is not None and found.position > match.cached_len else None

    def _num_rows(self, keys: bytes, namespace: str) -> int:
        """How many rows of that path RAM has."""
        space = self._cache.space_of(namespace)
        if space is None or full_group(space.layout) is None:
            return 0
        return space.tree.walk(keys).matched

    # Loading

    def load(self, prompt: Prompt, match: Match) -> Load | None:
        """Begin to load what files give beyond `match`, or join a load of the same files; None where
        there is nothing to be loaded. `step` goes on with it. Mutates."""
        return self._load(prompt, match, self.find(prompt, match))

    def load_held(self, prompt: Prompt, match: Match) -> Load | None:
        """As `load`, whether or not it takes longer than to read the tokens. Mutates."""
        return self._load(prompt, match, self._held(prompt, match))

    def _load(self, prompt: Prompt, match: Match, found: Found | None) -> Load | None:
        if found is None or not self._shelf.is_same_model():
            return None
        names = found.names
        for load in self.loads:
            if names & load.names:
                return load
        return self._begin(prompt, match.namespace, found)

    def _begin(self, prompt: Prompt, namespace: str, found: Found) -> Load | None:
        keys = self._cache.keys_of(prompt)
        pin = self._pin(keys, namespace)
        nbytes = sum(use.file.header.payload_bytes for use in found.uses)
        if not self._shelf.stage(nbytes):
            pin.release()
            self._shelf.counts["no_room_in_ram"] += 1
            return None
        path_keys = keys[: found.position * self._cache.key_width]
        load = Load(prompt, namespace, found, path_keys, pin, nbytes)
        self.loads.append(load)
        self._shelf.counts["loads"] += 1
        return load

    def _pin(self, keys: bytes, namespace: str) -> Pin:
        """Hold what RAM has of that path: it is not loaded."""
        pin, space = Pin(), self._cache.space_of(namespace)
        walk = space.tree.walk(keys) if space is not None else None
        if walk is not None and walk.path:
            pin.hold(walk.path[-1], walk.matched)
        return pin

    def step(self) -> bool:
        """Make some buffers, and have those filled that are there. Whether there was anything."""
        has_worked = False
        for load in list(self.loads):
            for use in load.make_some():
                get = load.get(use)
                run, done = (
                    partial(self._shelf.folder.get, get),
                    partial(self._was_read, load, use.file),
                )
                self._shelf.reader.submit(run, done, held=[get])
                has_worked = True
        return has_worked or any(load.is_making for load in self.loads)

    def _was_read(self, load: Load, file: File, job: Job) -> None:
        if load.is_over:
            return
        if job.error is not None:
            self._spoil(load, file, job.error)
            return
        load.num_read += 1
        load.num_bytes_read += job.result
        self._shelf.counts["read_bytes"] += job.result
        if load.num_read == len(load.found.uses):
            self._finish(load)

    def _spoil(self, load: Load, file: File, error: Exception) -> None:
        """A file could not be read: nothing of the load is used."""
        self._end(load)
        if isinstance(error, BadFile):
            self._shelf.counts[f"bad_{error.kind}"] += 1
            log.warning("%s is not used: %s", file.name, error)
            self._shelf.drop_bad(file.name)
        else:
            self._shelf.turn_off(words(error))

    def _finish(self, load: Load) -> None:
        """All was read, and verified on the way: it becomes a normal insert."""
        shelf, cache, seconds = self._shelf, self._cache, perf_counter() - load.began
        self.bytes_per_s += _NEW_SHARE * (
            load.num_bytes_read / max(seconds, 1e-6) - self.bytes_per_s
        )
        if not self._like:
            self._like = shelf.layout.leaves(cache.fresh().caches)
        try:
            loaded = load.loaded(shelf.layout, self._like)
        except CacheFault as fault:
            self._spoil(load, load.found.uses[-1].file, BadFile("layout", str(fault)))
            return
        self._release(load)
        kind = _stop_kind(load.found.stop)
        done = cache.put_loaded(load.prompt, loaded, kind, load.namespace)
        if done.is_stored:
            load.position = done.position
            shelf.counts["loaded_tokens"] += done.position
            self._was_used(load)
        else:
            shelf.counts["load_refused"] += 1
        log.debug("%d tokens, %d bytes in %.3f s", done.position, load.num_bytes_read, seconds)
        self._end(load)

    def _was_used(self, load: Load) -> None:
        index, now = self._shelf.index_of(load.namespace), time()
        if index is not None:
            names = index.use(load.path_keys, load.found.position, now)
            self._shelf.on_folder(lambda folder: folder.touch(names, now))

    def _release(self, load: Load) -> None:
        self._cache.ledger.unstage(load.staged_bytes)
        load.staged_bytes = 0
        load.pin.release()

    def _end(self, load: Load) -> None:
        if load in self.loads:
            self.loads.remove(load)
            self._release(load)
            load.ended = perf_counter()
            load.is_over = True
            load.arrays.clear()


def _stop_kind(name: str) -> StopKind:
    """A file may be of a keepwarm that knew other kinds."""
    try:
        return StopKind(name)
    except ValueError:
        return StopKind.STEP
