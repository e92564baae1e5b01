"""The socket that the server listens on."""

from __future__ import annotations

import errno
import socket

from keepwarm.errors import BadInput

# Connections that wait to be accepted: a burst must not be reset.
BACKLOG = 2048


def _cause(error: OSError) -> str:
    return str(error.strerror or error).partition(" (while attempting")[0]  # which Python adds


def listen(host: str, port: int) -> socket.socket:
    """Raises BadInput where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise BadInput(
                f"{where} is in use by another program; choose another --port, or 0 for any free one"
            ) from error
        raise BadInput(
            f"cannot listen on {where}: {_cause(error)}; check --host and --port"
        ) from error
