"""`keepwarm serve MODEL`: loads with a progress bar while it already answers /health, then serves
until Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from keepwarm.cli.flags import add_flags, config_of
from keepwarm.config import Config, Percent
from keepwarm.engine.engine import Engine
from keepwarm.errors import BadInput

_EXAMPLES = """\
examples:
  keepwarm serve mlx-community/Qwen3-0.6B-4bit
  keepwarm serve ./my-model --port 9000 --cache-bytes 8GB
  keepwarm serve ./my-model --host 0.0.0.0 --api-key-file keys.txt
  KEEPWARM_CACHE_BYTES=30% keepwarm serve ./my-model --config keepwarm.toml

Every flag can also be set in the environment (KEEPWARM_MAX_QUEUE for --max-queue) or in the file
given with --config (max-queue = 8); flags go first, then the environment, then the file.
"""

# Connections that wait to be accepted: a burst must not be reset.
_BACKLOG = 2048
# For answers that are on their way when the engine has given up the last request.
_CLOSING_S = 5.0


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "serve",
        usage="keepwarm serve MODEL [options]",
        help="serve a model to OpenAI's clients",
        description="Serve a model to OpenAI's clients.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop. Returns the exit status; raises BadInput."""
    config = config_of(args)
    if not config.model:
        raise BadInput("which model? keepwarm serve MODEL")
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each file of a download
    engine = make_engine(config)
    listener = _listen(config)
    return Server(engine, config, listener).serve_until_stopped()


def make_engine(config: Config) -> Engine:
    """An engine for the model, not started yet. Raises BadInput for what cannot be there."""
    from keepwarm.cache.placement import Placement
    from keepwarm.cache.store import PrefixCache
    from keepwarm.model.caches import cache_maker
    from keepwarm.model.loader import model_loader

    load = model_loader(
        config.model,
        adapter_path=config.adapter_path,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
    )
    placement = Placement(min_span=config.min_span, prefill_step=config.prefill_step)

    def make_cache(model: Any) -> PrefixCache:
        maker = cache_maker(model, config.kv_bits, config.kv_group_size)
        return PrefixCache(
            model if config.kv_bits is None else maker,
            budget_bytes=_budget_bytes(config.cache_bytes),
            exact=config.exact,
            placement=placement,
            policy=config.policy,
        )

    return Engine(load, make_cache=make_cache, settings=config.engine_settings())


def _budget_bytes(budget: int | Percent | None) -> int | None:
    """On the engine's thread, once the model is loaded."""
    if not isinstance(budget, Percent):
        return budget
    from keepwarm.engine.memory import free_bytes

    return int(free_bytes() * budget.value / 100)


def _listen(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise BadInput(f"cannot listen on {config.host}:{config.port}: {error}") from error


class Server(uvicorn.Server):
    """uvicorn with an engine beside it: the first signal lets running requests end, the second
    one ends the process."""

    def __init__(self, engine: Engine, config: Config, listener: socket.socket) -> None:
        from keepwarm.server.app import create_app

        self._engine = engine
        self._settings = config
        self._listener = listener
        self._failure: BaseException | None = None
        self._is_loaded = False
        self._num_signals = 0
        app = create_app(engine, config)
        super().__init__(
            uvicorn.Config(
                app,
                backlog=_BACKLOG,
                access_log=False,  # the server writes one line for each request
                log_config=None,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=int(config.shutdown_s + _CLOSING_S),
            )
        )

    def serve_until_stopped(self) -> int:
        """Loads and serves. Returns the exit status."""
        self._engine.start()
        loading = threading.Thread(target=self._load, name="keepwarm-loading", daemon=True)
        loading.start()
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has stopped
            self.run(sockets=[self._listener])
        loading.join()
        if not self._is_loaded and self._failure is None:
            # Nothing runs that could end well, and reading weights cannot be told to stop.
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
        self.should_exit = True
        deadline_s = self._settings.shutdown_s
        threading.Thread(target=self._engine.stop, args=(deadline_s,), daemon=True).start()
        print("\nstopping; running requests may end (Ctrl-C again to quit)", file=sys.stderr)

    def _load(self) -> None:
        from keepwarm.cli.progress import loading_bar, ready_words

        try:
            with loading_bar(self._settings.model) as update:
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
        print(ready_words(self._settings, port, self._engine.status()), flush=True)
