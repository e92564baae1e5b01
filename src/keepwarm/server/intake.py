"""From what a client asks for to what the engine is asked for: prompts, sampling, limits, grammars.
It renders and compiles, so it runs in a worker thread; it changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keepwarm.config import Config
from keepwarm.engine.request import Grammar, Request, Sampling, ThoughtLimit
from keepwarm.engine.thought import thought_limit
from keepwarm.errors import BadInput, RenderError
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.bounds import UNBOUND, Bounds
from keepwarm.prompt.hygiene import Clean, clean
from keepwarm.prompt.messages import Message, read_template_kwargs
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.scan import markup_of
from keepwarm.server.asked import Asked, AskedChat, AskedTexts
from keepwarm.server.errors import as_api_error, refused
from keepwarm.server.service import Service
from keepwarm.server.tool_choice import answer_grammar, chat_grammar

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, ready for the engine: one sequence for each choice of each prompt."""

    asked: Asked
    requests: tuple[Request, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the request, and what was changed in it."""
        return self.asked.notes

    @property
    def hygiene(self) -> tuple[str, ...]:
        """The rules that changed what the client sent."""
        return ()


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as its template wrote it, and what it was written from."""

    prompt: Prompt
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]
    hygiene: tuple[str, ...]  # the rules that changed what the client sent


@dataclass(frozen=True, slots=True)
class ChatPlan(Plan):
    """A chat, ready for the engine, with what its replies are read by."""

    asked: AskedChat
    chat: RenderedChat
    reader: Any  # the tokenizer whose tags replies are cut at

    @property
    def hygiene(self) -> tuple[str, ...]:
        return self.chat.hygiene


@dataclass(frozen=True, slots=True)
class TextPlan(Plan):
    """Completions, ready for the engine."""

    # Characters before each reply; empty without log probabilities.
    text_lens: tuple[int, ...]
    echoed: tuple[str, ...]  # the text of each prompt; empty where it is not asked for


def plan_of(service: Service, asked: Asked, bounds: Bounds = UNBOUND) -> Plan:
    """Raises ApiError for what this model cannot do, and Abandoned when nobody waits."""
    if isinstance(asked, AskedChat):
        return plan_chat(service, asked, bounds)
    assert isinstance(asked, AskedTexts)
    return plan_texts(service, asked, bounds)


def plan_chat(service: Service, asked: AskedChat, bounds: Bounds = UNBOUND) -> ChatPlan:
    """As `plan_of`."""
    engine = service.engine
    chat = rendered_chat(service, asked, bounds=bounds)
    guides = engine.guides.within(asked.namespace)
    grammar = chat_grammar(guides, engine.tokenizer, asked, chat.prompt)
    has_tools = bool(chat.tools or asked.later_tools)
    can_call = has_tools and asked.tool_choice.mode != "none"
    reader = engine.tokenizer if can_call else service.text_reader()
    thought = _thought_limit(service, asked, chat)
    requests = _Shared(engine, service.config, asked, thought).requests(chat.prompt, grammar)
    markup = markup_of(reader, chat.prompt)
    return ChatPlan(
        asked,
        tuple(replace(request, markup=markup) for request in requests),
        chat=chat,
        reader=reader,
    )


def _thought_limit(service: Service, asked: AskedChat, chat: RenderedChat) -> ThoughtLimit | None:
    """How long the reply may think; None where nothing says so, or the model does not think."""
    budget = _first(asked.thinking.budget_tokens, service.config.thinking_budget)
    if budget is None:
        return None
    return thought_limit(
        service.engine.tokenizer,
        chat.prompt,
        budget,
        tools=chat.tools,
        template_kwargs=chat.template_kwargs,
    )


