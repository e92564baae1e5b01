"""Writing: conversations that came to rest, as far as that spares a restart enough. The thread that
owns the arrays.

What goes first when they disagree: the day's limit, the promise (what rests is acknowledged), the
queue (what is on its way at once).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, time
from typing import Any

from keepwarm.cache.disk.index import File, Index
from keepwarm.cache.disk.root import DayOver, NoRoom, Other, Root
from keepwarm.cache.disk.shelf import Shelf, words
from keepwarm.cache.disk.spill import Draft, Spill, Where, full_group, keys_to
from keepwarm.cache.disk.stats import Phase
from keepwarm.cache.disk.store import Folder
from keepwarm.cache.disk.worker import Job
from keepwarm.cache.placement import LASTING, StopKind
from keepwarm.cache.space import Space
from keepwarm.cache.thinning import is_in
from keepwarm.cache.tree import Node
from keepwarm.errors import CacheFault

log = logging.getLogger("keepwarm.disk")

_PAUSE_S = 60.0  # when the day's bytes are written, before it is tried again
_DAY_S = 86400.0
_MAX_DUE = 1024
_HOUR_S = 3600.0


@dataclass(slots=True)
class Due:
    """The end of a conversation, to be written at `at` unless it goes on."""

    space: Space
    node: Node
    at: float


@dataclass(frozen=True, slots=True)
class Written:
    files: list[File]
    others_bytes: int


class Writing:
    """What is to be written, and when."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._cache = shelf.cache
        self._disk = shelf.disk
        self._due: dict[int, Due] = {}
        self._others: list[Other] = []  # of models that are not served, the oldest first
        self._paused_until = 0.0
        self._expires_at = 0.0
        self._next_at = 0.0  # nothing is due before
        shelf.when_off(self._due.clear)

    def open(self, others: list[Other]) -> None:
        """Mutates."""
        self._others = others

    @property
    def is_done(self) -> bool:
        """Whether all that is worth it was written."""
        return not self._due and not self._shelf.writer.num_open

    # When

    def stored(self, space: Space, node: Node) -> None:
        """There is something new at `node`; it may wait for the folder to be opened. Mutates."""
        if self._shelf.phase is Phase.OFF:
            return
        now = monotonic()
        for step in node.path():
            checkpoint = step.checkpoint
            if checkpoint is None or checkpoint.kind not in LASTING:
                self._due.pop(id(step), None)  # the conversation went on
            elif checkpoint.hits or len(step.children) > 1:
                self._due[id(step)] = Due(space, step, now)  # used a second time
                self._next_at = now
        self._due[id(node)] = Due(space, node, now + self._disk.idle_s)
        self._next_at = min(self._next_at, now + self._disk.idle_s)
        if len(self._due) > _MAX_DUE:
            del self._due[next(iter(self._due))]

    def rest(self) -> None:
        """What was stored rests from now on. Mutates."""
        for due in self._due.values():
            due.at = 0.0
        self._paused_until = self._next_at = 0.0

    def step(self) -> bool:
        """Give the writer the next files, once it has written the last ones. Whether there was
        anything."""
        now = monotonic()
        if self._shelf.writer.num_open or now < self._paused_until:
            return False
        self._expire(now)
        if now < self._next_at:  # asked at every step of the engine
            return False
        for due in sorted(self._due.values(), key=lambda due: due.at):
            if due.at > now:
                self._next_at = due.at
                return False
            drafts = self._drafts(due)
            if drafts and self._submit(drafts, due):
                return True
            self._due.pop(id(due.node), None)  # all is written, or it cannot be
        self._next_at = math.inf
        return False

    # What

    def _drafts(self, due: Due) -> list[Draft]:
        """The next files of one conversation; none when all that is worth it is there."""
        space, node = due.space, due.node
        if self._cache.space_of(space.name) is not space:
            self._shelf.counts["gone_before_written"] += 1
            return []
        # A reply that the next turn will not repeat is dropped; the prompt before it stays.
        while not is_in(space, node):
            assert node.parent is not None  # the root is always in
            node = node.parent
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
        return node.checkpoint.nbytes <= _row_bytes(space) * self._cache.placement.min_span

    def _drafts_to(self, space: Space, target: Node) -> list[Draft]:
        index, keys = self._shelf.index_for(space.name), keys_to(target)
        durable = index.durable_len(keys)
        spared_s = self._cache.cost.prefill_s(durable, target.end)
        if durable >= target.end or spared_s < self._disk.min_spared_s:
            return []
        index.use(keys, durable, time())  # not to be evicted for what follows it
        where = Where(self._shelf.folder.identity, self._shelf.space_id(space.name))
        drafts: list[Draft] = []
        room = self._disk.buffer_bytes
        try:
            for draft in Spill(space, target, where, self._max_rows(space)).drafts(index):
                if drafts and draft.nbytes > room:
                    break
                drafts.append(draft)
                room -= draft.nbytes
        except CacheFault as fault:
            self._shelf.counts["cannot_be_written"] += 1
            log.warning("a state is not written to disk: %s", fault)
        return drafts

    def _max_rows(self, space: Space) -> int:
        """Of one file: no more than a prefill step, nor than what may be on its way at once."""
        row_bytes, step = _row_bytes(space), self._cache.placement.prefill_step
        return max(1, min(step, self._disk.buffer_bytes // row_bytes)) if row_bytes else step

    # Writing

    def _submit(self, drafts: Sequence[Draft], due: Due) -> bool:
        """Mutates."""
        shelf = self._shelf
        if not shelf.is_same_model():
            return False
        nbytes = sum(draft.nbytes for draft in drafts)
        if not shelf.stage(nbytes):
            shelf.counts["no_room_in_ram"] += 1
            return False
        run = partial(write, shelf.folder, shelf.root, drafts, shelf.nbytes)
        done = partial(self._was_written, due, drafts, nbytes)
        shelf.writer.submit(run, done, held=[drafts, [draft.held for draft in drafts]])
        return True

    def _was_written(self, due: Due, drafts: Sequence[Draft], nbytes: int, job: Job) -> None:
        """Acknowledged: from now on a restart finds it."""
        shelf = self._shelf
        self._cache.ledger.unstage(nbytes)
        if job.error is not None:
            self._was_not_written(due, job.error)
            return
        if not shelf.is_on:
            return
        index, written = shelf.index_for(due.space.name), job.result
        for file, draft in zip(written.files, drafts, strict=True):
            shelf.counts["written_bytes"] += file.nbytes
            shelf.counts["written_files"] += 1
            if index.add(file, draft.path_keys):
                self._supersede(index, draft.path_keys)
            else:
                shelf.delete([file])

    def _supersede(self, index: Index, keys: bytes) -> None:
        tip = index.tree.walk(keys).path[-1]
        superseded = index.drop_superseded(tip, self._cache.placement)
        self._shelf.counts["superseded"] += len(superseded)
        self._shelf.delete(superseded)

    def _was_not_written(self, due: Due, error: Exception) -> None:
        shelf = self._shelf
        if isinstance(error, DayOver):
            shelf.counts["day_limit"] += 1
            log.info("nothing is written to the disk cache for now: %s", error)
            self._paused_until = monotonic() + _PAUSE_S
        elif isinstance(error, NoRoom):
            if not self._evict(error.excess, sparing=due):
                shelf.counts["no_room_on_disk"] += 1
                self._due.pop(id(due.node), None)
        else:
            shelf.turn_off(words(error))

    # Making room

    def _evict(self, nbytes: int, *, sparing: Due) -> bool:
        """Delete what was not used for the longest time, of this model or of one that is not served.
        False when there is not so much beside what was written of the same conversation: one that
        is larger than the folder may be would be written and deleted without end."""
        shelf, others = self._shelf, []
        index = shelf.index_for(sparing.space.name)
        spared = {id(node) for node in index.tree.walk(keys_to(sparing.node)).path}
        while nbytes > 0:
            oldest = self._oldest(spared)
            other = self._others[0] if self._others else None
            if other is not None and (oldest is None or other.used < oldest[1].last_used):
                others.append(self._others.pop(0))
                nbytes -= other.nbytes
            elif oldest is not None:
                dropped = oldest[0].drop_leaf(oldest[1])
                shelf.counts["evicted_files"] += len(dropped)
                shelf.delete(dropped)
                nbytes -= sum(file.nbytes for file in dropped)
            else:
                break
        if others:
            root = shelf.root
            shelf.on_folder(lambda _: root.delete_others(others))
        return nbytes <= 0

    def _oldest(self, spared: Collection[int] = ()) -> tuple[Index, Node] | None:
        """The leaf that was not used for the longest time."""
        leaves = [
            (index, leaf)
            for index in self._shelf.indexes.values()
            for leaf in index.leaves()
            if id(leaf) not in spared
        ]
        return min(leaves, key=lambda found: found[1].last_used, default=None)

    def _expire(self, now: float) -> None:
        """Delete what was not used for too long. Now and then."""
        if now < self._expires_at:
            return
        self._expires_at = now + _HOUR_S
        before = time() - self._disk.max_days * _DAY_S
        while (oldest := self._oldest()) is not None and oldest[1].last_used < before:
            dropped = oldest[0].drop_leaf(oldest[1])
            self._shelf.counts["expired_files"] += len(dropped)
            self._shelf.delete(dropped)
        root, old = self._shelf.root, [other for other in self._others if other.used < before]
        self._others = self._others[len(old) :]
        if old:
            self._shelf.counts["expired_files"] += len(old)
            self._shelf.on_folder(lambda _: root.delete_others(old))


def write(folder: Folder, root: Root, drafts: Sequence[Draft], own_bytes: int) -> Written:
    """On the writer's thread. Raises NoRoom and DayOver before anything is written, or OSError."""
    nbytes = sum(draft.file_bytes for draft in drafts)
    with root.locked():
        others_bytes = root.take_room(own_bytes, nbytes)
        root.take_bytes(nbytes)
        files = [folder.put(draft.put) for draft in drafts]
        folder.settle()
    return Written(files, others_bytes)


def _row_bytes(space: Space) -> int:
    """What a row of full attention weighs, over all layers."""
    if full_group(space.layout) is None:
        return 0
    blocks = (span.block for node in space.tree.nodes() for span in node.spans[0])
    block: Any = next(blocks, None)
    return int(block.nbytes // (block.hi - block.lo)) if block is not None else 0


def _is_reply(node: Node) -> bool:
    return node.checkpoint is not None and node.checkpoint.kind == StopKind.REPLY
