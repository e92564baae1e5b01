"""Errors as OpenAI's clients read them, and what each exception becomes. Event loop only."""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from keepwarm.errors import (
    Abandoned,
    BadInput,
    Overloaded,
    RenderError,
    TooLarge,
    TooLong,
    Unavailable,
)
from keepwarm.server.log import printable

log = logging.getLogger("keepwarm.server")

INVALID = "invalid_request_error"
# Nobody reads this answer; the number is what proxies log for it.
CLIENT_GONE = 499
# How long clients should wait while a model is loaded or the server ends.
_RETRY_AFTER_S = 5

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorDetail(BaseModel):
    """What went wrong, and which field of the request it was."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The form of every answer that is not a success."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An answer that is not a success. An HTTPException, since FastAPI lets those pass while it
    reads a body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        anthropic_words: str | None = None,
    ) -> None:
        """`anthropic_words` go before `message` where Anthropic's clients look for their own."""
        super().__init__(status, message, headers)
        self._anthropic_words = anthropic_words or message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """OpenAI's form."""
        usual = "server_error" if self.status_code >= 500 else INVALID
        detail = {
            "message": self.detail,
            "type": _KINDS.get(self.status_code, usual),
            "param": self.param,
            "code": self.code,
        }
        return {"error": detail}

    def anthropic_body(self, request_id: str | None = None) -> dict[str, Any]:
        """Anthropic's form."""
        usual = "api_error" if self.status_code >= 500 else INVALID
        kind = _ANTHROPIC_KINDS.get(self.status_code, usual)
        error = {"type": kind, "message": self._anthropic_words}
        return {"type": "error", "error": error, "request_id": request_id}

    def answer(self, scope: Scope) -> JSONResponse:
        """The answer to a request, with a line in the log: whoever wonders looks there."""
        request_id = scope.get("state", {}).get("request_id", "")
        where = printable(f"{scope['method']} {scope['path']}")
        detail = printable(self.detail)
        log.info("%s: %d %s [%s]", where, self.status_code, detail, request_id)
        body = self.anthropic_body(request_id) if speaks_anthropic(scope) else self.body()
        return JSONResponse(body, self.status_code, headers=dict(self.headers or {}))


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request came by Anthropic's API: its clients name the version of it."""
    is_its_route = scope["path"].removeprefix("/v1").startswith("/messages")
    return is_its_route or any(name == b"anthropic-version" for name, _ in scope["headers"])


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request cannot be meant so."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: Exception, param: str | None = None) -> ApiError:
    """What the client is told of `error`; `param` is the field it is about, where that is known.
    What nobody expected is logged with its traceback and told without its words."""
    match error:
        case ApiError():
            return error
        case TooLong():
            lengths = f"{error.prompt_len} tokens > {error.context_len} maximum"
            return ApiError(
                400,
                str(error),
                param=param,
                code="context_length_exceeded",
                anthropic_words=f"prompt is too long: {lengths}",
            )
        case TooLarge():
            return ApiError(413, str(error), param=param, code="too_large")
        case RenderError():
            return ApiError(400, str(error), param=param or "messages", code="template_refused")
        case Abandoned():
            return ApiError(CLIENT_GONE, str(error), code="client_gone")
        case BadInput():
            return ApiError(400, str(error), param=param)
        case Overloaded():
            after = str(max(1, math.ceil(error.retry_after_s)))
            return ApiError(429, str(error), code="queue_full", headers={"Retry-After": after})
        case Unavailable():
            return unavailable(str(error))
        case HTTPException():
            headers = dict(error.headers or {})
            return ApiError(error.status_code, error.detail, headers=headers)
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the request failed inside the server; its log says why", code="internal")


def unavailable(message: str) -> ApiError:
    """Not now, but soon."""
    headers = {"Retry-After": str(_RETRY_AFTER_S)}
    return ApiError(503, message, code="unavailable", headers=headers)


def as_written(path: list[str | int]) -> str:
    """A place in a body, as people write it: `messages[0].content`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
