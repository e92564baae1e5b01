"""The socket that the server listens on."""

from __future__ import annotations

import errno
import socket

from keepwarm.errors import BadInput

# Connections that wait to be accepted: a burst must not be reset.
BACKLOG = 2048
# A prompt of 100,000 tokens is half a megabyte. With the system's own choice, which grows as data
# comes, it is taken in piece by piece: half a millisecond longer.
RECEIVE_BYTES = 1 << 20


def listen(host: str, port: int) -> socket.socket:
    """Raises BadInput where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"{where} is in use; choose another --port") from error
        raise BadInput(f"cannot listen on {where}: {error.strerror or error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return listener
