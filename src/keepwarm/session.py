"""A conversation in Python: `Session` keeps the messages, and the model warm between turns.

    model, tokenizer = load("mlx-community/Qwen3-0.6B-4bit")
    session = Session(model, tokenizer)
    for event in session.chat("Why is the sky blue?"):
        print(event.text, end="")

A session, or several that share a `PrefixCache`, belong to one thread, and run on it while a
stream is iterated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm.cache.explain import Reason
from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.decode import decode
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.reply import behind_text
from keepwarm.engine.request import Sampling, check_is, check_max_tokens
from keepwarm.engine.sampling import Draw
from keepwarm.events import ChatResult, Delta, Done, Event, Reading, Stream, Timings
from keepwarm.model.defaults import own_sampling
from keepwarm.own_loop import load_from_disk
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.follow_up import continues, follow_up
from keepwarm.prompt.hygiene import Clean, clean
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat

Message = dict[str, Any]


class Session:
    """A model, a tokenizer and a cache; `messages` is the conversation so far.

    The history may be edited between turns: the next prompt starts from the deepest state that
    still fits. `sampling` holds where a turn names no other: the model's own where `keepwarm.load`
    has loaded it, and for other models always the likeliest token.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        cache: PrefixCache | None = None,
        system: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> None:
        self.model = model
        self.sampling = own_sampling(model) or Sampling()
        is_wrapped = isinstance(tokenizer, TokenizerWrapper)
        self.tokenizer = tokenizer if is_wrapped else TokenizerWrapper(tokenizer)
        self.cache = cache if cache is not None else PrefixCache(model)
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.tools = list(tools) if tools else None
        self.template_kwargs = dict(template_kwargs or {})
        self.namespace = namespace

    def chat(
        self,
        message: str | Message | Sequence[Message],
        *,
        max_tokens: int = 1024,
        sampling: Sampling | None = None,
    ) -> Stream[ChatResult]:
        """Say something and stream the reply; both join `messages` once the reply is complete.

        It runs on this thread, while the stream is iterated: nothing is read before that. Two
        streams take turns as they are iterated; an `Engine` runs many at once.

        `message` is what the user says, or one or more messages (tool results, say). What the
        chat template cannot write is brought into a form that it can (see `prompt.hygiene`).
        Raises RenderError when the template refuses the conversation even so.
        """
        said = _as_messages(message)
        ours = self._clean([*self.messages, *said])
        request = _Request(self, self._render(ours), said, hygiene=ours.acted)
        return request.stream(max_tokens, sampling or self.sampling)

    def complete(
        self, text: str, *, max_tokens: int = 1024, sampling: Sampling | None = None
    ) -> Stream[ChatResult]:
        """Continue a text, without chat template and without memory, while the stream is iterated."""
        request = _Request(self, render_text(self.tokenizer, text), None)
        return request.stream(max_tokens, sampling or self.sampling)

    def _clean(self, messages: list[Message]) -> Clean:
        return clean(
            self.tokenizer, messages, tools=self.tools, template_kwargs=self.template_kwargs
        )

    def _render(self, ours: Clean) -> Prompt:
        return render_chat(
            self.tokenizer, ours.messages, tools=ours.tools, template_kwargs=self.template_kwargs
        )

    def _is_append_only(self, read: Prompt) -> bool:
        """Whether the next turn will begin with the very tokens that were read."""
        *before, reply = self.messages
        ours = self._clean(before)
        upcoming = follow_up(
            self.tokenizer,
            ours.messages,
            reply,
            tools=ours.tools,
            template_kwargs=self.template_kwargs,
        )
        # Where nobody can tell, the state may turn out useful.
        return upcoming is None or continues(read, upcoming)


