"""Requests given to the server's own application, without a socket. Event loop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Scope


@dataclass(slots=True)
class Answered:
    """What the application sent."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> Any:
        return json.loads(self.content)


async def post(app: ASGIApp, path: str, body: dict[str, Any]) -> Answered:
    """One request, as a client on this machine would send it."""
    content = json.dumps(body).encode()
    coming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    answered = Answered()

    async def receive() -> Message:
        if coming:
            return coming.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answered.content += message.get("body", b"")

    await app(_scope(path, len(content)), receive, send)
    return answered


def _scope(path: str, length: int) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(length).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
