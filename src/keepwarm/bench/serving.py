"""A process that serves as one system does: keepwarm's server, or mlx-lm's own.

    python -m keepwarm.bench.serving '{"system": "mlx-lm", "model": "qwen3_5-small"}'

It says in one line of JSON where it listens and what it is, then does what each line on its
standard input asks for and answers with one. The servers have their threads; the main thread
answers. A shape gets random weights, the same in every process, and says what a script says.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any, Protocol

import mlx.core as mx
import mlx_lm.server
import uvicorn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import LRUPromptCache

from keepwarm.bench import words
from keepwarm.bench.script import Prompter, Script
from keepwarm.bench.shapes import SHAPES, build
from keepwarm.bench.worker import own_stdout, portrait_of, say
from keepwarm.cli.engine import make_engine
from keepwarm.cli.listen import BACKLOG, listen
from keepwarm.config import Config
from keepwarm.model.loader import load, prepared
from keepwarm.model.names import DTYPES
from keepwarm.server.app import create_app

_HOST = "127.0.0.1"
# Nothing was read for so many looks, so far apart: all is quiet.
_NUM_LOOKS = 4
_LOOK_S = 0.05
_STATUS_AGE_S = 0.5


def main() -> None:
    answers = own_stdout()
    job = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.WARNING)
    try:
        server: Served = _SYSTEMS[job["system"]](Stage(job))
    except BaseException as error:
        # Threads of mlx's may abort an orderly end, and that would be the last line.
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    say(answers, {"port": server.port, **server.portrait})
    acts: dict[str, Callable[..., Any]] = {
        "play": server.stage.play,
        "settle": server.settle,
        "forget": server.forget,
        "figures": server.figures,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        say(answers, acts[asked.pop("do")](**asked) or {})


class Served(Protocol):
    """A server that runs."""

    stage: Stage
    port: int
    portrait: dict[str, Any]

    def settle(self) -> None: ...  # until it has nothing more to do
    def forget(self) -> None: ...  # empty its cache; nothing may be running
    def figures(self) -> dict[str, Any]: ...


class Stage:
    """The model of a job, and what it is made to say."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.name: str = job["model"]
        self.model: Any = None
        self.prompter: Prompter | None = None
        self.portrait: dict[str, Any] = {}
        self.weights_bytes = 0

    def load(self, load_named: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Model and tokenizer: of a shape, or what `load_named` gives. On the thread that owns
        the arrays."""
        if self.name not in SHAPES:
            self.model, tokenizer = load_named()
        else:
            mx.random.seed(0)
            self.model = build(self.name)
            tokenizer = words.tokenizer()
        return self.model, tokenizer

    def begin(self, tokenizer: Any) -> None:
        """Once its weights are as they shall be. Mutates the model's class. Same thread."""
        mx.eval(self.model.parameters())
        flat: list[tuple[str, mx.array]] = tree_flatten(self.model.parameters())  # type: ignore[assignment]
        self.weights_bytes = sum(array.nbytes for _, array in flat)
        portrait = portrait_of(self.model)
        if self.name in SHAPES:
            self.prompter = Prompter(self.model, tokenizer, portrait["vocab_size"])
        self.portrait = portrait  # the last: who waits for it may ask at once

    def play(self, **script: Any) -> None:
        """What it says from now on; a model that has learned to talk takes no notice."""
        if self.prompter is not None:
            self.prompter.play(Script(**script))

    def figures(self) -> dict[str, Any]:
        reads = self.prompter.reads if self.prompter is not None else None
        return {
            "read_tokens": reads.num_tokens if reads else None,
            # Weights and what else there was at the start are no cache.
            "active_bytes": mx.get_active_memory() - self.weights_bytes,
            "peak_bytes": mx.get_peak_memory() - self.weights_bytes,
        }


class Keepwarm:
    """`keepwarm serve`, with the settings of the job."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        # mlx-lm's server knows no sampling of the model's own, and figures must repeat.
        config = Config(
            model=stage.name, port=0, generation_config="off", **stage.job.get("config", {})
        )
        self._engine = make_engine(config, self._load)
        self._engine.start()
        self._engine.wait_ready()
        self.portrait = stage.portrait | {"layers": self._engine.status().layers}
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(self._engine, config),
                http="h11", backlog=BACKLOG, access_log=False, log_config=None,
            )
        )  # fmt: skip
        listener = listen(_HOST, 0)
        threading.Thread(target=lambda: self._server.run([listener]), daemon=True).start()
        while not self._server.started:
            time.sleep(0.01)
        self.port: int = listener.getsockname()[1]

    def _load(self) -> tuple[Any, Any]:
        model, tokenizer = self.stage.load(lambda: load(self.stage.name)[:2])
        if self.stage.name in SHAPES:
            prepared(model)
        self.stage.begin(tokenizer)
        return model, tokenizer

    def settle(self) -> None:
        seen = [-1]
        while len(seen) < _NUM_LOOKS or len(set(seen[-_NUM_LOOKS:])) > 1:
            time.sleep(_LOOK_S if self.stage.prompter is not None else _STATUS_AGE_S)
            self._engine.call(lambda cache: None)  # comes back between two steps
            seen.append(self._num_read())

    def _num_read(self) -> int:
        """All that was ever read; of a model that was not told what to say, a while ago."""
        if self.stage.prompter is not None:
            return self.stage.prompter.reads.num_tokens
        counters = self._engine.status().counters
        return counters.idle_tokens + counters.prefilled_tokens

    def forget(self) -> None:
        self._engine.call(lambda cache: cache.clear())
        mx.reset_peak_memory()

    def _idle(self) -> tuple[int, float]:
        """Tokens that it read ahead, and the seconds that took. On its thread."""
        core = self._engine._core
        idle = core.warmth.idle if core is not None else None
        return (idle.num_tokens, idle.seconds) if idle is not None else (0, 0.0)

    def figures(self) -> dict[str, Any]:
        held, stats, active, (idle_tokens, idle_s) = self._engine.call(
            lambda cache: (
                cache.ledger.held_bytes, cache.stats(), self.stage.figures(), self._idle()
            )
        )  # fmt: skip
        if active["read_tokens"] is not None:
            active["read_tokens"] -= idle_tokens  # nobody waited for those
        return active | {
            "held_bytes": held,
            "idle_tokens": idle_tokens,
            "idle_s": idle_s,
            "num_checkpoints": stats.num_checkpoints,
            "num_rows": stats.num_tokens,
        }


class MlxLm:
    """`mlx_lm.server` as it is installed, started as its command line starts it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._fault: Exception | None = None
        mlx_lm.server.load = self._load
        cli_args = _cli_args(["--model", "bench", *stage.job.get("flags", [])])
        self._cache = LRUPromptCache(cli_args.prompt_cache_size)
        self._generator = mlx_lm.server.ResponseGenerator(
            mlx_lm.server.ModelProvider(cli_args), self._cache
        )
        while not stage.portrait:
            if self._fault is not None:
                raise self._fault
            if not self._generator.is_healthy:
                raise SystemExit("mlx-lm could not load the model")
            time.sleep(0.01)
        self.portrait = stage.portrait
        httpd = ThreadingHTTPServer(
            (_HOST, 0), lambda *args, **kwargs: _Handler(self._generator, *args, **kwargs)
        )
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        self.port: int = httpd.server_address[1]

    def _load(self, *_: Any, **__: Any) -> tuple[Any, Any, dict[str, Any]]:
        try:
            return *self._loaded(), {}
        except Exception as error:
            self._fault = error  # else nobody hears of it
            raise

    def _loaded(self) -> tuple[Any, Any]:
        name, dtype = self.stage.name, self.stage.job.get("dtype")
        # Nothing of mlx-lm's is replaced; the built-in model needs our reading of its tokenizer.
        model, tokenizer = self.stage.load(lambda: load(name, kernels="mlx-lm")[:2])
        if dtype in DTYPES:  # that of quantized weights is none of them
            model.set_dtype(getattr(mx, dtype))
        self.stage.begin(tokenizer)
        return model, tokenizer

    def settle(self) -> None:
        """It stores a reply when the client has it already."""
        seen: list[int] = []
        while len(seen) < _NUM_LOOKS or len(set(seen[-_NUM_LOOKS:])) > 1:
            time.sleep(_LOOK_S)
            seen.append(self._cache.nbytes)

    def forget(self) -> None:
        self._cache.trim_to(n_sequences=0)
        mx.reset_peak_memory()

    def figures(self) -> dict[str, Any]:
        """Each of its entries has all its rows, and a state of each recurrent layer."""
        entries = [tokens for lru in self._cache._lru._lrus.values() for _, tokens in lru]
        return self.stage.figures() | {
            "held_bytes": self._cache.nbytes,
            "num_checkpoints": len(entries),
            "num_rows": sum(map(len, entries)),
        }


_SYSTEMS: dict[str, Callable[[Stage], Served]] = {"keepwarm": Keepwarm, "mlx-lm": MlxLm}


class _Handler(mlx_lm.server.APIHandler):  # type: ignore[misc]
    def log_message(self, *_: Any) -> None:
        """Nothing: a line for each request would be read by nobody."""


def _cli_args(flags: list[str]) -> Namespace:
    """What its own command line makes of the flags."""
    found: list[Namespace] = []

    class Provider:
        def __init__(self, cli_args: Namespace) -> None:
            found.append(cli_args)

    plain = mlx_lm.server.ModelProvider, mlx_lm.server.run, sys.argv
    mlx_lm.server.ModelProvider, mlx_lm.server.run = Provider, lambda *_: None
    sys.argv = ["mlx_lm.server", "--log-level", "WARNING", *flags]
    try:
        mlx_lm.server.main()
    finally:
        mlx_lm.server.ModelProvider, mlx_lm.server.run, sys.argv = plain
    return found[0]


if __name__ == "__main__":
    main()
