"""Answers that last: both kinds end when their client leaves. Event loop only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from anyio import CancelScope, create_task_group
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from keepwarm.server.errors import CLIENT_GONE
from keepwarm.server.generation import Generation

DONE = b"data: [DONE]\n\n"


def data(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def comment(text: str) -> bytes:
    """What clients skip; it keeps the connection from looking dead."""
    return b": " + text.encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events. When the client leaves, the generation is cancelled at once."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, pieces: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._generation:
            async with create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
                await self._send_all(send)
                tasks.cancel_scope.cancel()

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._pieces) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                self._generation.said()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(
    receive: Receive, generation: Generation, answer: Callable[[], Awaitable[Response]]
) -> Response:
    """What `answer` gives, unless the client leaves before. Raises what `answer` raises."""
    outcome: Response | Exception = Response(status_code=CLIENT_GONE)
    with generation:
        async with create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            try:
                outcome = await answer()
            except Exception as error:
                # Out of here it would come as a group of one.
                outcome = error
            tasks.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _cancel_when_gone(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
