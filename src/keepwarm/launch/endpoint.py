"""A server as a client is told of it. Plain data; any thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that is ready."""

    url: str
    model: str
    context_len: int | None
    api_key: str | None = None
