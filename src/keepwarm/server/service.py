"""What all routes share: the engine, the settings, and where slow things are done."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, to_thread

from keepwarm.config import Config
from keepwarm.engine.request import Request
from keepwarm.errors import KeepwarmError
from keepwarm.explain.miss import Miss
from keepwarm.explain.recent import Recent
from keepwarm.server.account import Account
from keepwarm.server.errors import as_api_error, refused, unavailable
from keepwarm.server.generation import Generation
from keepwarm.server.log import FIELDS
from keepwarm.server.mailbox import Mailbox
from keepwarm.server.metrics import Metrics

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine

log = logging.getLogger("keepwarm.server")

T = TypeVar("T")

# Rendering is Python and holds the interpreter: more at once would not be faster.
_NUM_RENDERERS = 4


@dataclass(slots=True)
class Service:
    """One server. Event loop only."""

    engine: Engine
    config: Config
    metrics: Metrics
    model_name: str = field(init=False)  # a folder goes by its name, a repository by its own
    fingerprint: str = field(init=False)  # of what replies depend on beside the request
    started_at: int = field(default_factory=lambda: int(time.time()))
    _renderers: CapacityLimiter | None = None
    _text_reader: WithoutCalls | None = None
    recent: Recent = field(default_factory=Recent)
    _mailbox: Mailbox | None = None

    def __post_init__(self) -> None:
        # Once: every chunk of a stream names it.
        folder = Path(self.config.model).expanduser()
        name = folder.resolve().name if folder.is_dir() else self.config.model
        self.model_name = self.config.served_name or name
        self.fingerprint = _fingerprint(self.config)

    def is_called(self, name: str) -> bool:
        """Whether `name` means the loaded model."""
        names = {self.model_name, PurePath(self.model_name).name, self.config.model, "default"}
        return name in names

    def check_ready(self) -> None:
        """Raises ApiError while no request can be taken."""
        if not self.engine.is_ready:
            phase = str(self.engine.status().phase)
            raise unavailable(
                f"no requests are taken now: the engine is {phase}; try again in a few seconds"
            )

    def text_reader(self) -> WithoutCalls:
        """The tokenizer for replies that may call nothing: one for all requests, since what is
        learned of a template is kept with its tokenizer. Any thread."""
        if self._text_reader is None:
            self._text_reader = WithoutCalls(self.engine.tokenizer)
        return self._text_reader

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs what would hold up the streams."""
        if self._renderers is None:
            self._renderers = CapacityLimiter(_NUM_RENDERERS)
        return await to_thread.run_sync(work, limiter=self._renderers)

    def generation(self, requests: tuple[Request, ...], param: str) -> Generation:
        """Gives the engine what it is to generate. Raises ApiError where it refuses; `param` is
        the field that the prompts came in."""
        if len(requests) > self.config.max_queue:
            words = (
                f"{len(requests)} replies are more than the queue holds: {self.config.max_queue}"
            )
            raise refused(words, "n")
        generation = Generation(
            requests, self._mailbox_here(), keep_alive_s=self.config.keep_alive_s
        )
        try:
            generation.submit(self.engine)
        except KeepwarmError as error:
            raise as_api_error(error, param) from error
        return generation

    def _mailbox_here(self) -> Mailbox:
        """That of the running loop: one for all requests."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def log_end(self, route: str, account: Account, misses: Sequence[Miss], caller: str) -> None:
        """One line for each request; with --log-json, all that answers say of it too."""
        words = "; ".join([account.words(), *(miss.words for miss in misses)])
        told: dict[str, Any] = {"route": route, "model": self.model_name, "usage": account.usage()}
        told |= {"keepwarm": account.keepwarm(), "misses": [miss.as_json() for miss in misses]}
        log.info("%s %s: %s", route, self.model_name, words, extra={FIELDS: told})
        self.recent.answered(caller, told | {"time": time.time(), "message": words})


class WithoutCalls:
    """A tokenizer that knows no tool calls: what looks like one is the reply's text."""

    has_tool_calling = False
    can_call = False

    def __init__(self, tokenizer: Any) -> None:
        self._inner = tokenizer
        # Formats of a model's own lead to calls from more than one state.
        self.response_transitions = {
            state: [edge for edge in edges if edge[1] != "tool"]
            for state, edges in getattr(tokenizer, "response_transitions", {}).items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# Settings that change what is computed.
_COMPUTES = ("model", "adapter_path", "chat_template", "dtype", "kernels", "kv_bits", "exact")


def _fingerprint(config: Config) -> str:
    """Equal for servers of the same versions, model and settings."""
    parts = [f"{name}={getattr(config, name)}" for name in _COMPUTES]
    for package in ("keepwarm", "mlx", "mlx-lm"):
        with suppress(PackageNotFoundError):  # run from a tree that was never installed
            parts.append(f"{package} {version(package)}")
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
