"""A conversation in Python: `Session` keeps the messages, and the model warm between turns.

    model, tokenizer = load("mlx-community/Qwen3-0.6B-4bit")
    session = Session(model, tokenizer)
    for event in session.chat("Why is the sky blue?"):
        print(event.text, end="")

A session, or several that share a `PrefixCache`, belong to one thread, and run on it while a
stream is iterated.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm.cache.store import PrefixCache
from keepwarm.engine.request import Grammar, Request, Sampling
from keepwarm.engine.thought import thought_limit
from keepwarm.errors import BadInput
from keepwarm.events import ChatResult, Stream
from keepwarm.model.caches import cache_maker
from keepwarm.model.defaults import own_sampling
from keepwarm.prompt.boundaries import AnyPrompt, Prompt, as_prompt
from keepwarm.prompt.follow_up import continues, follow_up
from keepwarm.prompt.hygiene import Clean, clean
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from keepwarm.turn import Turn

if TYPE_CHECKING:
    from keepwarm.engine.grammar import Guides

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
        kv_bits: int | None = None,
    ) -> None:
        """Without `cache` it makes one, of quantized rows with `kv_bits`."""
        self.model = model
        self.sampling = own_sampling(model) or Sampling()
        is_wrapped = isinstance(tokenizer, TokenizerWrapper)
        self.tokenizer = tokenizer if is_wrapped else TokenizerWrapper(tokenizer)
        if cache is not None and kv_bits is not None:
            raise BadInput(
                "kv_bits are those of the cache: make it with cache_maker(model, kv_bits)"
            )
        self.cache = cache if cache is not None else PrefixCache(cache_maker(model, kv_bits))
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.tools = list(tools) if tools else None
        self.template_kwargs = dict(template_kwargs or {})
        self.namespace = namespace

    @cached_property
    def guides(self) -> Guides:
        """Compiles grammars for this tokenizer."""
        from keepwarm.engine.grammar import Guides

        return Guides(self.tokenizer)

    def chat(
        self,
        message: str | Message | Sequence[Message],
        *,
        max_tokens: int = 1024,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        grammar: Grammar | None = None,
        top_logprobs: int | None = None,
        thinking_budget: int | None = None,
        tool_choice: str = "auto",
    ) -> Stream[ChatResult]:
        """Say something and stream the reply; both join `messages` once the reply is complete.

        It runs on this thread, while the stream is iterated: nothing is read before that. Two
        streams take turns as they are iterated; an `Engine` runs many at once.

        `message` is what the user says, or one or more messages (tool results, say). What the
        chat template cannot write is brought into a form that it can (see `prompt.hygiene`).
        Stop texts bind in the content, and the grammar behind the thought. With `top_logprobs`
        each piece has the log probability of its token, and those of so many likelier ones. A
        thought of `thinking_budget` tokens is closed. Calls of the session's tools are bound to
        their schemas; `tool_choice` is "auto", "required", "none" or the name of one.
        Raises RenderError when the template refuses the conversation even so.
        """
        said = _as_messages(message)
        ours = self._clean([*self.messages, *said])
        options = _Options(
            max_tokens, sampling, stop, grammar, top_logprobs, thinking_budget, tool_choice
        )
        request = self._request(self._render(ours), options)
        return Turn(self, request, said=said, hygiene=ours.acted).stream()

    def regenerate(
        self,
        *,
        max_tokens: int = 1024,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        grammar: Grammar | None = None,
        top_logprobs: int | None = None,
        thinking_budget: int | None = None,
        tool_choice: str = "auto",
    ) -> Stream[ChatResult]:
        """Have the last reply again: it takes the place of the one before once it is complete.
        Raises BadInput when there is nothing to reply to."""
        is_replied = bool(self.messages) and self.messages[-1]["role"] == "assistant"
        asked = self.messages[:-1] if is_replied else self.messages
        if not asked:
            raise BadInput("there is nothing to reply to: the conversation is empty")
        ours = self._clean(asked)
        options = _Options(
            max_tokens, sampling, stop, grammar, top_logprobs, thinking_budget, tool_choice
        )
        request = self._request(self._render(ours), options)
        turn = Turn(self, request, said=[], hygiene=ours.acted, num_replaced=int(is_replied))
        return turn.stream()

    def complete(
        self,
        text: str | AnyPrompt,
        *,
        max_tokens: int = 1024,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        grammar: Grammar | None = None,
        top_logprobs: int | None = None,
    ) -> Stream[ChatResult]:
        """Continue a text, or token ids, without chat template and without memory, while the
        stream is iterated."""
        prompt = render_text(self.tokenizer, text) if isinstance(text, str) else as_prompt(text)
        options = _Options(max_tokens, sampling, stop, grammar, top_logprobs)
        request = replace(self._request(prompt, options), continues_text=True)
        return Turn(self, request, said=None).stream()

    def fork(self) -> Session:
        """Another session with the same history, settings and cache: both go on from here, and
        share all that was read."""
        twin = copy(self)
        twin.messages = deepcopy(self.messages)
        twin.template_kwargs = dict(self.template_kwargs)
        return twin

    def _request(self, prompt: Prompt, options: _Options) -> Request:
        thought = None
        if options.thinking_budget is not None:
            thought = thought_limit(
                self.tokenizer,
                prompt,
                options.thinking_budget,
                tools=self.tools,
                template_kwargs=self.template_kwargs,
            )
        return Request(
            prompt=prompt,
            max_tokens=options.max_tokens,
            sampling=options.sampling or self.sampling,
            stop=options.stop,
            grammar=options.grammar,
            thought=thought,
            top_logprobs=options.top_logprobs,
            namespace=self.namespace,
            tools=self.tools or (),
            tool_choice=options.tool_choice,
        )

    def _clean(self, messages: list[Message]) -> Clean:
        return clean(
            self.tokenizer, messages, tools=self.tools, template_kwargs=self.template_kwargs
        )

    def _render(self, ours: Clean) -> Prompt:
        return render_chat(
            self.tokenizer, ours.messages, tools=ours.tools, template_kwargs=self.template_kwargs
        )

    def is_append_only(self, read: Prompt) -> bool:
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


@dataclass(frozen=True, slots=True)
class _Options:
    """What a caller may say of one reply."""

    max_tokens: int
    sampling: Sampling | None
    stop: str | Sequence[str]
    grammar: Grammar | None
    top_logprobs: int | None
    thinking_budget: int | None = None
    tool_choice: str = "auto"


def _as_messages(message: str | Message | Sequence[Message]) -> list[Message]:
    if isinstance(message, str):
        return [{"role": "user", "content": message}]
    return [message] if isinstance(message, dict) else list(message)
