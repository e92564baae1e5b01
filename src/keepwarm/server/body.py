"""Bodies of requests: how large, how deep and what JSON they may be, and which field of them a
validation error is about. Event loop; large bodies are read in a worker thread.

Nothing lets go of the interpreter while it parses JSON or validates it, so that all streams wait
for one body. How much a body holds is therefore counted before any object is made of it.
"""

from __future__ import annotations

import math
from asyncio import timeout
from codecs import BOM_UTF8
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.engine.status import Phase
from keepwarm.server.errors import ApiError, as_written, refused, unavailable
from keepwarm.server.structure import Structure

# Deep enough for any schema; Python's own recursion ends at about ten times that.
MAX_DEPTH = 100
# A body that does not come would hold a connection for ever.
READ_S = 60.0
# Reading more than this would hold up the streams that share the event loop.
_LARGE_BYTES = 1 << 16
# Values that a body may hold beside a prompt of tokens.
_NUM_VALUES = 200_000
_LONG_CONTEXT = 1 << 18  # tokens, where the model's is not known
_NAME_LEN = 80


class BodyRequest(Request):
    """A request whose body is JSON and within the limits; `model` is what it is to be read as."""

    model: type[BaseModel] | None = None

    async def body(self) -> bytes:
        """Raises ApiError before more than the limit was read."""
        if not hasattr(self, "_body"):
            self._check_is_json()
            limit = self.app.state.config.max_body_bytes
            if (stated := self.headers.get("content-length", "")).isdecimal() and int(
                stated
            ) > limit:
                raise _too_large(limit)
            service = self.app.state.service
            try:
                async with timeout(READ_S) as deadline:
                    with service.reading(deadline):
                        self._body = await self._read(limit)
            except TimeoutError as error:
                if service.engine.status().phase in (Phase.STOPPING, Phase.STOPPED):
                    raise unavailable("the server is stopping") from error
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
        """The value; of a large body already as the model, which FastAPI then takes as it is."""
        body, limit = await self.body(), self._max_values
        if len(body) < _LARGE_BYTES:
            return parse_json(body, max_values=limit)
        return await to_thread.run_sync(partial(_read, body, self.model, limit))

    @property
    def _max_values(self) -> int:
        context_len = self.app.state.service.engine.context_len or _LONG_CONTEXT
        return _NUM_VALUES + 2 * int(context_len)

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
        model = self.body_field.field_info.annotation if self.body_field is not None else None

        async def limited(request: Request) -> Response:
            asked = BodyRequest(request.scope, request.receive)
            if isinstance(model, type) and issubclass(model, BaseModel):
                asked.model = model
            return await handle(asked)

        return limited


def _read(body: bytes, model: type[BaseModel] | None, max_values: int) -> Any:
    """Raises ApiError, which FastAPI lets pass."""
    value = parse_json(body, max_values=max_values)
    if model is None:
        return value
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
        raise first_error(RequestValidationError(found, body=value)) from error


def parse_json(body: bytes, *, max_values: int = _NUM_VALUES + 2 * _LONG_CONTEXT) -> Any:
    """Raises ApiError for what holds too much, and for what is no JSON: also for NaN, for numbers
    that no float holds, and for half of a character, which no answer could quote."""
    structure = Structure()
    if structure.exceeds(body, max_values=max_values, max_depth=MAX_DEPTH):
        if structure.max_depth > MAX_DEPTH:
            raise refused(f"the body nests deeper than {MAX_DEPTH} levels", code="invalid_json")
        words = f"the body holds more than {max_values} values"
        raise ApiError(413, words, code="body_too_large")
    try:
        value = from_json(body.removeprefix(BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise refused(f"the body is not valid JSON: {error}", code="invalid_json") from error
    _check_finite(value)
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


def _check_finite(value: Any) -> None:
    """JSON can write numbers that no float holds. Raises ApiError."""
    level = [value]
    while level:
        if any(isinstance(item, float) and math.isinf(item) for item in level):
            raise refused("the body holds a number that is too large", code="invalid_json")
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [
            item
            for container in containers
            for item in (container.values() if isinstance(container, dict) else container)
        ]


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
