"""Reads a body of the Messages API. Plain functions; any thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.prompt.messages import Message
from keepwarm.server.asked import AskedChat, SamplingAsked, ThinkingAsked, ToolChoice
from keepwarm.server.errors import refused
from keepwarm.server.protocols.messages.schema import (
    Block,
    CountTokensRequest,
    MessagesRequest,
    ToolSpec,
    Turn,
    blocks_of,
)
from keepwarm.server.protocols.messages.signature import thought_in

# Templates know three steps at most.
_EFFORTS = {"xhigh": "high", "max": "high"}
_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def read_messages(body: MessagesRequest, namespace: str) -> AskedChat:
    """Raises ApiError for what cannot be meant."""
    return replace(
        read_conversation(body, namespace),
        streams=bool(body.stream),
        max_tokens=body.max_tokens,
        sampling=SamplingAsked(
            temperature=body.temperature, top_p=body.top_p, top_k=body.top_k or None
        ),
        stop=body.stop_sequences,
    )


def read_conversation(body: CountTokensRequest, namespace: str) -> AskedChat:
    """What the template writes, and what the answer must look like. Raises ApiError."""
    tools = {tool.name: _tool(tool) for tool in body.tools or () if tool.is_custom}
    reader = _Reader(tools)
    messages = [message for turn in body.messages for message in reader.messages(turn)]
    if not messages:
        raise refused("the messages are empty", "messages")
    if system := _joined(blocks_of(body.system)):
        messages.insert(0, {"role": "system", "content": system})
    if messages[-1]["role"] == "assistant":
        words = "a reply cannot be begun for the model: the last message must be the user's"
        raise refused(words, "messages")
    deferred = {tool.name for tool in body.tools or () if tool.defer_loading}
    return AskedChat(
        namespace=namespace,
        messages=messages,
        tools=[tool for name, tool in tools.items() if name not in deferred] or None,
        later_tools=[tools[name] for name in reader.referenced if name in deferred],
        tool_choice=_tool_choice(body),
        thinking=_thinking(body),
        grammar=_grammar(body),
        notes=tuple(_left_out(body)),
    )


class _Reader:
    """Turns to neutral messages. What a turn becomes depends on the turns before it only."""

    def __init__(self, tools: dict[str | None, dict[str, Any]]) -> None:
        self._tools = tools
        self._names: dict[str, str] = {}  # of the calls so far, by id
        self.referenced: list[str] = []  # names of tools whose schemas the messages write

    def messages(self, turn: Turn) -> list[Message]:
        if turn.role == "assistant":
            return [self._assistant(turn.blocks)]
        if turn.role == "system":
            parts = _joined(turn.blocks, self._text)
            return [{"role": "system", "content": parts}] if parts else []
        results = [block for block in turn.blocks if block.type == "tool_result"]
        others = [block for block in turn.blocks if block.type != "tool_result"]
        messages = [self._result(block) for block in results]
        if others or not results:
            messages.append({"role": "user", "content": _joined(others, self._text)})
        return messages

    def _assistant(self, blocks: Sequence[Block]) -> Message:
        said = "".join(block.text or "" for block in blocks if block.type == "text")
        message: Message = {"role": "assistant", "content": said}
        if thought := "".join(_thought(block) for block in blocks):
            message["reasoning_content"] = thought
        calls = []
        for block in blocks:
            if block.type == "tool_use":
                assert block.id is not None and block.name is not None  # the schema has seen to it
                self._names[block.id] = block.name
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        return message

    def _result(self, block: Block) -> Message:
        content = block.content if not isinstance(block.content, dict) else None
        parts = _joined(blocks_of(content), self._text)
        if block.is_error and not (parts and parts[0]["text"].startswith(("Error", "<"))):
            parts = [{"type": "text", "text": "Error: "}, *parts]
        call_id = block.tool_use_id or ""
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": parts}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        return message

    def _text(self, block: Block) -> dict[str, Any]:
        """A block as the neutral form has it: text, or what hygiene puts a text in place of."""
        if block.type == "text":
            return {"type": "text", "text": block.text}
        if block.type == "tool_reference":
            return {"type": "text", "text": self._definition(block.tool_name or "")}
        if block.type == "tool_addition":
            return {"type": "text", "text": self._definition((block.tool or {}).get("name", ""))}
        if block.type == "tool_removal":
            name = (block.tool or {}).get("name", "")
            return {"type": "text", "text": f"The tool {name} can no longer be called."}
        if block.type == "image" or block.type == "document":
            return {"type": block.type}
        return {"type": "text", "text": f"[{block.type}: this server reads text only]"}

    def _definition(self, name: str) -> str:
        """A tool as it is written where it is referenced."""
        tool = self._tools.get(name)
        if tool is None:
            return f"There is no tool called {name}."
        if name not in self.referenced:
            self.referenced.append(name)
        written = json.dumps(tool["function"], ensure_ascii=False)
        return f"From here on this tool can be called, too:\n{written}"


def _joined(
    blocks: Iterable[Block], part_of: Any = lambda block: {"type": "text", "text": block.text or ""}
) -> list[dict[str, Any]]:
    """Parts of a text, each on lines of its own: the prompt joins them as they are."""
    parts = [part_of(block) for block in blocks]
    for part in parts[:-1]:
        text = part.get("text")
        if text and not text.endswith("\n"):
            part["text"] = f"{text}\n"
    return parts


def _thought(block: Block) -> str:
    if block.type != "thinking":
        return ""
    return block.thinking or thought_in(block.signature or "")


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    kept = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": kept}


def _tool_choice(body: CountTokensRequest) -> ToolChoice:
    wanted = body.tool_choice
    if wanted is None:
        return ToolChoice()
    names = (wanted.name,) if wanted.type == "tool" and wanted.name else ()
    mode: Any = _CHOICES[wanted.type]
    return ToolChoice(mode, names, is_parallel=not wanted.disable_parallel_tool_use and not names)


def _thinking(body: CountTokensRequest) -> ThinkingAsked:
    wanted, config = body.thinking, body.output_config
    effort = config.effort if config is not None else None
    return ThinkingAsked(
        is_on=None if wanted is None else wanted.type != "disabled",
        effort=_EFFORTS.get(effort, effort) if effort is not None else None,
        budget_tokens=wanted.budget_tokens if wanted is not None else None,
    )


def _grammar(body: CountTokensRequest) -> Grammar | None:
    config = body.output_config
    wanted = (config.format if config is not None else None) or body.output_format
    if wanted is None:
        return None
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(wanted.schema_, ensure_ascii=False))


def _left_out(body: CountTokensRequest) -> Iterable[str]:
    for tool in body.tools or ():
        if not tool.is_custom:
            yield f"tool {tool.name or tool.type} left out: only tools with an input_schema are run"
    if body.mcp_servers:
        yield "mcp_servers left out: the client must call them"