def plan_texts(service: Service, asked: AskedTexts, bounds: Bounds = UNBOUND) -> TextPlan:
    """As `plan_of`."""
    engine = service.engine
    grammar = answer_grammar(engine.guides.within(asked.namespace), asked)
    shared = _Shared(engine, service.config, asked)
    prompts = [
        text_prompt(engine.tokenizer, text, asked.namespace, bounds) for text in asked.prompts
    ]
    requests = tuple(
        _as_text(request, asked)
        for prompt in prompts
        for request in shared.requests(prompt, grammar)
    )
    texts = [_text(engine.tokenizer, t) for t in asked.prompts for _ in range(asked.num_choices)]
    has_logprobs = asked.num_logprobs is not None
    return TextPlan(
        asked,
        requests,
        text_lens=tuple(map(len, texts)) if has_logprobs else (),
        echoed=tuple(texts) if asked.echoes else (),
    )


def _as_text(request: Request, asked: AskedTexts) -> Request:
    scores_from = None
    if asked.echoes and asked.num_logprobs is not None:
        scores_from = 0
    elif asked.max_tokens == 0:
        scores_from = len(request.prompt)  # none: it is only read
    return replace(
        request,
        continues_text=True,
        max_tokens=0 if asked.max_tokens == 0 else request.max_tokens,
        scores_from=scores_from,
        num_score_top=asked.num_logprobs or 0,
    )


def rendered_chat(service: Service, asked: AskedChat, **options: Any) -> RenderedChat:
    """What the model will read. `options` are those of `render_chat`. Raises ApiError."""
    # What the server says goes behind what the request means, and that behind what it names.
    kwargs = {
        **service.config.template_kwargs(),
        **asked.thinking.template_kwargs(),
        **asked.template_kwargs,
    }
    tokenizer, without = service.engine.tokenizer, service.config.hygiene_off
    ours = _clean(tokenizer, asked, kwargs, without)
    options |= {"namespace": asked.namespace}
    prompt = render_messages(tokenizer, ours.messages, ours.tools, kwargs, **options)
    return RenderedChat(prompt, ours.messages, ours.tools, kwargs, hygiene=ours.acted)


def _clean(
    tokenizer: Any, asked: AskedChat, kwargs: dict[str, Any], without: Sequence[str]
) -> Clean:
    try:
        return clean(
            tokenizer, asked.messages, tools=asked.tools, template_kwargs=kwargs, without=without
        )
    except BadInput as error:
        raise as_api_error(error, "messages") from error


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


def text_prompt(
    tokenizer: Any, prompt: str | list[int], namespace: str, bounds: Bounds = UNBOUND
) -> Prompt:
    """A text or tokens as the model reads them. Raises ApiError, and Abandoned."""
    try:
        if isinstance(prompt, str):
            return render_text(tokenizer, prompt, namespace=namespace, bounds=bounds)
        return Prompt(prompt)
    except BadInput as error:
        raise as_api_error(error, "prompt") from error


def _text(tokenizer: Any, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else str(tokenizer.decode(prompt))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the sequences of one HTTP request share."""

    engine: Engine
    config: Config
    asked: Asked
    thought: ThoughtLimit | None = None

    def requests(self, prompt: Prompt, grammar: Grammar | None) -> tuple[Request, ...]:
        """One for each choice; they differ in their seed."""
        asked = self.asked
        return tuple(
            Request(
                prompt=prompt,
                max_tokens=asked.max_tokens or self.config.default_reply_len,
                sampling=self._sampling(choice),
                stop=asked.stop,
                namespace=asked.namespace,
                top_logprobs=asked.num_logprobs,
                grammar=grammar,
                thought=self.thought,
                ignore_eos=asked.ignore_eos,
            )
            for choice in range(asked.num_choices)
        )

    def _sampling(self, choice: int) -> Sampling:
        asked, usual = self.asked.sampling, self.config.sampling(self.engine.own_sampling)
        vocab_size = self.engine.vocab_size
        _check_bias(tuple(asked.logit_bias), vocab_size)
        top_k = _first(asked.top_k, usual.top_k)
        seed = asked.seed
        return Sampling(
            temperature=_first(asked.temperature, usual.temperature),
            top_p=_first(asked.top_p, usual.top_p),
            min_p=_first(asked.min_p, usual.min_p),
            top_k=top_k if 0 < top_k < vocab_size else 0,
            seed=None if seed is None else seed + choice,
            repetition_penalty=_first(asked.repetition_penalty, usual.repetition_penalty),
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
