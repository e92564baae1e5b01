"""From a checked request to what the engine is asked for: prompts, sampling, limits, grammars.
It renders and compiles, so it runs in a worker thread; it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keepwarm.config import Config
from keepwarm.engine.request import Grammar, Request, Sampling
from keepwarm.errors import BadInput, RenderError
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.messages import read_template_kwargs
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from keepwarm.server.errors import as_api_error, refused
from keepwarm.server.schema import ChatRequest, Common, CompletionRequest
from keepwarm.server.service import Service
from keepwarm.server.tool_choice import chat_grammar, format_grammar

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A chat, ready for the engine, with what its replies are read by."""

    requests: tuple[Request, ...]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    reader: Any  # the tokenizer whose tags replies are cut at
    num_logprobs: int | None
    includes_usage: bool

    @property
    def prompt(self) -> Prompt:
        return self.requests[0].prompt


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """Completions of one or more prompts, ready for the engine."""

    requests: tuple[Request, ...]
    num_choices: int  # of each prompt
    num_logprobs: int | None
    includes_usage: bool
    text_lens: tuple[int, ...]  # characters before each reply; empty without log probabilities


def plan_chat(service: Service, asked: ChatRequest, namespace: str) -> ChatPlan:
    """Raises ApiError for what this model cannot do."""
    engine, config = service.engine, service.config
    tokenizer = engine.tokenizer
    messages, tools, kwargs = asked.plain_messages(), asked.plain_tools(), asked.template_kwargs()
    kwargs = {**config.template_kwargs(), **kwargs}
    prompt = render_messages(tokenizer, messages, tools, kwargs, namespace=namespace)
    can_call = tools is not None and asked.tool_choice != "none"
    shared = _Shared(engine, config, asked, asked.num_logprobs, asked.token_limit, namespace)
    return ChatPlan(
        requests=shared.requests(prompt, chat_grammar(engine.guides, tokenizer, asked, prompt)),
        messages=messages,
        tools=tools,
        template_kwargs=kwargs,
        reader=tokenizer if can_call else service.text_reader(),
        num_logprobs=asked.num_logprobs,
        includes_usage=asked.includes_usage,
    )


def plan_completions(service: Service, asked: CompletionRequest, namespace: str) -> CompletionPlan:
    """Raises ApiError for what this model cannot do."""
    engine, config = service.engine, service.config
    grammar = format_grammar(engine.guides, asked.response_format)
    shared = _Shared(engine, config, asked, asked.num_logprobs, asked.token_limit, namespace)
    prompts = [text_prompt(engine.tokenizer, prompt, namespace) for prompt in asked.prompt]
    requests = tuple(
        replace(request, continues_text=True)
        for prompt in prompts
        for request in shared.requests(prompt, grammar)
    )
    has_offsets = asked.num_logprobs is not None
    return CompletionPlan(
        requests=requests,
        num_choices=asked.num_choices,
        num_logprobs=asked.num_logprobs,
        includes_usage=asked.includes_usage,
        text_lens=tuple(
            _text_len(engine.tokenizer, prompt)
            for prompt in (asked.prompt if has_offsets else ())
            for _ in range(asked.num_choices)
        ),
    )


def render_messages(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any],
    **options: Any,
) -> Prompt:
    """As `render_chat`. Raises ApiError naming the field."""
    try:
        read_template_kwargs(template_kwargs)
    except BadInput as error:
        raise as_api_error(error, "chat_template_kwargs") from error
    try:
        return render_chat(
            tokenizer, messages, tools=tools, template_kwargs=template_kwargs, **options
        )
    except RenderError as error:
        raise as_api_error(
            error, _refused_field(tokenizer, messages, tools, template_kwargs, **options)
        ) from error
    except BadInput as error:
        raise as_api_error(error, "messages") from error


def _refused_field(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any],
    **options: Any,
) -> str:
    """The field that a template refused: the first without which it would not have."""
    effort = {name: value for name, value in template_kwargs.items() if name == "reasoning_effort"}
    for param, kept_tools, kept_kwargs in (
        ("chat_template_kwargs", tools, effort),
        ("reasoning_effort", tools, {}),
        ("tools", None, {}),
    ):
        try:
            render_chat(
                tokenizer, messages, tools=kept_tools, template_kwargs=kept_kwargs, **options
            )
        except RenderError:
            continue
        return param
    return "messages"


def text_prompt(tokenizer: Any, prompt: str | list[int], namespace: str) -> Prompt:
    """A text or tokens as the model reads them. Raises ApiError."""
    try:
        if isinstance(prompt, str):
            return render_text(tokenizer, prompt, namespace=namespace)
        return Prompt(prompt)
    except BadInput as error:
        raise as_api_error(error, "prompt") from error


def _text_len(tokenizer: Any, prompt: str | list[int]) -> int:
    """Characters, as the client counts them."""
    return len(prompt if isinstance(prompt, str) else tokenizer.decode(prompt))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the sequences of one HTTP request share."""

    engine: Engine
    config: Config
    asked: Common
    num_logprobs: int | None
    token_limit: int | None
    namespace: str

    def requests(self, prompt: Prompt, grammar: Grammar | None) -> tuple[Request, ...]:
        """One for each choice; they differ in their seed."""
        asked = self.asked
        return tuple(
            Request(
                prompt=prompt,
                max_tokens=self.token_limit or self.config.default_reply_len,
                sampling=self._sampling(choice),
                stop=asked.stop,
                namespace=self.namespace,
                top_logprobs=self.num_logprobs,
                grammar=grammar,
                ignore_eos=bool(asked.ignore_eos),
            )
            for choice in range(asked.num_choices)
        )

    def _sampling(self, choice: int) -> Sampling:
        asked, config = self.asked, self.config
        vocab_size = self.engine.vocab_size
        _check_bias(tuple(asked.logit_bias), vocab_size)
        top_k = _first(asked.top_k, config.top_k)
        seed = asked.seed
        return Sampling(
            temperature=_first(asked.temperature, config.temperature),
            top_p=_first(asked.top_p, config.top_p),
            min_p=_first(asked.min_p, config.min_p),
            top_k=top_k if 0 < top_k < vocab_size else 0,
            seed=None if seed is None else seed + choice,
            repetition_penalty=_first(asked.repetition_penalty, config.repetition_penalty),
            presence_penalty=asked.presence_penalty or 0.0,
            frequency_penalty=asked.frequency_penalty or 0.0,
            logit_bias=asked.logit_bias,
        )


def _check_bias(tokens: Sequence[int], vocab_size: int) -> None:
    wrong = next((token for token in tokens if token >= vocab_size), None)
    if wrong is not None:
        words = f"token ids must be below {vocab_size}, got {wrong}"
        raise refused(f"logit_bias: {words}", "logit_bias")


def _first(asked: Any, default: Any) -> Any:
    return default if asked is None else asked
