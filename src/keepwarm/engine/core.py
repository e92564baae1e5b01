"""The engine without its thread: `step()` admits, restores, prefills, decodes and finishes.

Everything here runs on the thread that owns the arrays.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import mlx.core as mx

from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.engine import merging
from keepwarm.engine.batch import Batch, Group, Row
from keepwarm.engine.grammar import Guides
from keepwarm.engine.pace import Pace
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.reply import ReplyText
from keepwarm.engine.request import DecodeMode, EngineSettings, Request
from keepwarm.engine.room import Room
from keepwarm.engine.sampling import Draw
from keepwarm.engine.scheduler import Job, Scheduler
from keepwarm.engine.sequence import OnEvent, Sequence
from keepwarm.engine.tally import Tally
from keepwarm.engine.warmth import Warmth
from keepwarm.errors import Unavailable
from keepwarm.events import Done, Source
from keepwarm.prompt.boundaries import Prompt

log = logging.getLogger("keepwarm.engine")

# mlx keeps freed buffers for reuse; given back now and then, or they pile up in odd sizes.
_STEPS_BETWEEN_CLEANING = 256


class Core:
    """All requests that were accepted, and the model that serves them.

    A request is in `_by_job` until its prompt is read, then in `_by_row` until its reply ends.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        cache: PrefixCache,
        settings: EngineSettings,
        *,
        guides: Guides,
        room: Room,
    ) -> None:
        layout = cache.layout
        is_cut = layout is not None and layout.can_cut and not cache.exact
        can_merge = settings.decode is DecodeMode.BATCH and merging.can_batch(
            model, lambda: cache.fresh().caches
        )
        self.cache = cache
        self.tally = Tally()
        self.batch = Batch(model, can_merge=can_merge)
        self.scheduler = Scheduler(can_cut=is_cut, may_add_stops=not cache.exact)
        self.warmth = Warmth(model, cache, settings.idle_prefill)
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._guides = guides
        self._room = room
        self._eos_ids = frozenset(int(token) for token in tokenizer.eos_token_ids)
        self._pace = Pace(settings.max_stall_s, cache.placement.prefill_step)
        self._by_job: dict[Job, Sequence] = {}
        self._by_row: dict[Row, Sequence] = {}
        self._joining: list[Row] = []  # read in this round, and not yet in the batch
        self._num_steps = 0

    # What comes from outside

    def submit(self, request: Request, on_event: OnEvent) -> Sequence:
        """Accept a request. Mutates."""
        arrived = perf_counter()
        job = Job(request.prompt.tokens, request.namespace, arrived)
        reply = ReplyText(self._tokenizer.detokenizer, request.stop)
        sequence = Sequence(request, on_event, reply, job, arrived)
        self._queue(sequence)
        return sequence

    def end_all(self, error: Exception) -> None:
        """Give every request up. Mutates."""
        for sequence in self._sequences():
            self._fail(sequence, error)

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._by_job or self._by_row)

    @property
    def live_bytes(self) -> int:
        return self._room.live_bytes(self.batch, self._reading())

    # One round

    def step(self) -> bool:
        """Do a little for everyone. Returns whether there was anything to do."""
        self._drop_cancelled()
        self._read_some()
        self._make_room()
        for group in list(self.batch.groups):
            self._decode(group)
        return self.is_busy or self._idle()

    def _read_some(self) -> None:
        """Read chunk after chunk for as long as others may be held up: at least one, and one
        more while it may take as long as the last."""
        began = last = perf_counter()
        while (sequence := self._admit()) is not None:
            self._prefill(sequence)
            now = perf_counter()
            if now - began + now - last > self._settings.max_stall_s:
                break
            last = now
        self._begin_decode()

    # 1) admit: whose prompt is read on

    def _admit(self) -> Sequence | None:
        """The sequence whose turn it is. A new one starts from what the cache has of it."""
        waited = [job for job in self.scheduler.window if job.waits_for is not None]
        ready = self.scheduler.ready()
        for job in waited:
            if job.waits_for is None:  # what it waited for is there, or will not come
                self._by_job[job].source = Source.INFLIGHT
                self._look_up(job)
        picked = self.scheduler.pick(self._fitting(ready))
        if picked is None:
            return None
        sequence = self._by_job[picked]
        if not picked.is_started and not self._restore(picked, sequence):
            return None
        assert sequence.prefill is not None
        for position in self.scheduler.partings(picked):
            sequence.prefill.stop_at(position)
        picked.stops = sequence.prefill.stops
        return sequence

    def _fitting(self, ready: list[Job]) -> list[Job]:
        num_active = len(self._by_row) + len(self.scheduler.started)
        if num_active >= self._settings.max_running:
            return []
        return self._room.fitting(ready, self.live_bytes)

    def _queue(self, sequence: Sequence) -> None:
        self._by_job[sequence.job] = sequence
        self._look_up(sequence.job)
        self.scheduler.add(sequence.job)

    def _look_up(self, job: Job) -> None:
        """Learn where a prompt could start now, and where it would stop."""
        prompt = self._prompt_of(self._by_job[job])
        match = self.cache.peek(prompt, namespace=job.namespace)
        stops = self.cache.stops(match, start=match.cached_len)
        job.position = match.cached_len
        job.stops = [stop.position for stop in stops if stop.kind is not StopKind.END]

    def _prompt_of(self, sequence: Sequence) -> Prompt:
        """What is to be read: of a preempted sequence the reply too, where prefilled rows may
        stand for decoded ones."""
        return sequence.prompt if self.cache.exact else sequence.read

    # 2) restore

    def _restore(self, job: Job, sequence: Sequence) -> bool:
        """Start a sequence; False when it cannot start now."""
        self.warmth.idle.pause()
        needed = self._room.needed_bytes(len(job.tokens))
        if not self._room.make(self.live_bytes + needed) and (self.batch.groups or self._reading()):
            return False
        is_first = not sequence.timings.queue_s
        job.is_started = True
        try:
            prompt = self._prompt_of(sequence)
            sequence.begin(Prefill(self._model, self.cache, prompt, namespace=job.namespace))
        except Exception as error:
            self._fail(sequence, error)
            return False
        assert sequence.prefill is not None
        job.position = sequence.prefill.live.position
        if is_first:
            self.tally.matched(sequence)
            self.warmth.idle.came(prompt, job.namespace, sequence.cached_len)
        return True

    def _reading(self) -> list[int]:
        """The lengths of the prompts that live caches are held for, those in decode apart."""
        lengths = [len(job.tokens) for job in self.scheduler.started]
        lengths += [row.live.position for row in self._joining]
        idle = self.warmth.idle.reading
        return lengths if idle is None else [*lengths, len(idle)]

    # 3) prefill

    def _prefill(self, sequence: Sequence) -> None:
        """Read one chunk: a small one while others wait for their next token."""
        prefill = sequence.prefill
        assert prefill is not None
        start, began = prefill.live.position, perf_counter()
        try:
            prefill.advance(self._pace.chunk_len if self.batch.groups else None)
            num_read = prefill.live.position - start
            self._pace.observe(num_read, perf_counter() - began)
            self.tally.prefilled_tokens += num_read
            sequence.job.position = prefill.live.position
            sequence.tell_reading()
            if prefill.is_done:
                self._make_row(sequence, prefill)
        except Exception as error:
            self._fail(sequence, error)

    def _make_row(self, sequence: Sequence, prefill: Prefill) -> None:
        """The prompt is read: draw its first token."""
        row = Row(
            prefill.live,
            self._draw_of(sequence),
            prefill.logits,
            num_top=sequence.request.top_logprobs,
            replay=sequence.replay,
            num_known=sequence.num_known,
        )
        row.is_apart = sequence.runs_apart
        self._leave_queue(sequence)
        sequence.run(row)
        self._by_row[row] = sequence
        self._joining.append(row)

    def _begin_decode(self) -> None:
        """Let the sequences whose prompts were read now run with the others."""
        if self._joining:
            max_padding = self._room.max_padding(self.live_bytes)
            rows, self._joining = self._joining, []
            self.batch.add(rows, max_padding=max_padding)
            mx.clear_cache()

    def _draw_of(self, sequence: Sequence) -> Draw:
        """How its tokens are drawn: made once, and kept when it is preempted."""
        if sequence.draw is None:
            request = sequence.request
            guide = self._guides.guide(request.grammar) if request.grammar is not None else None
            sequence.draw = Draw(request.sampling, prompt=request.prompt.tokens, guide=guide)
        return sequence.draw

    def _leave_queue(self, sequence: Sequence) -> None:
        if self._by_job.pop(sequence.job, None) is not None:
            self.scheduler.remove(sequence.job)

    # 4) decode

    def _decode(self, group: Group) -> None:
        """One token for each row of a group."""
        sequences = [self._by_row[row] for row in group.rows]
        try:
            outcomes = group.step()
        except Exception as error:
            self._split_up(sequences, error)
            return
        ended: dict[Sequence, str] = {}
        for sequence, outcome in zip(sequences, outcomes):
            if isinstance(outcome, Exception):
                self._fail(sequence, outcome)
            elif (reason := sequence.take(outcome, self._eos_ids)) is not None:
                ended[sequence] = reason
        self._finish(ended)
        self._num_steps += 1
        if self._num_steps % _STEPS_BETWEEN_CLEANING == 0:
            mx.clear_cache()

    def _split_up(self, sequences: list[Sequence], error: Exception) -> None:
        """A step failed. One sequence that ran alone gets the error; of several, each is read
        again and runs by itself, so that only the one with the fault meets it."""
        if len(sequences) == 1:
            self._fail(sequences[0], error)
            return
        log.error("a step failed; each of its sequences goes on alone", exc_info=error)
        assert sequences[0].row is not None
        drawn = self.batch.group_of(sequences[0].row).drawn()
        self._stop_running(*sequences)
        for sequence, token in zip(sequences, drawn):
            sequence.runs_apart = True
            self._requeue(sequence, drawn=token)

    def _make_room(self) -> None:
        """Before the running sequences grow: evict, let pins go, preempt the youngest."""
        while not self._room.make(self.live_bytes):
            running = list(self._by_row.values())
            for sequence in running:
                sequence.unpin()
            if self._room.make(self.live_bytes):
                return
            started = [self._by_job[job] for job in self.scheduler.started]
            if self.warmth.idle.reading is not None:
                self.warmth.idle.pause()
            elif len(running) + len(started) > 1:
                self._preempt(max(running + started, key=lambda s: s.arrived))
            else:
                self._finish(dict.fromkeys(running, "length"))  # it has all the memory there is
                return

    def _preempt(self, sequence: Sequence) -> None:
        """Stop a sequence, keep what the cache takes of it, and read it again later."""
        self.tally.preemptions += 1
        drawn = None
        if sequence.row is not None:
            group = self.batch.group_of(sequence.row)
            drawn = group.drawn()[group.rows.index(sequence.row)]
            group.take(sequence.row)
            self.warmth.keep_reply(sequence)
            self._stop_running(sequence)
        elif sequence.prefill is not None:
            sequence.prefill.keep()
            self._leave_queue(sequence)
        self._requeue(sequence, drawn=drawn)

    def _requeue(self, sequence: Sequence, *, drawn: int | None) -> None:
        sequence.pause(drawn=drawn, replays=self.cache.exact)
        prompt = self._prompt_of(sequence)
        sequence.job = Job(prompt.tokens, sequence.request.namespace, sequence.arrived)
        self._queue(sequence)

    # 5) finish

    def _finish(self, ended: dict[Sequence, str]) -> None:
        """Replies ended, for these reasons: store each for its next turn, and say so."""
        for sequence in ended:
            if sequence.row is not None:
                self.batch.group_of(sequence.row).take(sequence.row)
                self.warmth.keep_reply(sequence)
            elif sequence.prefill is not None:
                sequence.prefill.keep()
        self._stop_running(*ended)
        for sequence, reason in ended.items():
            self._leave_queue(sequence)
            sequence.release()
            self.tally.ended(reason, len(sequence.tokens))
            sequence.tell(Done(result=sequence.result(reason)))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """That request gets the error; the others go on."""
        if not isinstance(error, Unavailable):  # at the end of the engine's life, nothing failed
            log.error("a request failed", exc_info=error)
        self._stop_running(sequence)
        self._leave_queue(sequence)
        self.tally.ended("error", len(sequence.tokens))
        sequence.fail(error)
        mx.clear_cache()

    def _stop_running(self, *sequences: Sequence) -> None:
        rows = [s.row for s in sequences if s.row is not None and s.row in self._by_row]
        self.batch.drop(rows)
        for row in rows:
            del self._by_row[row]

    def _drop_cancelled(self) -> None:
        self._finish({s: "cancelled" for s in self._sequences() if s.is_cancelled})

    def _sequences(self) -> list[Sequence]:
        return [*self._by_job.values(), *self._by_row.values()]

    # While nothing runs

    def _idle(self) -> bool:
        """Read a little of what may be asked for next; whether there was anything."""
        idle = self.warmth.idle
        if not idle.has_work:
            return False
        began, before = perf_counter(), idle.num_tokens
        try:
            idle.step(self._pace.chunk_len)
        except Exception:
            log.exception("idle prefill failed")
            return True
        if idle.num_tokens > before:
            self._pace.observe(idle.num_tokens - before, perf_counter() - began)
        return True
