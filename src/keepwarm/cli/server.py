"""The running server: loads with a progress bar while it already answers /health, then serves
until Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType

import uvicorn

from keepwarm.cli.listen import BACKLOG
from keepwarm.cli.progress import loading_bar, ready_words
from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.model.hub import Transfer
from keepwarm.prompt.template import trouble_with
from keepwarm.server.app import create_app
from keepwarm.server.connections import Connection, raise_file_limit
from keepwarm.server.service import Service

# For answers that are on their way when the engine has given up the last request.
_CLOSING_S = 5.0


class Server(uvicorn.Server):
    """uvicorn with an engine beside it: the first signal lets running requests end, the second
    one ends the process."""

    def __init__(
        self, engine: Engine, config: Config, listener: socket.socket, transfer: Transfer
    ) -> None:
        self._engine = engine
        self._settings = config
        self._listener = listener
        self._transfer = transfer
        self._failure: BaseException | None = None
        self._is_loaded = False
        self._num_signals = 0
        app = create_app(engine, config)
        self._service: Service = app.state.service
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,  # h11, and not httptools: see docs/log/first-token.md
                backlog=BACKLOG,
                access_log=False,  # the server writes one line for each request
                log_config=None,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=int(config.shutdown_s + _CLOSING_S),
            )
        )

    def serve_until_stopped(self) -> int:
        """Loads and serves. Returns the exit status."""
        Connection.max_connections = raise_file_limit()
        self._engine.start()
        loading = threading.Thread(target=self._load, name="keepwarm-loading", daemon=True)
        loading.start()
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has stopped
            self.run(sockets=[self._listener])
        loading.join()
        if not self._is_loaded and self._failure is None:
            # Nothing runs that could end well, and reading weights cannot be told to stop.
            self._transfer.abandon()
            os._exit(128 + signal.SIGINT)
        self._engine.stop(0.0)
        if self._failure is not None:
            print(f"keepwarm: {self._failure}", file=sys.stderr)
            return 1
        return 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Runs in the main thread, at a signal; the next one may come while it does."""
        self._num_signals += 1
        if self._num_signals > 1:
            # A thread that computes or downloads would hold the process for as long as it takes.
            os._exit(128 + sig)
        deadline_s, drain_s = self._settings.shutdown_s, self._settings.drain_s
        if sig == signal.SIGTERM and self._is_loaded and drain_s:
            # A router that has not heard of it yet is answered 503, and not refused.
            closing = threading.Timer(drain_s, self._close)
            closing.daemon = True
            closing.start()
        else:
            self._close()
        threading.Thread(target=self._engine.stop, args=(deadline_s,), daemon=True).start()
        print(
            f"\nstopping: running requests have {deadline_s:g} s to end (Ctrl-C again quits at once)",
            file=sys.stderr,
        )

    def _close(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Bodies that are half here are not waited for."""
        self._service.stop_reading()
        await super().shutdown(sockets)

    def _load(self) -> None:
        try:
            with loading_bar(self._settings.model, self._transfer) as update:
                while not self._engine.wait_ready(0.1):
                    if self.should_exit:
                        return
                    update()
        except Exception as error:
            logging.getLogger("keepwarm").debug("loading failed", exc_info=error)
            self._failure = error
            self.should_exit = True
            return
        self._is_loaded = True
        port = self._listener.getsockname()[1]
        status, own = self._engine.status(), self._engine.own_sampling
        trouble = trouble_with(self._engine.tokenizer)
        print(ready_words(self._settings, port, status, own, trouble), flush=True)