class _Request:
    """One run of a session's model: read the prompt, decode, store."""

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        said: list[Message] | None,
        hygiene: tuple[str, ...] = (),
    ) -> None:
        """`said` joins the history with the reply; None for a request outside of it."""
        self._session = session
        self._prompt = prompt
        self._said = said
        self._hygiene = hygiene
        self._tokens: list[int] = []
        self._text = ""
        self._finish_reason = "length"
        self._prefill: Prefill | None = None  # once it has begun

    def stream(self, max_tokens: int, sampling: Sampling) -> Stream[ChatResult]:
        check_max_tokens(max_tokens)
        check_is(sampling, Sampling, "sampling", "Sampling(temperature=0.7)")
        self._session.cache.bind(self._session.model)
        return Stream(self._run(max_tokens, sampling), cancelled=self._cancelled)

    def _run(self, max_tokens: int, sampling: Sampling) -> Generator[Event, None, ChatResult]:
        session, prompt = self._session, self._prompt
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
                yield from self._decode(prefill, max_tokens, sampling, began)
            except GeneratorExit:
                # Half a reply is no part of any next prompt; its rows may be.
                if self._can_cut:
                    self._store(prefill)
                raise
            result = self._finish(prefill)
            yield Done(result=result)
            return result

    def _decode(
        self, prefill: Prefill, max_tokens: int, sampling: Sampling, began: float
    ) -> Generator[Event, None, None]:
        tokenizer, timings = self._session.tokenizer, prefill.timings
        detokenizer = tokenizer.detokenizer if self._said is not None else behind_text(tokenizer)
        tokens = decode(
            self._session.model,
            prefill.live,
            prefill.logits,
            Draw(sampling, prompt=self._prompt.tokens),
        )
        started = perf_counter()
        for token in tokens:
            if not self._tokens:
                timings.first_token_s = perf_counter() - began
            self._tokens.append(token)
            if token in tokenizer.eos_token_ids:
                self._finish_reason = "stop"
                break
            detokenizer.add_token(token)
            yield self._delta(detokenizer.last_segment, token)
            if len(self._tokens) == max_tokens:
                break
        timings.decode_s = perf_counter() - started
        detokenizer.finalize()
        if rest := detokenizer.last_segment:
            yield self._delta(rest, self._tokens[-1])

    def _delta(self, text: str, token: int) -> Delta:
        self._text += text
        return Delta(text, token=token)

    def _finish(self, prefill: Prefill) -> ChatResult:
        session, result = self._session, self._result(self._finish_reason)
        if self._said is not None:
            session.messages += [*self._said, result.reply.as_message()]
        # A snapshot is dear, and lost on a template that rewrites the reply; rows are not.
        if self._can_cut or self._said is None or session._is_append_only(self._read):
            self._store(prefill)
        return result

    def _cancelled(self) -> ChatResult:
        """Of a stream that was closed."""
        return self._result("cancelled")

    def _result(self, finish_reason: str) -> ChatResult:
        session, prefill = self._session, self._prefill
        reply = parse_reply(
            session.tokenizer,
            self._text,
            prompt=self._prompt,
            tools=session.tools,
            template_kwargs=session.template_kwargs,
            finish_reason="stop" if finish_reason == "stop" else "length",
        )
        return ChatResult(
            text=self._text,
            reply=reply,
            tokens=self._tokens,
            finish_reason=finish_reason,
            prompt_tokens=len(self._prompt),
            cached_tokens=prefill.cached_len if prefill is not None else 0,
            reason=prefill.reason if prefill is not None else Reason.COLD,
            timings=prefill.timings if prefill is not None else Timings(),
            hygiene=self._hygiene,
        )

    @property
    def _can_cut(self) -> bool:
        layout = self._session.cache.layout
        return layout is not None and layout.can_cut

    @property
    def _read(self) -> Prompt:
        """All that the model has read: the prompt and the reply."""
        return self._prompt.extended(self._tokens)

    def _store(self, prefill: Prefill) -> None:
        """Keep the reply's state where the next turn can start from it."""
        if self._tokens and not self._session.cache.exact:
            prefill.insert(self._read, StopKind.REPLY)
        if (disk := self._session.cache.disk) is not None:
            disk.rest()


def _as_messages(message: str | Message | Sequence[Message]) -> list[Message]:
    if isinstance(message, str):
        return [{"role": "user", "content": message}]
    return [message] if isinstance(message, dict) else list(message)
