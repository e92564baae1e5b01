"""The answers of the Responses API, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from keepwarm.server.replies import CacheReport


class InputDetails(BaseModel):
    """Of the prompt's tokens, those that needed no prefill."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Of the generated tokens, those of thoughts."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """How many tokens a request took."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Response(BaseModel):
    """The answer: items of type `reasoning`, `message`, `function_call`, `custom_tool_call` and
    `tool_search_call`. Further fields repeat the request."""

    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    usage: ResponseUsage | None
    keepwarm: CacheReport | None = None


class Deleted(BaseModel):
    """What was forgotten."""

    id: str
    object: str
    deleted: bool
