"""Connections that cost nothing to open and never become a request are closed: headers have a
deadline, and connections a number. Event loop only."""

from __future__ import annotations

import asyncio
import logging
import resource
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("keepwarm.server")

HEADERS_S = 10.0
MAX_CONNECTIONS = 4096
# Of the files that the process may open, for all but connections.
_OTHER_FILES = 256
_WANTED_FILES = 65_536
_LOG_EVERY_S = 60.0


def raise_file_limit() -> int:
    """Lets the process open as many files as it is allowed to, up to a number that is enough.
    Returns how many connections that leaves room for. Mutates the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError) as error:  # macOS has further limits
            log.debug("the limit of open files stays at %d: %s", soft, error)
    room = _WANTED_FILES if soft == resource.RLIM_INFINITY else soft
    return max(1, min(MAX_CONNECTIONS, room - _OTHER_FILES))


class Connection(H11Protocol):
    """uvicorn's, with a deadline for the headers of each request."""

    headers_s = HEADERS_S
    max_connections = MAX_CONNECTIONS
    _told_at = -_LOG_EVERY_S  # of the whole class

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.max_connections:
            self._is_refused = True
            transport.abort()
            self._tell()
            return
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if not self._is_refused:
            super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Nothing of a next request is here: uvicorn itself closes what stays idle.
        if not self.conn.trailing_data[0]:
            self._stop_watching()

    def _watch(self) -> None:
        """From the first byte of a request, or the opening, until its headers are whole."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_s, self._give_up)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()

    @classmethod
    def _tell(cls) -> None:
        """Once in a while: a line for each would fill the disk."""
        if monotonic() - Connection._told_at >= _LOG_EVERY_S:
            Connection._told_at = monotonic()
            log.warning(
                "%d connections are open, which is the most: new ones are closed at once",
                cls.max_connections,
            )
