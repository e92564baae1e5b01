"""What all routes share: the engine, the settings, and where slow things are done."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, create_task_group, to_thread
from starlette.types import Receive

from keepwarm.config import Config
from keepwarm.engine.request import Request
from keepwarm.errors import Abandoned, KeepwarmError
from keepwarm.explain.miss import Miss
from keepwarm.explain.recent import Recent
from keepwarm.prompt.bounds import Bounds
from keepwarm.prompt.memory import num_chars
from keepwarm.server.account import Account
from keepwarm.server.asked import Asked, AskedChat, AskedTexts
from keepwarm.server.errors import as_api_error, refused, unavailable
from keepwarm.server.generation import Generation
from keepwarm.server.log import FIELDS
from keepwarm.server.mailbox import Mailbox
from keepwarm.server.metrics import Metrics

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine

log = logging.getLogger("keepwarm.server")

T = TypeVar("T")

# Rendering is Python and holds the interpreter: more at once would not be faster. Short prompts, and
# what running replies need, have threads of their own: they never wait for a stranger's long one.
_NUM_RENDERERS = {"short": 4, "long": 2, "reply": 4}
_LONG_CHARS = 1 << 16
_MANY_MESSAGES = 1000
# Of a prompt whose tokens are only counted.
_COUNTED_CONTEXTS = 4


@dataclass(slots=True)
class Service:
    """One server. Event loop only."""

    engine: Engine
    config: Config
    metrics: Metrics
    model_name: str = field(init=False)  # a folder goes by its name, a repository by its own
    fingerprint: str = field(init=False)  # of what replies depend on beside the request
    started_at: int = field(default_factory=lambda: int(time.time()))
    _renderers: dict[str, CapacityLimiter] = field(default_factory=dict)
    _readings: set[asyncio.Timeout] = field(default_factory=set)
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

    @contextmanager
    def reading(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """While the body of a request is read, until `deadline`."""
        self._readings.add(deadline)
        try:
            yield
        finally:
            self._readings.discard(deadline)

    def stop_reading(self) -> None:
        """No body that is half here is waited for any more."""
        for deadline in self._readings:
            deadline.reschedule(asyncio.get_running_loop().time())

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs what a running reply needs, and what would hold up the streams."""
        return await to_thread.run_sync(work, limiter=self._limiter("reply"))

    async def render(self, receive: Receive, asked: Asked, work: Callable[[Bounds], T]) -> T:
        """Runs what makes prompts, within the bounds it is given. Raises what `work` raises, and
        Abandoned soon after the client has left."""
        is_gone = Event()
        bounds = Bounds(
            self.engine.context_len, lambda: self.engine.is_ready and not is_gone.is_set()
        )
        limiter = self._limiter("long" if _is_long(asked) else "short")
        outcome: T | Exception
        async with create_task_group() as tasks:
            tasks.start_soon(_set_when_gone, receive, is_gone)
            try:
                outcome = await to_thread.run_sync(partial(work, bounds), limiter=limiter)
            except Exception as error:
                # Out of here it would come as a group of one.
                outcome = error
            tasks.cancel_scope.cancel()
        if isinstance(outcome, Abandoned) and not is_gone.is_set():
            self.check_ready()  # it ended because the server stops
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _limiter(self, lane: str) -> CapacityLimiter:
        if lane not in self._renderers:  # made in the event loop that it belongs to
            self._renderers[lane] = CapacityLimiter(_NUM_RENDERERS[lane])
        return self._renderers[lane]

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


async def _set_when_gone(receive: Receive, is_gone: Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    is_gone.set()


def _is_long(asked: Asked) -> bool:
    """Whether its prompts take a while. Event loop: nothing is looked at twice."""
    if isinstance(asked, AskedTexts):
        return sum(map(len, asked.prompts)) > _LONG_CHARS
    assert isinstance(asked, AskedChat)
    if len(asked.messages) > _MANY_MESSAGES:
        return True
    return num_chars([asked.messages, asked.tools], _LONG_CHARS) > _LONG_CHARS


def counting(bounds: Bounds) -> Bounds:
    """For prompts whose tokens are only counted: they may be longer than the context."""
    length = bounds.context_len
    return replace(bounds, context_len=length and length * _COUNTED_CONTEXTS)


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
