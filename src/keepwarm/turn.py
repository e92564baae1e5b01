"""One turn of a session: read the prompt, decode, store. On the session's thread."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from keepwarm.cache.explain import Reason
from keepwarm.cache.placement import StopKind
from keepwarm.engine.chat import Teller, bound_to_markup
from keepwarm.engine.decode import decode
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.reply import ReplyText, behind_text
from keepwarm.engine.request import Request, Sampling
from keepwarm.engine.sampling import Draw
from keepwarm.events import ChatResult, Delta, Done, Event, Reading, Result, Stream, Timings
from keepwarm.own_loop import load_from_disk
from keepwarm.prompt.boundaries import Prompt

if TYPE_CHECKING:
    from keepwarm.session import Message, Session


class Turn:
    """What one call of `chat`, `complete` or `regenerate` runs."""

    def __init__(
        self,
        session: Session,
        request: Request,
        *,
        said: list[Message] | None,
        hygiene: tuple[str, ...] = (),
        num_replaced: int = 0,
    ) -> None:
        """`said` joins the history with the reply, in the place of the last `num_replaced`
        messages; None for a request outside of it."""
        self._session = session
        self._request = bound_to_markup(request, session.tokenizer, lambda: session.guides)
        self._said = said
        self._num_replaced = num_replaced
        self._hygiene = hygiene
        self._teller = Teller(session.tokenizer, self._request, session.template_kwargs)
        detokenizer = session.tokenizer.detokenizer
        if request.continues_text:
            detokenizer = behind_text(session.tokenizer)
        self._reply = ReplyText(detokenizer, self._request.stop, self._request.markup)
        self._tokens: list[int] = []
        self._finish_reason = "length"
        self._prefill: Prefill | None = None  # once it has begun

    def stream(self) -> Stream[ChatResult]:
        """Nothing runs until it is iterated. Raises BadInput."""
        self._session.cache.bind(self._session.model)
        if self._request.grammar is not None:
            self._session.guides.check(self._request.grammar)
        return Stream(self._run(), cancelled=lambda: self._result("cancelled"))

    def _run(self) -> Generator[Event, None, ChatResult]:
        session, prompt = self._session, self._request.prompt
        began = perf_counter()
        load_from_disk(session.cache, prompt, namespace=session.namespace)
        with Prefill(session.model, session.cache, prompt, namespace=session.namespace) as prefill:
            self._prefill = prefill
            total, cached = len(prompt), prefill.cached_len
            yield Reading(position=cached, prompt_tokens=total, cached_tokens=cached)
            for position in prefill.steps():
                yield Reading(position=position, prompt_tokens=total, cached_tokens=cached)
            prefill.keep_end()
            try:
                for delta in self._decode(prefill, began):
                    yield from self._teller.told(delta)
                yield from self._teller.rest(self._finish_reason)
            except GeneratorExit:
                # Half a reply is no part of any next prompt; its rows may be.
                if self._can_cut:
                    self._store(prefill)
                raise
            result = self._finish(prefill)
            yield Done(result=result)
            return result

    def _decode(self, prefill: Prefill, began: float) -> Generator[Delta, None, None]:
        request, reply, timings = self._request, self._reply, prefill.timings
        eos_ids = () if request.ignore_eos else self._session.tokenizer.eos_token_ids
        started = perf_counter()
        for token in decode(
            self._session.model,
            prefill.live,
            prefill.logits,
            self._draw(),
            num_top=request.top_logprobs,
        ):
            if not self._tokens:
                timings.first_token_s = perf_counter() - began
            self._tokens.append(token.value)
            if token.value in eos_ids:
                self._finish_reason = "stop"
                break
            yield Delta(reply.push(token.value), token.value, token.logprob, token.top)
            if reply.is_stopped:
                self._finish_reason = "stop"
                break
            if len(self._tokens) == request.max_tokens:
                break
        timings.decode_s = perf_counter() - started
        if rest := reply.end():
            yield Delta(rest)

    def _draw(self) -> Draw:
        request = self._request
        grammar = request.grammar
        guide = self._session.guides.guide(grammar) if grammar is not None else None
        return Draw(
            request.sampling or Sampling(),
            prompt=request.prompt.tokens,
            guide=guide,
            thought=request.thought,
        )

    def _finish(self, prefill: Prefill) -> ChatResult:
        session, result = self._session, self._result(self._finish_reason)
        if self._said is not None:
            kept = len(session.messages) - self._num_replaced
            session.messages[kept:] = [*self._said, result.reply.as_message()]
        # A snapshot is dear, and lost on a template that rewrites the reply; rows are not.
        if self._can_cut or self._said is None or session.is_append_only(self._read):
            self._store(prefill)
        return result

    def _result(self, finish_reason: str) -> ChatResult:
        prefill = self._prefill
        result = Result(
            text=self._reply.text,
            tokens=self._tokens,
            finish_reason=finish_reason,
            prompt_tokens=len(self._request.prompt),
            cached_tokens=prefill.cached_len if prefill is not None else 0,
            reason=prefill.reason if prefill is not None else Reason.COLD,
            timings=prefill.timings if prefill is not None else Timings(),
        )
        return replace(self._teller.result(result), hygiene=self._hygiene)

    @property
    def _can_cut(self) -> bool:
        layout = self._session.cache.layout
        return layout is not None and layout.can_cut

    @property
    def _read(self) -> Prompt:
        """All that the model has read: the prompt and the reply."""
        return self._request.prompt.extended(self._tokens)

    def _store(self, prefill: Prefill) -> None:
        """Keep the reply's state where the next turn can start from it."""
        if self._tokens and not self._session.cache.exact:
            prefill.insert(self._read, StopKind.REPLY)
        if (disk := self._session.cache.disk) is not None:
            disk.rest()
