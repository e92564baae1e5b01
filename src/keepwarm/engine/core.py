"""The engine without its thread: `step()` admits, restores, prefills, decodes and finishes.

Everything here runs on the thread that owns the arrays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter, sleep
from typing import Any

import mlx.core as mx

from keepwarm.cache.store import PrefixCache
from keepwarm.engine import merging
from keepwarm.engine.batch import Batch, Broken, Group, Row, Token
from keepwarm.engine.grammar import Guides
from keepwarm.engine.pace import Pace
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.queue import Queue
from keepwarm.engine.reply import ReplyText, behind_text
from keepwarm.engine.request import DecodeMode, EngineSettings, Request, Sampling
from keepwarm.engine.room import Room
from keepwarm.engine.sampling import Draw
from keepwarm.engine.scoring import Scores, Scoring
from keepwarm.engine.sequence import OnEvent, Sequence
from keepwarm.engine.tally import Tally
from keepwarm.engine.warmth import Warmth
from keepwarm.errors import BadInput
from keepwarm.events import Done
from keepwarm.machine import return_spare_buffers
from keepwarm.model.defaults import own_sampling
from keepwarm.prompt.boundaries import Prompt

log = logging.getLogger("keepwarm.engine")

# mlx keeps freed buffers for reuse; given back now and then, or they pile up in odd sizes.
_STEPS_BETWEEN_CLEANING = 256
# Laying out the next step, or what is to be stored, holds the interpreter for milliseconds: who
# sends first tokens and ends of replies to clients gets it before.
_HAND_OVER_S = 2e-4


class Core:
    """All requests that were accepted, and the model that serves them.

    A request is in `queue` until its prompt is read, then in `_by_row` until its reply ends.
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
        can_merge = settings.decode is DecodeMode.BATCH and merging.can_batch(
            model, lambda: cache.fresh().caches
        )
        self.cache = cache
        self.tally = Tally()
        self.batch = Batch(model, can_merge=can_merge)
        self.queue = Queue(cache)
        self.warmth = Warmth(model, cache, settings.idle_prefill)
        self.sampling = own_sampling(model) or Sampling()  # of requests that do not say
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._guides = guides
        self._room = room
        self._eos_ids = frozenset(int(token) for token in tokenizer.eos_token_ids)
        self._pace = Pace(settings.max_stall_s, cache.placement.prefill_step)
        self._by_row: dict[Row, Sequence] = {}
        self._joining: list[Row] = []  # read in this round, and not yet in the batch
        self._num_steps = 0

    # What comes from outside

    def submit(self, request: Request, on_event: OnEvent) -> Sequence:
        """Accept a request. Mutates."""
        tokenizer = self._tokenizer
        detokenizer = behind_text(tokenizer) if request.continues_text else tokenizer.detokenizer
        reply = ReplyText(detokenizer, request.stop, request.markup)
        sequence = Sequence(request, on_event, reply)
        self.queue.add(sequence)
        return sequence

    def end_all(self, error: Exception) -> None:
        """Give every request up, whatever state the engine is in. Looks at no array. Mutates."""
        sequences = self._sequences()
        self._by_row, self._joining = {}, []
        self.batch.clear()
        self.queue.clear()
        for sequence in sequences:
            self.tally.ended("error", sequence.num_told)
            sequence.fail(error)

    @property
    def is_busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(len(self.queue) or self._by_row)

    @property
    def live_bytes(self) -> int:
        """Estimated, of all running sequences and of what is read ahead."""
        lengths = self.queue.started_lengths
        lengths += [row.live.position for row in self._joining]
        idle = self.warmth.idle.reading
        return self._room.live_bytes(self.batch, lengths + ([len(idle)] if idle else []))

    # One round

    def step(self) -> bool:
        """Do a little for everyone. Returns whether there was anything to do."""
        has_moved = self.cache.disk is not None and self.cache.disk.step()
        self._drop_cancelled()
        self._read_some()
        self._make_room()
        for group in list(self.batch.groups):
            self._decode(group)
        if self.is_busy:  # a request that waits for the disk alone leaves nothing to be done
            return has_moved or self.queue.has_work or bool(self._by_row)
        return has_moved or self.warmth.read_ahead(self._room, self._pace)

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
        picked = self.queue.pick(self._ready())
        if picked is not None and picked.prefill is None and not self._restore(picked):
            picked = self.queue.pick([])  # those that were begun go on
        if picked is not None:
            self.queue.plan_stops(picked)
        return picked

    def _ready(self) -> list[Sequence]:
        """The waiting ones that may start now."""
        num_active = len(self._by_row) + len(self.queue.started)
        if not self.queue.num_waiting or num_active >= self._settings.max_running:
            return []
        self.warmth.idle.pause()  # what it holds is for those who wait
        live_bytes = self.live_bytes
        return self.queue.ready(lambda window: self._room.fitting(window, live_bytes))

    # 2) restore

    def _restore(self, sequence: Sequence) -> bool:
        """Start a sequence; False when it cannot start now."""
        is_alone = not (self._by_row or self.queue.started)
        if not self._has_room_for(sequence) and not is_alone:
            return False
        is_new, prompt = sequence.is_new, self.queue.prompt_of(sequence)
        namespace, began = sequence.request.namespace, perf_counter()
        try:
            prefill = self._prefill_of(sequence, prompt, is_alone=is_alone)
            sequence.begin(prefill, began)
        except Exception as error:
            self._fail(sequence, error)
            return False
        if is_new:
            self.tally.matched(sequence)
            self.warmth.idle.came(prompt, namespace, sequence.cached_len)
        return True

    def _prefill_of(self, sequence: Sequence, prompt: Prompt, *, is_alone: bool) -> Prefill:
        request, can_speak = sequence.request, sequence.is_new and sequence.request.max_tokens > 0
        if request.scores_from is not None and sequence.scores is None:
            sequence.scores = Scores(
                self.cache, prompt, request.namespace, request.scores_from, request.num_score_top
            )
        if sequence.scores is not None and not sequence.scores.is_done:
            return Scoring(
                self._model, self.cache, prompt, sequence.scores, namespace=request.namespace
            )
        return Prefill(
            self._model,
            self.cache,
            prompt,
            namespace=request.namespace,
            # Only a lone request can count on idle time afterwards.
            is_read_ahead=self.warmth.reads_ahead and is_alone and len(self.queue) == 1,
            on_known=partial(self._say_at_once, sequence) if can_speak else None,
        )

    def _say_at_once(self, sequence: Sequence, logits: mx.array) -> None:
        """What the model says first was kept: whoever waits has it before the state that it goes
        on from is put together."""
        if sequence.say_at_once(logits, self._draw_of(sequence), self._eos_ids):
            sleep(_HAND_OVER_S)

    def _has_room_for(self, sequence: Sequence) -> bool:
        """Make room, if need be without what others hold, but with what it will start from."""
        prompt = self.queue.prompt_of(sequence)
        needed = self.live_bytes + self._room.needed_bytes(len(prompt))
        if self._room.has(needed):
            return self._room.make(needed)
        match = self.cache.peek(prompt, namespace=sequence.request.namespace)
        with self.cache.pin(match):
            if self._room.make(needed):
                return True
        self._unpin_all()
        return self._room.make(needed)

    def _unpin_all(self) -> None:
        """Live caches are copies: what they came from may go when room is short."""
        for sequence in self._sequences():
            sequence.unpin()

    # 3) prefill

    def _prefill(self, sequence: Sequence) -> None:
        """Read one chunk: a small one while others wait for their next token."""
        prefill = sequence.prefill
        assert prefill is not None
        start, began = prefill.live.position, perf_counter()
        try:
            if not prefill.is_done:
                prefill.advance(self._pace.chunk_len if self._by_row else None)
            num_read = prefill.live.position - start
            self._pace.observe(num_read, perf_counter() - began)
            self.tally.prefilled_tokens += num_read
            sequence.has_read()
            if prefill.is_done and sequence.request.max_tokens:
                self._make_row(sequence, prefill)
            elif prefill.is_done:
                self._finish({sequence: "length"})
        except Exception as error:
            self._fail(sequence, error)

    def _make_row(self, sequence: Sequence, prefill: Prefill) -> None:
        """The prompt is read: draw its first token."""
        row = Row(
            prefill.live,
            self._draw_of(sequence),
            prefill.logits,
            num_top=sequence.request.top_logprobs,
            replay=sequence.replay(exact=self.cache.exact),
            num_known=sequence.num_known,
        )
        row.is_apart = sequence.runs_apart
        row.start()
        self.queue.remove(sequence)
        sequence.run(row)
        self._by_row[row] = sequence
        self._joining.append(row)

    def _begin_decode(self) -> None:
        """Let the sequences whose prompts were read now run with the others."""
        if not self._joining:
            return
        max_padding = self._room.max_padding(self.live_bytes)
        rows, self._joining = self._told_first(self._joining), []
        if len(self._by_row) == len(rows) == 1 and not len(self.queue):
            self._by_row[rows[0]].keep_end()  # those of several would push each other out
        try:
            self.batch.add(rows, max_padding=max_padding)
        except Broken as fault:
            self._split_up(fault.unread, fault)
        return_spare_buffers(self._room.memory_bytes)

    def _told_first(self, rows: list[Row]) -> list[Row]:
        """Those who wait for a first token have it now, not after the step that reads it. Returns
        the rows that go on."""
        going = []
        for row in rows:
            sequence = self._by_row[row]
            try:
                sequence.foretell(row.first(), self._eos_ids)
            except Exception as error:
                self._fail(sequence, error)
            else:
                going.append(row)
        sleep(_HAND_OVER_S)
        return going

    def _draw_of(self, sequence: Sequence) -> Draw:
        """How its tokens are drawn: made once, and kept when it is preempted."""
        if sequence.draw is None:
            request = sequence.request
            guides, grammar = self._guides.within(request.namespace), request.grammar
            guide = guides.guide(grammar) if grammar is not None else None
            sampling = request.sampling or self.sampling
            sequence.draw = Draw(
                sampling, prompt=request.prompt.tokens, guide=guide, thought=request.thought
            )
        return sequence.draw

    # 4) decode

    def _decode(self, group: Group) -> None:
        """One token for each row of a group."""
        rows = list(group.rows)
        try:
            outcomes = group.step()
        except Exception as error:
            unread = group.unread()
            self._pass_on(rows, group.read)
            self._split_up({row: unread[row] for row in rows if row in self._by_row}, error)
            return
        self._pass_on(rows, outcomes)
        self._num_steps += 1
        if self._num_steps % _STEPS_BETWEEN_CLEANING == 0:
            return_spare_buffers(self._room.memory_bytes)

    def _pass_on(self, rows: list[Row], outcomes: Iterable[Token | Exception]) -> None:
        """Tell each its token; some replies end with it."""
        ended: dict[Sequence, str] = {}
        for row, outcome in zip(rows, outcomes):
            sequence = self._by_row[row]
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                reason = sequence.take(outcome, self._eos_ids)
            except Exception as error:
                self._fail(sequence, error)
            else:
                if reason is not None:
                    ended[sequence] = reason
        self._finish(ended)

    def _split_up(self, unread: Mapping[Row, int | None], error: Exception) -> None:
        """The states of these rows are lost. One that ran alone gets the error; of several, each
        is read again and runs by itself, so that only the one with the fault meets it."""
        sequences = [self._by_row[row] for row in unread]
        if len(sequences) == 1:
            self._fail(sequences[0], error)
            return
        log.error("a step of several replies failed; each of them goes on alone", exc_info=error)
        self._stop_running(*sequences)
        for sequence, token in zip(sequences, unread.values()):
            sequence.runs_apart = True
            self._read_again(sequence, token)

    def _make_room(self) -> None:
        """Before the running sequences grow: evict, let pins go, preempt the youngest."""
        while not self._room.make(self.live_bytes):
            self._unpin_all()
            if self._room.make(self.live_bytes):
                return
            active = [sequence for sequence in self._sequences() if sequence.prefill is not None]
            if self.warmth.idle.reading is not None:
                self.warmth.idle.give_up()
            elif len(active) > 1:
                self._preempt(max(active, key=lambda sequence: sequence.arrived))
            else:  # it has all the memory there is
                self._finish({s: "length" for s in active if s.row is not None})
                return

    def _preempt(self, sequence: Sequence) -> None:
        """Stop a sequence, keep what the cache takes of it, and read it again later."""
        self.tally.preemptions += 1
        drawn = None
        if sequence.row is not None:
            group = self.batch.group_of(sequence.row)
            drawn = group.unread()[sequence.row]
            group.take(sequence.row)
            self._stop_running(sequence)
            self._room.make(self.live_bytes)  # with what it gives back
            self.warmth.keep_reply(sequence)
        elif sequence.prefill is not None:
            self.queue.remove(sequence)
            self._room.make(self.live_bytes)
            sequence.prefill.keep()
        self._read_again(sequence, drawn)

    def _read_again(self, sequence: Sequence, drawn: int | None) -> None:
        sequence.pause(drawn=drawn)
        self.queue.add(sequence)

    # 5) finish

    def _finish(self, ended: Mapping[Sequence, str]) -> None:
        """Replies ended, for these reasons: say so, then store each for its next turn. Whoever asks
        for that at once waits until it is stored."""
        for sequence, reason in ended.items():
            self.queue.remove(sequence)
            self.tally.ended(reason, sequence.num_told)
            sequence.tell(Done(result=sequence.result(reason)))
        if ended:
            sleep(_HAND_OVER_S)
        for sequence in ended:
            try:
                self._keep(sequence)
            except Exception:  # it is told already, and the others go on
                log.exception("what was read for a reply could not be stored")
        self._stop_running(*ended)
        for sequence in ended:
            sequence.end()

    def _keep(self, sequence: Sequence) -> None:
        """Store what it has read, and said, for its next turn."""
        if sequence.row is not None:
            self.batch.group_of(sequence.row).take(sequence.row)
            self.warmth.keep_reply(sequence)
        elif sequence.prefill is not None:
            sequence.prefill.keep()

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """That request gets the error; the others go on."""
        if not isinstance(error, BadInput):  # the caller's own, who is told
            log.error("a request failed", exc_info=error)
        self._stop_running(sequence)
        self.queue.remove(sequence)
        self.tally.ended("error", sequence.num_told)
        sequence.fail(error)
        mx.clear_cache()

    def _stop_running(self, *sequences: Sequence) -> None:
        rows = [s.row for s in sequences if s.row is not None and s.row in self._by_row]
        for row in rows:
            del self._by_row[row]
        self.batch.drop(rows)

    def _drop_cancelled(self) -> None:
        self._finish({s: "cancelled" for s in self._sequences() if s.is_cancelled})

    def _sequences(self) -> list[Sequence]:
        return [*self.queue.sequences, *self._by_row.values()]
