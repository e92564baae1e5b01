"""One request on its way through the engine. Engine thread, but for `cancel`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter

import mlx.core as mx
import numpy as np

from keepwarm.cache.explain import Reason
from keepwarm.engine.batch import Row, Token
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.reply import ReplyText
from keepwarm.engine.request import Request
from keepwarm.engine.sampling import Draw
from keepwarm.engine.scheduler import Job
from keepwarm.engine.scoring import Scores
from keepwarm.events import Delta, Event, Failed, Reading, Result, Source, Timings
from keepwarm.prompt.boundaries import Prompt

log = logging.getLogger("keepwarm.engine")

OnEvent = Callable[[Event], None]


@dataclass(eq=False)
class Sequence:
    """A request, what was generated for it so far, and what it holds."""

    request: Request
    on_event: OnEvent
    reply: ReplyText
    job: Job | None = None  # while its prompt is not read
    arrived: float = field(default_factory=perf_counter)
    is_cancelled: bool = False  # set on any thread, seen between two chunks
    prefill: Prefill | None = None
    draw: Draw | None = None
    scores: Scores | None = None  # of the prompt, where asked for
    row: Row | None = None
    tokens: list[int] = field(default_factory=list)
    drawn: int | None = None  # before it was preempted, and not passed on
    num_known: int = 0  # tokens that are generated again, and were passed on before
    runs_apart: bool = False  # a step together with others failed
    source: Source = Source.NONE
    disk_bytes: int = 0  # what was read from the disk for it
    cached_len: int = 0
    reason: Reason = Reason.COLD
    timings: Timings = field(default_factory=Timings)
    _decoding_since: float = 0.0
    _foretold: int | None = None  # passed on before the model has read it

    @property
    def prompt(self) -> Prompt:
        return self.request.prompt

    @property
    def read(self) -> Prompt:
        """The prompt and the reply so far."""
        return self.prompt.extended(self.tokens) if self.tokens else self.prompt

    @property
    def num_told(self) -> int:
        """The tokens of the reply that were passed on."""
        return len(self.tokens) + (self._foretold is not None)

    def cancel(self) -> None:
        """Any thread."""
        self.is_cancelled = True

    def tell(self, event: Event) -> None:
        """Pass an event on; nobody to hear it means the request is given up."""
        try:
            self.on_event(event)
        except Exception:
            log.exception("an event could not be delivered; the request is cancelled")
            self.is_cancelled = True

    @property
    def is_new(self) -> bool:
        """Whether nothing was done for it yet."""
        return not self.timings.queue_s

    def begin(self, prefill: Prefill, began: float) -> None:
        """The prompt is being read since `began`, perhaps for the second time. Mutates."""
        self.prefill = prefill
        if self.is_new:
            load_s = self.timings.load_s
            prefill.timings.load_s = load_s
            prefill.timings.queue_s = max(began - self.arrived - load_s, 1e-9)
            prefill.timings.first_token_s = self.timings.first_token_s
            self.timings = prefill.timings
            self.cached_len, self.reason = prefill.cached_len, prefill.reason
            if not self.cached_len:
                self.source = Source.NONE
            elif self.source is Source.NONE:
                self.source = Source.RAM
        else:
            self.timings.lookup_s += prefill.timings.lookup_s
            self.timings.restore_s += prefill.timings.restore_s
            prefill.timings = self.timings
        self.has_read()

    def waited_for_disk(self, seconds: float, nbytes: int) -> None:
        """Mutates."""
        if self.is_new:
            self.timings.load_s += seconds
            self.disk_bytes += nbytes

    def has_read(self) -> None:
        """The prompt was read up to where the prefill stands: note it and tell, unless the reply
        has begun and nothing is left to be read. Mutates."""
        assert self.prefill is not None
        if self.job is not None:
            self.job.is_started, self.job.position = True, self.prefill.live.position
        total = len(self.prompt)
        position = min(self.prefill.live.position, total)
        if position < total or not self.num_told:
            self.tell(
                Reading(position=position, prompt_tokens=total, cached_tokens=self.cached_len)
            )

    def run(self, row: Row) -> None:
        """The prompt is read; tokens come. Mutates."""
        self.row = row
        self._decoding_since = perf_counter()

    def foretell(self, token: Token, eos_ids: frozenset[int]) -> None:
        """Pass the first token on as soon as it is drawn: the model reads it next. Mutates."""
        is_first = not self.tokens and self._foretold is None
        if is_first and not self._is_end(token, eos_ids):
            self._foretold = token.value
            self._say(token)

    def say_at_once(self, logits: mx.array, draw: Draw, eos_ids: frozenset[int]) -> bool:
        """Draw the first token and pass it on, before there is a state to go on from. Not where
        more than the token is asked for. Returns whether anything was told. Mutates."""
        if self.request.top_logprobs is None:
            self.drawn = int(np.array(draw.draw(logits))[0])
            self.foretell(Token(self.drawn), eos_ids)
        return self._foretold is not None

    def keep_end(self) -> None:
        """No step was made behind the prompt yet: keep the state there. Not when it was read
        again, with some of the reply. Mutates the cache."""
        if self.prefill is not None and not self.tokens:
            self.prefill.keep_end()

    def take(self, token: Token, eos_ids: frozenset[int]) -> str | None:
        """A token was generated, and read by the model: pass it on, unless that was done. Returns
        why the reply ends with it, or None. Mutates."""
        if self.num_known:
            self.num_known -= 1
            return None
        self.drawn = None
        self.tokens.append(token.value)
        self._note_first()
        if self._foretold is not None:
            self._foretold = None
        elif self._is_end(token, eos_ids):
            return "stop"
        else:
            self._say(token)
        if self.reply.is_stopped:
            return "stop"
        return "length" if len(self.tokens) >= self.request.max_tokens else None

    def _is_end(self, token: Token, eos_ids: frozenset[int]) -> bool:
        return token.value in eos_ids and not self.request.ignore_eos

    def _say(self, token: Token) -> None:
        self._note_first()
        text = self.reply.push(token.value)
        self.tell(Delta(text, token.value, token.logprob, token.top))

    def _note_first(self) -> None:
        if not self.timings.first_token_s:
            self.timings.first_token_s = perf_counter() - self.arrived

    def result(self, finish_reason: str) -> Result:
        """Closes the text: what was held back is given out. What is stored later is not in it.
        Mutates."""
        if rest := self.reply.end():
            self.tell(Delta(rest))
        # One that was told may be left that the model had no time to read.
        unread = [] if self._foretold is None else [self._foretold]
        self._stop_clock()
        return Result(
            text=self.reply.text,
            tokens=[*self.tokens, *unread],
            finish_reason=finish_reason,
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_len,
            reason=self.reason,
            timings=replace(self.timings),
            source=self.source,
            scores=self.scores.told() if self.scores is not None else (),
            stop_text=self.reply.stop_text,
            disk_bytes=self.disk_bytes,
        )

    def pause(self, *, drawn: int | None) -> None:
        """Forget the model's state, but nothing of the reply: it is read again later. `drawn` was
        drawn in decode but not passed on. Mutates."""
        drawn = self._foretold if drawn is None else drawn
        if drawn is not None and not self.num_known:  # else it was generating anew what is known
            self.drawn = drawn
        self._stop_clock()
        self.release()

    def replay(self, *, exact: bool) -> list[int]:
        """The tokens that are not drawn again: what was drawn and not passed on; in exact mode
        behind the whole reply, which is decoded again and not read. Mutates."""
        known = self.tokens if exact else []
        self.num_known = len(known)
        return [*known, *([] if self.drawn is None else [self.drawn])]

    def _stop_clock(self) -> None:
        if self._decoding_since:
            self.timings.decode_s += perf_counter() - self._decoding_since
            self._decoding_since = 0.0

    def unpin(self) -> None:
        """Let go of what is held in the cache. Mutates."""
        if self.prefill is not None:
            self.prefill.close()

    def release(self) -> None:
        """Let go of all arrays and of what is held in the cache. Mutates."""
        self.unpin()
        self.prefill = self.row = None

    def end(self) -> None:
        """Nothing of the model is held any more, wherever this object is kept. Mutates."""
        self.release()
        self.draw = None

    def fail(self, error: Exception) -> None:
        self.end()
        self.tell(Failed(error=error))
