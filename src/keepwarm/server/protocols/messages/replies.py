"""The answers of the Messages API, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from keepwarm.server.replies import WORDS, CacheReport


class OutputDetails(BaseModel):
    """Of the generated tokens, those of thoughts."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """How many tokens a request took. The first three add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class Message(BaseModel):
    """The answer: blocks of type `thinking`, `text` and `tool_use`."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    keepwarm: CacheReport


class TokenCount(BaseModel):
    """The length of a prompt."""

    input_tokens: int


class MessageErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessageError(BaseModel):
    """The form of every answer that is not a success."""

    type: str
    error: MessageErrorDetail
    request_id: str | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may end with these."""
    return {status: {"model": MessageError, "description": WORDS[status]} for status in statuses}
