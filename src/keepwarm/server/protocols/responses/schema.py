"""The requests of OpenAI's Responses API, as they are checked and documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from keepwarm.server.fields import Items, Loose, Open, Positive, Share, Unsupported

# What an item of each kind cannot be without; kinds that are not here are taken as they are.
_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
    "item_reference": ("id",),
}


class Part(Open):
    """A part of a message or of a tool's output."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Open):
    """A message, a thought, a call, or what a call gave."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Items[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | Items[Part] | None = None
    summary: Items[Part] | None = None
    encrypted_content: str | None = None
    tools: Items[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Item:
        missing = [name for name in _NEEDED.get(self.type, ()) if getattr(self, name) is None]
        if missing:
            raise ValueError(f"an item of type {self.type} needs {', '.join(missing)}")
        return self


class ToolFormat(Loose):
    """What the input of a custom tool looks like."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ToolSpec(Loose):
    """A tool that the client runs, several under one name, or one of OpenAI's servers', which is
    left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: ToolFormat | None = None
    tools: Items[ToolSpec] | None = None
    execution: str | None = None
    defer_loading: bool | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ToolSpec:
        if self.type in ("function", "custom", "namespace") and not self.name:
            raise ValueError(f"a tool of type {self.type} needs a name")
        return self


class ToolName(Open):
    """A tool to call, or a list of those that may be called."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Items[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ToolName:
        if self.type in ("function", "custom") and not self.name:
            raise ValueError(f"a choice of type {self.type} needs a name")
        if self.type == "allowed_tools" and not self.tools:
            raise ValueError("a choice of type allowed_tools needs tools")
        return self


class TextFormat(Loose):
    """What the answer must look like."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"type": {"const": "json_schema"}}, "required": ["type"]},
            "then": {"properties": {"schema": {"type": "object"}}, "required": ["schema"]},
        }
    )

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _has_schema(self) -> TextFormat:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("a format of type json_schema needs a schema")
        return self


class TextConfig(Loose):
    """Of the answer's text."""

    format: TextFormat | None = None


class Reasoning(Loose):
    """How much to think, and whether thoughts are told as a summary."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Loose):
    """POST /v1/responses"""

    model: str | None = None
    input: str | Items[Item] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    include: Items[str] | None = None
    tools: Items[ToolSpec] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolName | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None  # a hint other servers need; ours finds prefixes itself
    chat_template_kwargs: dict[str, Any] | None = None
    background: Annotated[bool | None, Unsupported((False,))] = None
    conversation: Annotated[Any, Unsupported()] = None
    prompt: Annotated[Any, Unsupported()] = None

    @property
    def items(self) -> list[Item]:
        """The input; a text is a user's message."""
        if isinstance(self.input, str):
            return [Item(role="user", content=self.input)] if self.input else []
        return self.input

    @property
    def includes_thoughts(self) -> bool:
        """Whether thoughts are to travel in the items: the client keeps them, not the server."""
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def summarizes(self) -> bool:
        return self.reasoning is not None and self.reasoning.summary not in (None, "none")
