"""Bodies of requests: how large, how deep and what JSON they may be, and which field of them a
validation error is about. Event loop; large bodies are parsed in a worker thread."""

from __future__ import annotations

import json
import math
from asyncio import timeout
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn

from anyio import to_thread
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.server.errors import ApiError, as_written, refused

# Deep enough for any schema; Python's own recursion ends at about ten times that.
MAX_DEPTH = 100
# A body that does not come would hold a connection for ever.
READ_S = 60.0
# Parsing more than this would hold up the streams that share the event loop.
_LARGE_BYTES = 1 << 18
_NAME_LEN = 80


class BodyRequest(Request):
    """A request whose body is JSON and within the limit."""

    async def body(self) -> bytes:
        """Raises ApiError before more than the limit was read."""
        if not hasattr(self, "_body"):
            self._check_is_json()
            limit = self.app.state.config.max_body_bytes
            if (stated := self.headers.get("content-length", "")).isdecimal() and int(
                stated
            ) > limit:
                raise _too_large(limit)
            try:
                async with timeout(READ_S):
                    self._body = await self._read(limit)
            except TimeoutError as error:
                raise _too_slow() from error
        return self._body

    async def _read(self, limit: int) -> bytes:
        chunks, num_bytes = [], 0
        async for chunk in self.stream():
            num_bytes += len(chunk)
            if num_bytes > limit:
                raise _too_large(limit)
            chunks.append(chunk)
        return b"".join(chunks)

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < _LARGE_BYTES:
            return parse_json(body)
        return await to_thread.run_sync(parse_json, body)

    def _check_is_json(self) -> None:
        """A page in a browser may send text to another server unasked, but not JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            stated = f", not {kind[:_NAME_LEN]}" if kind else ""
            raise ApiError(415, f"Content-Type must be application/json{stated}")
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            words = f"bodies with Content-Encoding {encoding[:_NAME_LEN]} are not read"
            raise ApiError(415, f"{words}; send it as it is")


class BodyRoute(APIRoute):
    """A route that reads its body as above."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            return await handle(BodyRequest(request.scope, request.receive))

        return limited


def parse_json(body: bytes) -> Any:
    """Raises ApiError for what is no JSON: also for NaN, which Python would read, for numbers
    that no float holds, and for what nests too deep or holds half of a character."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # also UnicodeDecodeError and integers of thousands of digits
        raise refused(f"the body is not valid JSON: {error}", code="invalid_json") from error
    _check_parts(value)
    return value


def first_error(error: RequestValidationError) -> ApiError:
    """The error as one answer that names one field: the deepest place that something is wrong
    with, which is the alternative the client most likely meant."""
    found: dict[str, list[str]] = {}
    for item in error.errors():
        found.setdefault(_param(item, error.body), []).append(_words(item))
    param = max(found, key=lambda path: path.count(".") + path.count("["))
    words = " or ".join(dict.fromkeys(found[param]))
    return refused(f"{param}: {words}" if param else words, param or None)


def _param(item: Mapping[str, Any], body: Any) -> str:
    """The place that pydantic speaks of, without the names of its alternatives."""
    source, *steps = item["loc"]
    path: list[str | int] = []
    for step in steps if source == "body" else ():
        is_key = isinstance(body, dict) and step in body
        is_index = isinstance(body, list) and isinstance(step, int) and step < len(body)
        if is_key or is_index:
            path.append(step)
            body = body[step]
    if item["type"] == "missing" and steps:
        path.append(steps[-1])
    if source != "body":
        path = list(steps)
    return as_written(path)


def _words(item: Mapping[str, Any]) -> str:
    if item["type"] == "missing":
        return "this field is required" if len(item["loc"]) > 1 else "the body must hold JSON"
    words = str(item["msg"]).removeprefix("Value error, ")
    if item["loc"] == ("body",) and item["type"] != "value_error":
        return "the body must be a JSON object"
    return words.replace("Input should be", "must be", 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:_NAME_LEN]} is too large")
    return value


def _check_parts(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        _check_characters(level)
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [
            item
            for container in containers
            for item in (
                (*container, *container.values()) if isinstance(container, dict) else container
            )
        ]
    raise _too_deep()


def _check_characters(values: Iterable[Any]) -> None:
    """JSON can write half of a character, and then no answer could quote it."""
    try:
        for value in values:
            if isinstance(value, str) and not value.isascii():
                value.encode()
    except UnicodeEncodeError as error:
        words = "the body holds half of a character (a lone surrogate)"
        raise refused(words, code="invalid_json") from error


def _too_deep() -> ApiError:
    return refused(f"the body nests deeper than {MAX_DEPTH} levels", code="invalid_json")


def _too_slow() -> ApiError:
    return ApiError(
        408,
        f"the body did not come within {READ_S:g} s; send it again at once",
        code="body_too_slow",
        headers={"Connection": "close"},
    )


def _too_large(limit: int) -> ApiError:
    # The rest of the body is not read, so the connection cannot be used again.
    return ApiError(
        413,
        f"the body is larger than {limit} bytes (--max-body-bytes)",
        code="body_too_large",
        headers={"Connection": "close"},
    )
