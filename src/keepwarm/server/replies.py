"""The answers, as the OpenAPI document describes them. Answers are built as plain objects and are
not checked against these on the way out; the tests do that."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from keepwarm.server.errors import ErrorBody


class TimingsMs(BaseModel):
    """Milliseconds spent in each part of a request."""

    queue: float
    load: float
    lookup: float
    restore: float
    prefill: float
    insert: float
    decode: float


class Miss(BaseModel):
    """What was read again though it had been read before, and why."""

    read_again_tokens: int
    read_again_s: float
    parted_at: int  # tokens shared with the nearest prompt of the same caller
    place: str
    cause: str
    advice: str | None
    ago_s: float
    before: str | None = None  # the text at the place, what stood there, and what stands there now
    was: str | None = None
    now: str | None = None


class CacheReport(BaseModel):
    """What the cache did for a request."""

    cached_tokens: int
    prefilled_tokens: int
    reason: str
    source: str
    disk_bytes: int
    timings_ms: TimingsMs
    hygiene: list[str] | None = None  # the rules that changed what was sent, where any did
    notes: list[str] | None = None  # what was left out of the request
    misses: list[Miss] | None = None  # where the request asked for them and there were any


class PromptDetails(BaseModel):
    """Of the prompt tokens, those that needed no prefill."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Of the generated tokens, those of thoughts."""

    reasoning_tokens: int


class Usage(BaseModel):
    """How many tokens a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


class AnsweredFunction(BaseModel):
    """What was called, with JSON text for its arguments."""

    name: str
    arguments: str


class AnsweredCall(BaseModel):
    """One tool call."""

    id: str
    type: str
    function: AnsweredFunction


class AnswerMessage(BaseModel):
    """The assistant's message."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(BaseModel):
    """One reply."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: str


class ChatCompletion(BaseModel):
    """The answer to a chat."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    keepwarm: CacheReport


class TextChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str


class Completion(BaseModel):
    """The answer to a request for completions."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage
    keepwarm: CacheReport


class ModelCard(BaseModel):
    """A model that this server answers with."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | None
    type: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int | None


class ModelList(BaseModel):
    """All of them: one."""

    object: str
    data: list[ModelCard]
    has_more: bool
    first_id: str
    last_id: str
    models: list[dict[str, Any]]  # the same in the form of Codex's catalogue


class Root(BaseModel):
    """What answers."""

    server: str
    version: str
    model: str


class Health(BaseModel):
    """Whether the process lives, and whether it takes requests."""

    status: str
    live: bool
    ready: bool


class BoundaryMark(BaseModel):
    """A place in a prompt where something ends."""

    position: int
    kind: str


class Tokenized(BaseModel):
    """A prompt as the model reads it."""

    tokens: list[int]
    count: int
    max_model_len: int | None
    boundaries: list[BoundaryMark]


class Detokenized(BaseModel):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(BaseModel):
    """What vLLM's clients read, under its names."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int | None


WORDS = {
    400: "The request cannot be meant so; `param` names the field.",
    401: "An API key is needed.",
    403: "The server does not answer to this Host.",
    404: "There is nothing here.",
    408: "The body did not come in time.",
    413: "The body is larger than the server takes, or needs more memory than there is.",
    415: "The body is not JSON.",
    429: "The queue is full; `Retry-After` says when to try again.",
    500: "The request failed inside the server.",
    503: "The model is being loaded, or the server stops.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may end with these."""
    return {status: {"model": ErrorBody, "description": WORDS[status]} for status in statuses}


GUARDED = (401, 403)
GENERATES = (400, *GUARDED, 408, 413, 415, 429, 500, 503)
EVENTS: dict[str, Any] = {
    "description": "The answer, or with `stream` its parts as server-sent events.",
    "content": {"text/event-stream": {}},
}


class Explanation(BaseModel):
    """What the cache has of a prompt now, and where it parts from the nearest one."""

    object: str
    prompt_tokens: int
    cached_tokens: int
    prefill_s: float  # of the rest, as measured on this machine
    reason: str
    nearest: Miss | None
    words: str


class Answer(BaseModel):
    """What the log said of a request."""

    time: float
    route: str
    model: str
    message: str
    usage: Usage
    keepwarm: CacheReport
    misses: list[Miss]


class Answers(BaseModel):
    data: list[Answer]  # the oldest first
