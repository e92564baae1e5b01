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

from keepwarm.server.asked import SamplingAsked, ThinkingAsked
from keepwarm.server.fields import (
    INT64,
    WHOLE,
    Items,
    LogitBias,
    Loose,
    Open,
    Penalty,
    Positive,
    Prompts,
    Share,
    Stop,
)

_UNSET = (False, None)


def _documented(*values: Any) -> WithJsonSchema:
    """What a field may be where most of its values are not supported."""
    return WithJsonSchema({"enum": list(values)})


class TextPart(Open):
    """A part of a message. Images, sounds and files are not read by this server."""

    type: Literal["text"] = "text"
    text: str

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, kind: Any) -> Any:
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"parts of type {kind[:40]!r} are not supported; only text is")
        return kind


class CalledFunction(Open):
    """What an assistant called; the arguments are JSON text, or the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CallPart(Open):
    """One tool call of an assistant's message."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(Open):
    """A message. Roles are the chat template's business; further fields are passed on to it."""

    role: Annotated[str, Field(min_length=1)]
    content: str | Items[TextPart] | None = None
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


class JsonSchema(Loose):
    """A schema that the reply must fit."""

    model_config = ConfigDict(populate_by_name=True)

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Loose):
    """What the reply must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and (
            self.json_schema is None or self.json_schema.schema_ is None
        ):
            raise ValueError("a format of type json_schema needs json_schema.schema")
        return self


class StreamOptions(Loose):
    """What a stream also says."""

    include_usage: bool | None = None


class Common(Loose):
    """What chats and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
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

    def plain_messages(self) -> list[dict[str, Any]]:
        return [message.model_dump(exclude_unset=True) for message in self.messages or ()]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return tools or None

    def thinking(self) -> ThinkingAsked:
        return ThinkingAsked(is_on=self.enable_thinking, effort=self.reasoning_effort)


class ChatRequest(Conversation, Common):
    """POST /v1/chat/completions"""

    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    reasoning_logprobs: bool | None = None  # ours: those of the thought, too
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[Any, _documented(["text"], None)] = None
    audio: Annotated[Any, _documented(None)] = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, count: int | None, info: ValidationInfo) -> int | None:
        if count is not None and not info.data.get("logprobs"):
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
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    echo: Annotated[bool | None, _documented(*_UNSET)] = None
    best_of: Positive | None = None
    suffix: Annotated[str | None, _documented("", None)] = None
    response_format: ResponseFormat | None = None

    @field_validator("echo", "suffix")
    @classmethod
    def _is_unset(cls, asked: Any) -> Any:
        if asked:
            raise ValueError("this is not supported")
        return asked

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
