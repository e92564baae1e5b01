"""Writes an answer of the Messages API: one message of blocks, whole or as events. Event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from starlette.responses import JSONResponse

from keepwarm.events import Result
from keepwarm.prompt.calling import Calling, Written
from keepwarm.prompt.reply import Called, Piece, Reply, Said, Thought, ToolCall
from keepwarm.server.errors import ApiError
from keepwarm.server.exchange import Began, Ended, Exchange, Heard, Quiet, Spoken
from keepwarm.server.protocols.messages.signature import signature_of
from keepwarm.server.protocols.writer import Writer
from keepwarm.server.service import new_id

Event = dict[str, Any]
PING: Event = {"type": "ping"}


def written(event: Event) -> bytes:
    """One server-sent event; its name is its type."""
    text = json.dumps(event, ensure_ascii=False)
    return f"event: {event['type']}\ndata: {text}\n\n".encode()


class MessagesWriter(Writer):
    """The answer to one conversation."""

    route = "/v1/messages"

    def __init__(self, exchange: Exchange, *, hides_thoughts: bool) -> None:
        """`hides_thoughts`: thoughts travel in their signatures, and are not shown."""
        super().__init__(exchange)
        self._id = new_id("msg")
        self._hides_thoughts = hides_thoughts

    async def events(self) -> AsyncIterator[bytes]:
        blocks = _Blocks(hides_thoughts=self._hides_thoughts)
        is_begun = False
        async for heard in self.exchange.stream():
            if not is_begun:
                yield written({"type": "message_start", "message": self._start(heard)})
                is_begun = True
            match heard:
                case Quiet():
                    yield written(PING)
                case Spoken(_, pieces, _, parts):
                    for event in blocks.push(pieces, parts):
                        yield written(event)
                case Ended(_, reply, result):
                    for event in blocks.end():
                        yield written(event)
                    yield written(self._delta(reply, result))
        yield written({"type": "message_stop"})
        self.exchange.log_end(self.route)

    def failure(self, error: ApiError) -> bytes:
        return written(error.anthropic_body())

    async def whole(self) -> JSONResponse:
        (ended,) = await self.exchange.whole()
        reply, result = ended.reply, ended.result
        message = self._message(
            content=list(self._content(reply)),
            stop=self._stop(reply, result),
            usage=self._usage(result),
        )
        self.exchange.log_end(self.route)
        return JSONResponse(message | {"keepwarm": self.exchange.report()})

    def _start(self, heard: Heard) -> dict[str, Any]:
        """The message before its first block. What was cached is told at the end, here only where
        it is known: clients take a number that is not 0 for the last word."""
        usage = {**_prompt_usage(0, 0), "output_tokens": 0}
        if isinstance(heard, Began):
            usage |= _prompt_usage(self.exchange.prompt_len, heard.cached_tokens)
        return self._message([], {"stop_reason": None, "stop_sequence": None}, usage)

    def _delta(self, reply: Reply, result: Result) -> Event:
        return {
            "type": "message_delta",
            "delta": self._stop(reply, result),
            "usage": self._usage(result),
            "keepwarm": self.exchange.report(),
        }

    def _message(
        self, content: list[dict[str, Any]], stop: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant"}
        return {
            **head,
            "model": self.exchange.model_name,
            "content": content,
            **stop,
            "usage": usage,
        }

    def _content(self, reply: Reply) -> Iterator[dict[str, Any]]:
        if reply.reasoning:
            yield _thinking_block(reply.reasoning, is_hidden=self._hides_thoughts)
        if reply.content.strip():
            yield {"type": "text", "text": reply.content}
        for call in reply.tool_calls:
            yield _call_block(call, json.loads(_arguments(call)))

    def _stop(self, reply: Reply, result: Result) -> dict[str, Any]:
        asked_len = self.exchange.plan.asked.max_tokens or 0
        if result.finish_reason == "length":
            is_cut = len(result.tokens) >= asked_len
            reason = "max_tokens" if is_cut else "model_context_window_exceeded"
        elif reply.tool_calls:
            reason = "tool_use"
        else:
            reason = "end_turn" if result.stop_text is None else "stop_sequence"
        stop_text = result.stop_text if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop_text}

    def _usage(self, result: Result) -> dict[str, Any]:
        thinking_tokens = self.exchange.reasoning_tokens or 0
        return {
            **_prompt_usage(result.prompt_tokens, result.cached_tokens),
            "output_tokens": len(result.tokens),
            "output_tokens_details": {"thinking_tokens": thinking_tokens},
        }


def _prompt_usage(prompt_tokens: int, cached_tokens: int) -> dict[str, int]:
    """Every token of the prompt once. What was read is not told apart by whether it is kept."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }


