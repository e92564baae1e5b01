"""What happens before any route: the host and the key are checked, and answers are counted.
Pure ASGI, since wrappers that stand between would hide from a route that its client left."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keepwarm.server.auth import Keys
from keepwarm.server.errors import ApiError, as_api_error, speaks_anthropic
from keepwarm.server.metrics import Metrics

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# What may be quoted of a Host.
_NAME = re.compile(r"[\w.:-]{1,255}", re.ASCII)
# The routes of OpenAI's and Anthropic's APIs.
_API = re.compile(
    r"/v1/(chat/completions|completions|messages(/count_tokens)?|(models|responses)(/.+)?)"
)
_OPEN_PATHS = frozenset({"/health", "/health/live"})


class Guard:
    """Puts the caller's namespace into `request.state.namespace`, or answers in its place. Every
    answer has an `x-request-id`, which the log names where it refuses."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, hosts: Collection[str] | None, metrics: Metrics
    ) -> None:
        """`hosts` are the names that this server may be called by; None for any."""
        self._app = app
        self._keys = keys
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_begun, method = False, scope["method"]
        state = scope.setdefault("state", {})
        state["request_id"] = uuid.uuid4().hex
        scope = {**scope, "path": _path(scope["path"])}
        if method == "HEAD":  # answered as GET is: uvicorn leaves the body out
            scope["method"] = "GET"

        async def counted(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                self._metrics.count_answer({**scope, "method": method}, message["status"])
                told = MutableHeaders(scope=message)
                told["x-request-id"] = state["request_id"]
                if speaks_anthropic(scope):
                    told["request-id"] = state["request_id"]
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host"))
            caller = ""
            if scope["path"] not in _OPEN_PATHS:
                caller = self._keys.caller(headers.get("authorization"), headers.get("x-api-key"))
        except ApiError as error:
            await error.answer(scope)(scope, receive, counted)
            return
        state["caller"], state["namespace"] = caller, self._keys.shared_by(caller)
        try:
            await self._app(scope, receive, counted)
        except Exception as error:
            told = as_api_error(error)  # logs it
            if not is_begun:
                await told.answer(scope)(scope, receive, counted)

    def _check_host(self, host: str | None) -> None:
        """A page on the web can make its own name mean this machine; it cannot hide that name."""
        if self._hosts is None or host is None:
            return
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in self._hosts:
            raise ApiError(403, _unknown_host(name), code="unknown_host")


def _path(asked: str) -> str:
    """With one /v1 in front: some clients put none there, and some one more than was given."""
    once = asked.removeprefix("/v1") if asked.startswith("/v1/v1/") else f"/v1{asked}"
    return once if _API.fullmatch(once) and not _API.fullmatch(asked) else asked


def _unknown_host(name: str | None) -> str:
    if name is None or not _NAME.fullmatch(name):
        return "this server does not answer to this Host"
    return (
        f"this server does not answer to the Host {name}; if that is a name of this machine, start"
        f" the server with --allowed-host {name}"
    )


def guarded_hosts(bound_to: str, more: Collection[str], keys: Keys) -> Collection[str] | None:
    """The names to insist on: an open server on this machine's own address is asked by its own
    people only, while a key or a public address makes any name good."""
    if keys or not is_loopback(bound_to):
        return {bound_to, *more} if more and not keys else None
    return {*LOOPBACK, bound_to, *more}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
