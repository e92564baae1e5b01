"""Writes an answer of the Responses API, whole or as events. Event loop."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from time import time
from typing import Any

from starlette.responses import JSONResponse

from keepwarm.events import Result
from keepwarm.server.errors import ApiError
from keepwarm.server.exchange import Ended, Exchange, Quiet, Spoken
from keepwarm.server.protocols.responses.items import Output, pieces_of
from keepwarm.server.protocols.responses.schema import Item, ResponsesRequest
from keepwarm.server.protocols.responses.store import Store
from keepwarm.server.protocols.responses.tools import Tools
from keepwarm.server.protocols.writer import Writer
from keepwarm.server.stream import comment


class ResponsesWriter(Writer):
    """The answer to one request."""

    route = "/v1/responses"

    def __init__(
        self, exchange: Exchange, *, body: ResponsesRequest, tools: Tools, store: Store
    ) -> None:
        super().__init__(exchange)
        self._body = body
        self._store = store
        self._output = Output(
            tools, summarizes=body.summarizes, includes_thoughts=body.includes_thoughts
        )
        self._head = _head(body, exchange.model_name)
        self._number = 0  # of the next event

    async def events(self) -> AsyncIterator[bytes]:
        yield self._event({"type": "response.created", "response": self._response("in_progress")})
        yield self._in_progress()
        async for heard in self.exchange.stream():
            match heard:
                case Quiet(progress):
                    # Some clients count events alone as signs of life.
                    is_waiting = not self._output.items
                    yield self._in_progress() if is_waiting else comment(progress or "keep-alive")
                case Spoken(_, pieces):
                    for event in self._output.push(pieces):
                        yield self._event(event)
                case Ended(_, _, result):
                    status = _status(result)
                    for event in self._output.end(status):
                        yield self._event(event)
                    response = self._ended(status, result)
                    yield self._event({"type": f"response.{status}", "response": response})
        self.exchange.log_end(self.route)

    async def whole(self) -> JSONResponse:
        (ended,) = await self.exchange.whole()
        status = _status(ended.result)
        for _ in (*self._output.push(pieces_of(ended.reply)), *self._output.end(status)):
            pass
        response = self._ended(status, ended.result)
        self.exchange.log_end(self.route)
        return JSONResponse(response)

    def failure(self, error: ApiError) -> bytes:
        kind = "rate_limit_exceeded" if error.status_code == 429 else "server_error"
        failed = {"error": {"code": kind, "message": error.detail}}
        response = self._response("failed") | failed
        return self._event({"type": "response.failed", "response": response})

    def _event(self, event: dict[str, Any]) -> bytes:
        """One server-sent event; its name is its type. Mutates."""
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        text = json.dumps(numbered, ensure_ascii=False)
        return f"event: {event['type']}\ndata: {text}\n\n".encode()

    def _in_progress(self) -> bytes:
        response = self._response("in_progress")
        return self._event({"type": "response.in_progress", "response": response})

    def _response(self, status: str) -> dict[str, Any]:
        return {**self._head, "status": status, "output": self._output.items}

    def _ended(self, status: str, result: Result) -> dict[str, Any]:
        """The whole response; kept where the client goes on from it."""
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = self._response(status) | {
            "completed_at": int(time()),
            "incomplete_details": reason,
            "usage": self._usage(result),
            "keepwarm": self.exchange.report(),
        }
        if self._body.store is not False:
            self._keep(response)
        return response

    def _keep(self, response: dict[str, Any]) -> None:
        items = [*self._body.items, *map(Item.model_validate, response["output"])]
        size = sum(len(item.model_dump_json(exclude_none=True)) for item in items)
        size += len(json.dumps(response))
        previous = self._body.previous_response_id
        namespace = self.exchange.plan.asked.namespace
        self._store.put(namespace, response, items, previous, size)

    def _usage(self, result: Result) -> dict[str, Any]:
        return {
            "input_tokens": result.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": result.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": len(result.tokens),
            "output_tokens_details": {"reasoning_tokens": self.exchange.reasoning_tokens or 0},
            "total_tokens": result.prompt_tokens + len(result.tokens),
        }


def _status(result: Result) -> str:
    return "incomplete" if result.finish_reason == "length" else "completed"


def _head(body: ResponsesRequest, model_name: str) -> dict[str, Any]:
    """What all answers to a request repeat of it."""
    # Not the input, which may be a long conversation: this is the event loop.
    told = {"reasoning", "text", "tool_choice", "tools"}
    given = body.model_dump(mode="json", by_alias=True, exclude_none=True, include=told)
    choice = given.get("tool_choice", "auto")
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time()),
        "model": model_name,
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": given.get("reasoning", {"effort": None, "summary": None}),
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": given.get("text", {"format": {"type": "text"}}),
        "tool_choice": choice,
        "tools": given.get("tools", []),
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
    }
