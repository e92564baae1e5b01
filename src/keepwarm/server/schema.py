"""The requests that clients send, as they are checked and documented. What depends on the model
(token ids, templates, grammars) is checked later, in `intake`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from keepwarm.prompt.hygiene import ATTACHMENTS
from keepwarm.prompt.messages import TEXT_PARTS, THOUGHT_PARTS
from keepwarm.server.asked import SamplingAsked, ThinkingAsked
from keepwarm.server.fields import (
    INT64,
    WHOLE,
    Budget,
    Items,
    LogitBias,
    Loose,
    Open,
    Penalty,
    Positive,
    Prompts,
    Share,
    Stop,
    TextLimit,
    TokenLimit,
    Unsupported,
)
from keepwarm.server.formats import Constrained

_UNSET = (False, None)
_PARTS = (*TEXT_PARTS, *THOUGHT_PARTS, *ATTACHMENTS)


def _documented(*values: Any) -> WithJsonSchema:
    """What a field may be where most of its values are not supported."""
    return WithJsonSchema({"enum": list(values)})


class Part(Open):
    """A part of a message: a text, a refusal, a thought, or what stands in the prompt as a short
    text that says what was there."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {
                    "required": ["text"],
                    "properties": {
                        "type": {"enum": [kind for kind in TEXT_PARTS if kind != "refusal"]},
                        "text": {"type": "string"},
                    },
                },
                {
                    "required": ["type", "refusal"],
                    "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
                },
                {
                    "required": ["type"],
                    "properties": {"type": {"enum": [*THOUGHT_PARTS, *ATTACHMENTS]}},
                },
            ]
        }
    )

    type: Annotated[str, WithJsonSchema({"enum": list(_PARTS)})] = "text"
    text: str | None = None
    refusal: str | None = None

    @field_validator("type")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in _PARTS:
            raise ValueError(f"parts of type {kind[:40]!r} are not supported; only text is")
        return kind

    @model_validator(mode="after")
    def _has_text(self) -> Part:
        name = TEXT_PARTS.get(self.type)
        if name is not None and getattr(self, name) is None:
            raise ValueError(f"a part of type {self.type!r} needs a {name}")
        return self


class CalledFunction(Open):
    """What an assistant called; the arguments are JSON text, or the object itself."""

    name: str
    arguments: Any = None  # what is no object, hygiene makes one


