"""What all routes share: the engine, the settings, and where slow things are done."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

from keepwarm.config import Config
from keepwarm.engine.request import Request
from keepwarm.server.account import Account
from keepwarm.server.errors import unavailable
from keepwarm.server.generation import Generation
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
    started_at: int = field(default_factory=lambda: int(time.time()))
    _renderers: CapacityLimiter | None = None

    @property
    def model_name(self) -> str:
        return self.config.served_name or self.config.model

    def is_called(self, name: str) -> bool:
        """Whether `name` means the loaded model."""
        names = {self.model_name, PurePath(self.model_name).name, self.config.model, "default"}
        return name in names

    def check_ready(self) -> None:
        """Raises ApiError while no request can be taken."""
        if not self.engine.is_ready:
            phase = str(self.engine.status().phase)
            raise unavailable(f"no requests are taken now: the engine is {phase}")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs what would hold up the streams."""
        if self._renderers is None:
            self._renderers = CapacityLimiter(_NUM_RENDERERS)
        return await to_thread.run_sync(work, limiter=self._renderers)

    def generation(self, requests: tuple[Request, ...]) -> Generation:
        """Raises what the engine refuses the requests with."""
        generation = Generation(requests, keep_alive_s=self.config.keep_alive_s)
        generation.submit(self.engine)
        return generation

    def log_end(self, route: str, account: Account) -> None:
        log.info("%s %s: %s", route, self.model_name, account.words())


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"
