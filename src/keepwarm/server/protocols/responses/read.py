"""Reads a body of the Responses API. Plain functions; any thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keepwarm.engine.grammar import any_object
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.prompt.hygiene import ATTACHMENTS
from keepwarm.prompt.messages import Message
from keepwarm.server.asked import AskedChat, SamplingAsked, ThinkingAsked, ToolChoice
from keepwarm.server.errors import refused
from keepwarm.server.protocols.messages.signature import thought_in
from keepwarm.server.protocols.responses.schema import Item, Part, ResponsesRequest, ToolName
from keepwarm.server.protocols.responses.tools import Kind, Tools

# Templates know three steps at most.
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
_CALLS: dict[str, Kind] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "tool_search_call": "tool_search",
}
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")


def read_response(
    body: ResponsesRequest, past: Sequence[Item], tools: Tools, namespace: str
) -> AskedChat:
    """`past` are the items of the responses that this one goes on from. Raises ApiError."""
    reader = _Reader(tools)
    for item in (*past, *body.items):
        reader.read(item)
    messages = reader.messages
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    if all(message["role"] in ("system", "developer") for message in messages):
        raise refused("the input is empty", "input")
    return AskedChat(
        namespace=namespace,
        messages=messages,
        tools=tools.first or None,
        later_tools=tools.later,
        tool_choice=_tool_choice(body, tools),
        thinking=_thinking(body),
        template_kwargs=body.chat_template_kwargs or {},
        grammar=_grammar(body),
        streams=bool(body.stream),
        max_tokens=body.max_output_tokens,
        sampling=SamplingAsked(temperature=body.temperature, top_p=body.top_p),
        notes=tuple(dict.fromkeys([*tools.notes, *reader.notes])),
    )


@dataclass(slots=True)
class _Reader:
    """Items to neutral messages. A reply came as several items; what an item becomes depends on
    the items before it only."""

    tools: Tools
    messages: list[Message] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)  # of the calls so far, by id

    def read(self, item: Item) -> None:
        """Raises ApiError. Mutates."""
        if item.type == "message":
            self._message(item)
        elif item.type == "reasoning":
            thought = _thought(item)
            if thought:
                reply = self._reply()
                reply["reasoning_content"] = reply.get("reasoning_content", "") + thought
        elif item.type in _CALLS:
            self._call(item, _CALLS[item.type])
        elif item.type in _OUTPUTS:
            self._output(item)
        elif item.type == "item_reference":
            words = "items are not kept by themselves: send the item, or a previous_response_id"
            raise refused(words, "input", "item_not_found")
        else:
            self.notes.append(f"items of type {item.type} left out: nothing is known of them")

    def _message(self, item: Item) -> None:
        if item.role == "assistant":
            reply = self._reply()
            texts = [part["text"] for part in _parts(item.content)]
            reply["content"] = (reply["content"] or "") + "".join(texts)
        else:
            self.messages.append({"role": item.role, "content": _parts(item.content)})

    def _call(self, item: Item, kind: Kind) -> None:
        known = self.tools.called(item.name or kind, item.namespace, kind)
        given = {"input": item.input} if kind == "custom" else item.arguments
        arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
        call_id = item.call_id or item.id or ""
        self._names[call_id] = known.flat_name
        function = {"name": known.flat_name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._reply().setdefault("tool_calls", []).append(call)

    def _output(self, item: Item) -> None:
        call_id = item.call_id or ""
        content: Any = _parts(item.output)
        if item.type == "tool_search_output":
            content = self.tools.find(item.tools or ())
        message: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self.messages.append(message)

    def _reply(self) -> Message:
        """The assistant's message that the items of one reply make. Mutates."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _parts(content: str | Sequence[Part] | None) -> list[dict[str, Any]]:
    """Content as text parts; what is no text is a short text that says what was there."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content or ():
        text = part.text if part.text is not None else part.refusal
        if text is None:
            text = f"[{ATTACHMENTS.get(part.type, part.type)}: this model reads text only]"
        parts.append({"type": "text", "text": text})
    return parts


def _thought(item: Item) -> str:
    """A thought that a reply began with, wherever the client kept it."""
    if carried := thought_in(item.encrypted_content or ""):
        return carried
    parts = item.content if isinstance(item.content, list) and item.content else item.summary
    return "".join(part.text or "" for part in parts or ())


def _tool_choice(body: ResponsesRequest, tools: Tools) -> ToolChoice:
    wanted, is_parallel = body.tool_choice, body.parallel_tool_calls is not False
    if not isinstance(wanted, ToolName):
        return ToolChoice(wanted or "auto", is_parallel=is_parallel)
    if wanted.type == "allowed_tools":
        names = tuple(_flat_names(wanted.tools or (), tools))
        return ToolChoice(wanted.mode or "auto", names, is_parallel=is_parallel)
    if wanted.type not in ("function", "custom"):
        raise refused(f"a tool_choice of type {wanted.type} is not supported", "tool_choice")
    return ToolChoice(
        "required", tuple(_flat_names([wanted.model_dump()], tools)), is_parallel=False
    )


def _flat_names(choices: Iterable[dict[str, Any]], tools: Tools) -> Iterable[str]:
    for choice in choices:
        kind: Kind = "custom" if choice.get("type") == "custom" else "function"
        name, namespace = str(choice.get("name") or ""), choice.get("namespace")
        yield tools.called(name, namespace, kind).flat_name


def _thinking(body: ResponsesRequest) -> ThinkingAsked:
    effort = body.reasoning.effort if body.reasoning is not None else None
    return ThinkingAsked(effort=_EFFORTS.get(effort, effort) if effort is not None else None)


def _grammar(body: ResponsesRequest) -> Grammar | None:
    wanted = body.text.format if body.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return any_object()
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(wanted.schema_, ensure_ascii=False))
