"""The items of one answer and the events that tell of them, as the pieces of a reply come in. Event
loop."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keepwarm.prompt.reply import Called, Piece, Reply, Said, Thought, ToolCall
from keepwarm.server.protocols.messages.signature import signature_of
from keepwarm.server.protocols.responses.tools import Tools, custom_input

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Text:
    """An item that is one text, and what its events are called."""

    item_type: str
    prefix: str  # of its id
    field: str  # of the item, that the text stands in
    part_event: str
    text_event: str
    index: str  # what its events call the place in that field
    empty: Mapping[str, Any]  # the item before its text
    bare_part: Mapping[str, Any]
    extra: Mapping[str, Any]  # that events about the text have, too

    def part(self, text: str) -> dict[str, Any]:
        return {**self.bare_part, "text": text}


_THOUGHT = _Text(
    item_type="reasoning",
    prefix="rs",
    field="content",
    part_event="response.content_part",
    text_event="response.reasoning_text",
    index="content_index",
    empty={"summary": [], "content": []},
    bare_part={"type": "reasoning_text"},
    extra={},
)
# A thought where clients look for a summary of it: many show nothing else.
_SUMMARY = _Text(
    item_type="reasoning",
    prefix="rs",
    field="summary",
    part_event="response.reasoning_summary_part",
    text_event="response.reasoning_summary_text",
    index="summary_index",
    empty={"summary": []},
    bare_part={"type": "summary_text"},
    extra={},
)
_MESSAGE = _Text(
    item_type="message",
    prefix="msg",
    field="content",
    part_event="response.content_part",
    text_event="response.output_text",
    index="content_index",
    empty={"role": "assistant", "content": []},
    bare_part={"type": "output_text", "annotations": [], "logprobs": []},
    extra={"logprobs": []},
)


class Output:
    """Items one after another: of one kind until another begins."""

    def __init__(self, tools: Tools, *, summarizes: bool, includes_thoughts: bool) -> None:
        self.items: list[dict[str, Any]] = []  # the last one may still be open
        self._tools = tools
        self._thoughts = _SUMMARY if summarizes else _THOUGHT
        self._includes_thoughts = includes_thoughts
        self._open: _Text | None = None
        self._texts: list[str] = []  # of the item that is open
        self._blanks = ""  # of a message that has no letter yet

    def push(self, pieces: Iterable[Piece]) -> Iterator[Event]:
        """Mutates."""
        for piece in pieces:
            match piece:
                case Said(text) if text:
                    yield from self._said(text)
                case Thought(text) if text:
                    yield from self._opened(self._thoughts)
                    yield self._delta(text)
                case Called(_, call):
                    yield from self._closed("completed")
                    yield from self._called(call)

    def end(self, status: str) -> Iterator[Event]:
        """Closes the item that is open: "completed" or "incomplete". Mutates."""
        yield from self._closed(status)
        self._blanks = ""

    def _said(self, text: str) -> Iterator[Event]:
        """Blank lines alone are no message: they wait for a letter."""
        self._blanks += text
        if self._open is _MESSAGE or not self._blanks.isspace():
            text, self._blanks = self._blanks, ""
            yield from self._opened(_MESSAGE)
            yield self._delta(text)

    def _opened(self, kind: _Text) -> Iterator[Event]:
        if self._open is kind:
            return
        yield from self._closed("completed")
        self._open, self._texts = kind, []
        item = {"id": _new_id(kind.prefix), "type": kind.item_type, "status": "in_progress"}
        self.items.append({**item, **kind.empty})
        yield self._about("response.output_item.added", item=dict(self.items[-1]))
        yield self._part(f"{kind.part_event}.added", part=kind.part(""))

    def _delta(self, text: str) -> Event:
        assert self._open is not None
        self._texts.append(text)
        return self._part(f"{self._open.text_event}.delta", delta=text, **self._open.extra)

    def _closed(self, status: str) -> Iterator[Event]:
        kind, self._open = self._open, None
        if kind is None:
            return
        text = "".join(self._texts)
        self.items[-1] |= {"status": status, kind.field: [kind.part(text)]}
        if kind is not _MESSAGE and self._includes_thoughts:
            self.items[-1]["encrypted_content"] = signature_of(text, is_hidden=True)
        yield self._part(f"{kind.text_event}.done", kind, text=text, **kind.extra)
        yield self._part(f"{kind.part_event}.done", kind, part=kind.part(text))
        yield self._about("response.output_item.done", item=self.items[-1])

    def _called(self, call: ToolCall) -> Iterator[Event]:
        known = self._tools.known(call.name)
        names = {} if known.namespace is None else {"namespace": known.namespace}
        about = {"call_id": call.id, "status": "completed"}
        if known.kind == "tool_search":
            item = {
                "id": _new_id("tsc"),
                "type": "tool_search_call",
                **about,
                "execution": "client",
                "arguments": json.loads(call.arguments),
            }
            empty, field, event = item, "", ""
        elif known.kind == "custom":
            text = custom_input(call.arguments)
            item = {"id": _new_id("ctc"), "type": "custom_tool_call", **about, "name": known.name}
            item |= {**names, "input": text}
            empty, field, event = {**item, "input": ""}, "input", "custom_tool_call_input"
        else:
            item = {"id": _new_id("fc"), "type": "function_call", **about, "name": known.name}
            item |= {**names, "arguments": call.arguments}
            empty, field, event = {**item, "arguments": ""}, "arguments", "function_call_arguments"
        self.items.append(item)
        yield self._about("response.output_item.added", item={**empty, "status": "in_progress"})
        if event:
            told = {"item_id": item["id"]}
            yield self._about(f"response.{event}.delta", **told, delta=item[field])
            yield self._about(
                f"response.{event}.done", **told, **{field: item[field]}, name=known.name
            )
        yield self._about("response.output_item.done", item=item)

    def _part(self, name: str, kind: _Text | None = None, **more: Any) -> Event:
        kind = kind or self._open
        assert kind is not None
        return self._about(name, item_id=self.items[-1]["id"], **{kind.index: 0}, **more)

    def _about(self, event: str, /, **more: Any) -> Event:
        return {"type": event, "output_index": len(self.items) - 1, **more}


def pieces_of(reply: Reply) -> Iterator[Piece]:
    """A whole reply as it would have come in."""
    if reply.reasoning:
        yield Thought(reply.reasoning)
    yield Said(reply.content)
    for index, call in enumerate(reply.tool_calls):
        yield Called(index, call)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