class CallPart(Open):
    """One tool call of an assistant's message."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(Open):
    """A message. Roles are the chat template's business; further fields are passed on to it."""

    role: Annotated[str, Field(min_length=1)]
    content: str | Items[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[CallPart] | None = None


class Function(Open):
    """What a tool is called, does and takes."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Open):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Loose):
    """The name of a tool."""

    name: str


class NamedTool(Loose):
    """The one tool to call."""

    type: Literal["function"] = "function"
    function: NamedFunction


class Reasoning(Loose):
    """How much to think, as OpenRouter's clients say it."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: Budget | None = None
    exclude: Annotated[Any, Unsupported((False,))] = None


class Thinking(Loose):
    """Whether to think, as Anthropic's clients say it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class StreamOptions(Loose):
    """What a stream also says."""

    include_usage: bool | None = None


class Common(Constrained):
    """What chats and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit = None
    n: Annotated[int, Field(ge=1, le=16), WHOLE] | None = None
    stop: Stop = ()
    seed: Annotated[int, Field(ge=-INT64, lt=INT64), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31), WHOLE] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    prompt_cache_key: str | None = None  # a hint other servers need; ours finds prefixes itself
    ignore_eos: bool | None = None
    min_tokens: Annotated[Any, Unsupported((0,))] = None
    repetition_context_size: Annotated[Any, _documented(None)] = None

    @field_validator("repetition_context_size")
    @classmethod
    def _has_no_penalty(cls, size: Any, info: ValidationInfo) -> Any:
        if size is not None and info.data.get("repetition_penalty") not in (None, 1):
            raise ValueError("this is not supported; the penalty looks at all of the prompt")
        return size

    @property
    def num_choices(self) -> int:
        return self.n or 1

    def sampling(self) -> SamplingAsked:
        return SamplingAsked(
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            top_k=self.top_k,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
        )

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Conversation(Loose):
    """What a chat template writes."""

    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    tools: Items[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    reasoning: Reasoning | None = None
    thinking: Thinking | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None  # as vLLM calls it

    def plain_messages(self) -> list[dict[str, Any]]:
        return [message.model_dump(exclude_unset=True) for message in self.messages or ()]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return tools or None

    def asked_thinking(self) -> ThinkingAsked:
        """Of several fields, the one that says it most plainly counts."""
        reasoning = self.reasoning or Reasoning()
        is_on = self.enable_thinking
        if is_on is None and self.thinking is not None and self.thinking.type != "adaptive":
            is_on = self.thinking.type == "enabled"
        if is_on is None:
            is_on = reasoning.enabled
        budgets = (
            self.thinking_budget,
            self.thinking_token_budget,
            self.thinking.budget_tokens if self.thinking is not None else None,
            reasoning.max_tokens,
        )
        return ThinkingAsked(
            is_on=is_on,
            effort=self.reasoning_effort or reasoning.effort,
            budget_tokens=next((budget for budget in budgets if budget is not None), None),
        )


class ChatRequest(Conversation, Common):
    """POST /v1/chat/completions"""

    max_completion_tokens: TokenLimit = None
    logprobs: bool | None = None
    reasoning_logprobs: bool | None = None  # ours: those of the thought, too
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    functions: Annotated[Any, Unsupported(([],), hint="use tools")] = None
    function_call: Annotated[
        Any,
        Unsupported(
            (
                "none",
                "auto",
            ),
            hint="use tool_choice",
        ),
    ] = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[Any, _documented(["text"], None)] = None
    audio: Annotated[Any, _documented(None)] = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count and not info.data.get("logprobs"):
            raise ValueError("top_logprobs needs logprobs: true")
        return count

    @field_validator("modalities", "audio")
    @classmethod
    def _is_text_only(cls, asked: Any) -> Any:
        if asked is not None and asked != ["text"]:
            raise ValueError("only text is supported")
        return asked

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Common):
    """POST /v1/completions"""

    prompt: Prompts
    max_tokens: TextLimit = None
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    echo: bool | None = None
    best_of: Positive | None = None
    suffix: Annotated[str | None, _documented("", None)] = None

    @field_validator("suffix")
    @classmethod
    def _is_unset(cls, asked: Any) -> Any:
        if asked:
            raise ValueError("this is not supported")
        return asked

    @field_validator("echo")
    @classmethod
    def _is_whole(cls, echo: bool | None, info: ValidationInfo) -> bool | None:
        asks_both = info.data.get("stream") and info.data.get("logprobs") is not None
        if echo and asks_both:
            raise ValueError("with logprobs this is not supported in a stream")
        return echo

    @field_validator("best_of")
    @classmethod
    def _is_n(cls, best_of: int | None, info: ValidationInfo) -> int | None:
        if best_of is not None and best_of != (info.data.get("n") or 1):
            raise ValueError("this is not supported unless it equals n")
        return best_of

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class TokenizeRequest(Conversation):
    """POST /tokenize: a text, or messages as the chat template writes them."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["prompt"],
                    "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
                },
                {
                    "required": ["messages"],
                    "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
                },
            ]
        }
    )

    messages: Annotated[Items[ChatMessage], Field(min_length=1)] | None = None  # type: ignore[assignment]
    prompt: Annotated[str, Field(min_length=1)] | None = None
    add_generation_prompt: bool | None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages must be given")
        return self


class DetokenizeRequest(Loose):
    """POST /detokenize"""

    tokens: Annotated[Items[Annotated[int, Field(ge=0, lt=1 << 31), WHOLE]], Field(min_length=1)]