class _Blocks:
    """The events of a message's blocks, one after another: of one kind until another begins."""

    def __init__(self, *, hides_thoughts: bool) -> None:
        self._hides_thoughts = hides_thoughts
        self._index = -1
        self._open = ""  # the type of the block that is open
        self._thought: list[str] = []
        self._blanks = ""  # of a text that has no letter yet

    def push(
        self, pieces: list[Piece], written: Sequence[Calling | Written] = ()
    ) -> Iterator[Event]:
        """`written` is of a call that is among `pieces`, or that goes on behind them. Mutates."""
        if any(isinstance(piece, Called) for piece in pieces):
            yield from self._dictated(written)
            written = ()
        yield from self._shown(pieces)
        yield from self._dictated(written)

    def _dictated(self, written: Sequence[Calling | Written]) -> Iterator[Event]:
        for part in written:
            match part:
                case Calling(call_id, name):
                    yield from self.end()
                    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                    yield from self._opened("tool_use", block)
                case Written(text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def _shown(self, pieces: list[Piece]) -> Iterator[Event]:
        for piece in pieces:
            match piece:
                case Said(text) if text:
                    yield from self._said(text)
                case Thought(text) if text:
                    yield from self._opened("thinking", _EMPTY_THOUGHT)
                    self._thought.append(text)
                    if not self._hides_thoughts:
                        yield self._delta({"type": "thinking_delta", "thinking": text})
                case Called() if self._open == "tool_use":
                    yield from self.end()  # it was told while it was written
                case Called(_, call):
                    yield from self.end()
                    yield from self._opened("tool_use", _call_block(call, {}))
                    arguments = _arguments(call)
                    yield self._delta({"type": "input_json_delta", "partial_json": arguments})
                    yield from self.end()

    def end(self) -> Iterator[Event]:
        """Closes the block that is open. Mutates."""
        yield from self._closed()
        self._blanks = ""

    def _closed(self) -> Iterator[Event]:
        if self._open == "thinking":
            signature = signature_of("".join(self._thought), is_hidden=self._hides_thoughts)
            yield self._delta({"type": "signature_delta", "signature": signature})
            self._thought = []
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = ""

    def _said(self, text: str) -> Iterator[Event]:
        """Clients take no block of blanks alone: those wait for a letter."""
        self._blanks += text
        if self._open == "text" or not self._blanks.isspace():
            text, self._blanks = self._blanks, ""
            yield from self._opened("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})

    def _opened(self, kind: str, block: dict[str, Any]) -> Iterator[Event]:
        if self._open != kind:
            yield from self._closed()
            self._index, self._open = self._index + 1, kind
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


_EMPTY_THOUGHT = {"type": "thinking", "thinking": "", "signature": ""}


def _thinking_block(thought: str, *, is_hidden: bool) -> dict[str, Any]:
    shown = "" if is_hidden else thought
    signature = signature_of(thought, is_hidden=is_hidden)
    return {"type": "thinking", "thinking": shown, "signature": signature}


def _call_block(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _arguments(call: ToolCall) -> str:
    """The JSON text of an object: clients take nothing else."""
    try:
        is_object = isinstance(json.loads(call.arguments), dict)
    except ValueError:
        is_object = False
    return call.arguments if is_object else json.dumps({"invalid_json": call.arguments})
