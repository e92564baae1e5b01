"""The requests of Anthropic's Messages API, as they are checked and documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from keepwarm.server.fields import WHOLE, Items, Loose, Open, Positive, Share, Stop

# What a block of each kind cannot be without; kinds that are not here are taken as they are.
_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "tool_reference": ("tool_name",),
}


class Block(Open):
    """A part of a message. What is neither text nor of this server is read as a short text."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Items[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    tool: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Block:
        missing = [name for name in _NEEDED.get(self.type, ()) if getattr(self, name) is None]
        if missing:
            raise ValueError(f"a block of type {self.type} needs {', '.join(missing)}")
        return self


class Turn(Loose):
    """A message. One of the system may stand anywhere and stays there."""

    role: Literal["user", "assistant", "system"]
    content: str | Items[Block] = ""

    @property
    def blocks(self) -> list[Block]:
        return blocks_of(self.content)


class ToolSpec(Loose):
    """A tool that the model may call, or one of Anthropic's servers', which is left out."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ToolSpec:
        if self.is_custom and not self.name:
            raise ValueError("a tool needs a name")
        if self.is_custom and self.input_schema is None:
            raise ValueError("a tool needs an input_schema")
        return self

    @property
    def is_custom(self) -> bool:
        """Whether the client itself says what the tool takes."""
        return self.type in (None, "custom")


class ToolWanted(Loose):
    """Whether tools are to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ToolWanted:
        if self.type == "tool" and not self.name:
            raise ValueError("a choice of type tool needs a name")
        return self


class Thinking(Loose):
    """Whether to think, and whether the thought is shown."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Positive | None = None
    display: str | None = (
        None  # "omitted" hides thoughts; clients know more words than are documented
    )


class JsonFormat(Loose):
    """A schema that the answer must fit."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Loose):
    """How hard to try, and what the answer must look like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class CountTokensRequest(Loose):
    """POST /v1/messages/count_tokens"""

    model: str | None = None
    messages: Annotated[Items[Turn], Field(min_length=1)]
    system: str | Items[Block] | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: ToolWanted | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # as it was called first
    mcp_servers: Any = None


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages"""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: Stop = ()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31), WHOLE] | None = None


def blocks_of(content: str | list[Block] | dict[str, Any] | None) -> list[Block]:
    """Content as blocks; a text is one."""
    if isinstance(content, list):
        return content
    return [Block(type="text", text=content)] if isinstance(content, str) and content else []
