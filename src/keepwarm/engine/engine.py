"""The engine: a thread that owns the model and serves requests from any other.

engine = Engine(lambda: load("mlx-community/Qwen3-0.6B-4bit"))
engine.start()
for event in engine.stream(Request(prompt, max_tokens=100)):
    print(event.text, end="")
engine.stop()
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm.cache.store import PrefixCache
from keepwarm.engine import many
from keepwarm.engine.chat import Teller, bound_to_markup
from keepwarm.engine.core import Core
from keepwarm.engine.grammar import Guides
from keepwarm.engine.limits import Limits
from keepwarm.engine.memory import Footprint
from keepwarm.engine.request import EngineSettings, Request, Sampling
from keepwarm.engine.room import Room
from keepwarm.engine.sequence import OnEvent, Sequence
from keepwarm.engine.status import Phase, Status
from keepwarm.errors import Overloaded, Unavailable
from keepwarm.events import ChatResult, Event, Failed, Score, Stream
from keepwarm.machine import bound_spare_buffers, free_bytes
from keepwarm.model.defaults import own_sampling
from keepwarm.model.head import head_of
from keepwarm.prompt.boundaries import AnyPrompt, Prompt

log = logging.getLogger("keepwarm.engine")

T = TypeVar("T")

# How old a status may be while the engine works.
_STATUS_AGE_S = 0.5


def _weights_bytes(model: Any) -> int:
    flat: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return sum(array.nbytes for _, array in flat)


@dataclass(frozen=True, slots=True)
class _Command:
    """Something for the engine's thread to do; `refuse` is called instead when it has ended."""

    run: Callable[[Core], None]
    refuse: Callable[[Exception], None] = lambda _: None


class Ticket:
    """A request that was accepted. Any thread."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.request = request
        self._engine = engine
        self._sequence: Sequence | None = None  # set on the engine thread
        self._is_cancelled = False

    def cancel(self) -> None:
        """Give the request up; what was read until now stays in the cache. Never waits."""
        self._is_cancelled = True
        if self._sequence is not None:
            self._sequence.cancel()
        self._engine._wake()

    def follow_up(self, upcoming: Prompt) -> None:
        """Say what the next turn will begin with, once the reply has ended. Never waits."""
        self._engine._send(_Command(lambda core: self._follow_up(core, upcoming)))

    def _follow_up(self, core: Core, upcoming: Prompt) -> None:
        if self._sequence is not None:
            core.warmth.follow_up(self._sequence, upcoming)

    def _enter(self, core: Core, on_event: OnEvent) -> None:
        """On the engine thread."""
        self._sequence = core.submit(self.request, on_event)
        if self._is_cancelled:
            self._sequence.cancel()


class Engine:
    """Serves requests with one model. All methods may be called on any thread."""

    def __init__(
        self,
        load: Callable[[], tuple[Any, Any]],
        *,
        make_cache: Callable[[Any], PrefixCache] = PrefixCache,
        settings: EngineSettings | None = None,
    ) -> None:
        """`load` gives model and tokenizer; it and `make_cache` run on the engine's thread."""
        self._load = load
        self._make_cache = make_cache
        self._settings = settings or EngineSettings()
        self._thread = threading.Thread(target=self._run, name="keepwarm-engine", daemon=True)
        self._changed = threading.Condition(threading.RLock())
        self._commands: deque[_Command] = deque()
        self._has_news = False  # of the disk; set on any thread
        self._num_entering = 0  # accepted, and not yet seen by the engine's thread
        self._phase = Phase.LOADING
        self._deadline: float | None = None
        self._error: Exception | None = None
        self._core: Core | None = None
        self._limits = Limits()
        self._status = Status()
        self._status_at = 0.0
        self.own_sampling: Sampling | None = None  # once it is ready, where the model has one
        self.tokenizer: Any = None
        self.guides: Any = None

    # Its life

    def start(self) -> None:
        """Start the thread, which loads the model and then serves."""
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Whether it serves before the time is over. Raises what loading raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase is not Phase.LOADING, timeout_s)
        if self._error is not None:
            raise self._error
        return self.is_ready

    def stop(self, deadline_s: float = 0.0) -> None:
        """Take no new requests, let the others end until the deadline, then end the thread."""
        with self._changed:
            if self._phase is not Phase.STOPPED:
                self._phase = Phase.STOPPING
            self._deadline = min(self._deadline or float("inf"), monotonic() + deadline_s)
            self._changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        return self._phase is Phase.READY and self.is_alive

    # What it knows

    @property
    def vocab_size(self) -> int:
        """Once it is ready."""
        return self._limits.vocab_size

    @property
    def context_len(self) -> int | None:
        """The most tokens of prompt and reply together; None when there is no limit."""
        return self._limits.context_len

    def status(self) -> Status:
        """A reading that is at most about a second old. Never waits."""
        return self._status

    # What it does

    def submit(self, request: Request, on_event: OnEvent) -> Ticket:
        """Queue a request. `on_event` is called on the engine's thread and must not wait.

        Raises BadInput (TooLong, TooLarge) for what cannot be served, Overloaded when the
        queue is full and Unavailable when the engine is loading, stopping or stopped.
        """
        self._check_ready()
        guides = partial(self.guides.within, request.namespace)
        request = bound_to_markup(self._limits.fitted(request), self.tokenizer, guides)
        ticket = Ticket(self, request)
        with self._changed:
            self._check_ready()
            num_waiting = self._num_entering + self._num_queued
            if num_waiting >= self._settings.max_queue:
                raise Overloaded(
                    f"the queue is full, {num_waiting} requests are waiting: try again later",
                    retry_after_s=self._limits.retry_after_s(num_waiting),
                )
            self._num_entering += 1
            self._send(
                _Command(
                    lambda core: self._enter(core, ticket, on_event),
                    lambda error: on_event(Failed(error=error)),
                )
            )
        return ticket

    def _check_ready(self) -> None:
        if not self.is_ready:
            raise Unavailable(f"the engine is {self._phase}")

    def stream(self, request: Request) -> Stream[ChatResult]:
        """Submit a request, now, and iterate over its events on this thread.

        A stream that is closed or dropped is cancelled. Raises what `submit` raises.
        """
        told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        ticket = self.submit(request, told.put)
        teller = Teller(self.tokenizer, ticket.request)
        return Stream(
            teller.events(told), cancel=ticket.cancel, cancelled=lambda: teller.last(told)
        )

    def map(self, requests: Iterable[Request], *, ordered: bool = True) -> Iterator[ChatResult]:
        """The results of many requests, in their order or as they end.

        Requests are taken from the iterable as there is room: never `Overloaded`, however many
        there are. Nothing runs before the first result is asked for. Raises the error of the first
        request that fails, and cancels the others then, or when the iterator is dropped.
        """
        return many.results(self, requests, self._num_at_once, ordered=ordered)

    def outcomes(self, requests: Iterable[Request]) -> Iterator[tuple[int, ChatResult | Exception]]:
        """As `map`, but each with its number, as they end, and an error is one of them."""
        return many.outcomes(self, requests, self._num_at_once)

    def score(
        self, prompts: Iterable[AnyPrompt], *, start: int = 1, num_top: int = 0, namespace: str = ""
    ) -> Iterator[Score]:
        """How likely the tokens of each prompt are, from the `start`-th on, in order.

        What prompts begin with in common is read once, and scored once. With `num_top` each token
        comes with the likeliest ones in its place. A `start` below 0 counts from the end.
        """
        requests = (many.scoring(p, start, num_top, namespace) for p in prompts)
        for result in self.map(requests):
            yield Score(result.scores, result.prompt_tokens, result.cached_tokens)

    def astream(self, request: Request) -> AsyncIterator[Event]:
        """As `stream`, for an event loop: `async for`. Waits while the queue is full."""
        return many.stream(self, request)

    async def agenerate(self, request: Request) -> ChatResult:
        """The result of a request, for an event loop. Waits while the queue is full; a task that
        is cancelled cancels the request."""
        return await many.generate(self, request)

    @property
    def _num_at_once(self) -> int:
        """Of one caller: enough to choose from, and room for others."""
        return self._settings.max_running + self._settings.max_queue // 2

    def call(self, function: Callable[[PrefixCache], T]) -> T:
        """Run a function on the cache, between two steps, on the engine's thread."""
        future: Future[T] = Future()

        def run(core: Core) -> None:
            try:
                future.set_result(function(core.cache))
            except Exception as error:
                future.set_exception(error)

        with self._changed:
            self._check_ready()
            self._send(_Command(run, future.set_exception))
        return future.result()

    # On the engine's thread

    def _run(self) -> None:
        error: Exception = Unavailable("the server is stopping")
        try:
            self._serve(self._prepare())
        except Exception as fault:
            log.debug("the engine ends", exc_info=fault)
            error = self._error = fault
        finally:
            self._end(error)
            # mlx aborts the process at its exit when a thread that computed ended without this.
            mx.clear_streams()

    def _end(self, error: Exception) -> None:
        """Nobody is left without an answer."""
        core, self._core = self._core, None
        if core is not None:
            core.end_all(error)
            core.cache.close()
        with self._changed:
            self._phase = Phase.STOPPED
            self._status = Status(phase=Phase.STOPPED)
            commands, self._commands = list(self._commands), deque()
            self._changed.notify_all()
        for command in commands:
            try:
                command.refuse(error)
            except Exception:
                log.exception("a request could not be told that the engine has ended")

    def _prepare(self) -> Core:
        model, tokenizer = self._load()
        self.own_sampling = own_sampling(model)
        is_wrapped = isinstance(tokenizer, TokenizerWrapper)
        self.tokenizer = tokenizer if is_wrapped else TokenizerWrapper(tokenizer)
        self.guides = Guides(self.tokenizer)
        mx.eval(model.parameters())
        head_of(model)  # tried now, and not while the first request waits
        cache = self._make_cache(model)
        cache.bind(model)
        cache.keeps_secrets = True
        if cache.disk is not None:
            cache.disk.on_news = self._tell_news
        caches = cache.fresh().caches
        logits = model(mx.zeros((1, 4), dtype=mx.int32), cache=caches)
        mx.eval(logits, [layer.state for layer in caches])
        memory_bytes = self._settings.memory_bytes or free_bytes()
        bound_spare_buffers(memory_bytes)
        room = Room(cache, Footprint.of(caches), memory_bytes, _weights_bytes(model))
        self._limits = Limits.of(model, logits.shape[-1], room, self._settings)
        core = Core(model, self.tokenizer, cache, self._settings, guides=self.guides, room=room)
        self._core = core
        self._refresh_status(core)
        with self._changed:
            if self._phase is Phase.LOADING:
                self._phase = Phase.READY
            self._changed.notify_all()
        return core

    def _serve(self, core: Core) -> None:
        while not self._is_over(core):
            self._take_commands(core)
            self._has_news = False
            try:
                has_worked = core.step()
            except Exception as error:
                # A fault of ours, not of one request: nobody is left waiting for an answer.
                log.exception("a step of the engine failed; all running requests end")
                core.end_all(error)
                has_worked = True
            if not has_worked or monotonic() - self._status_at > _STATUS_AGE_S:
                self._refresh_status(core)
            if not has_worked:
                self._wait()

    def _is_over(self, core: Core) -> bool:
        if self._phase is not Phase.STOPPING:
            return False
        is_late = self._deadline is not None and monotonic() >= self._deadline
        return is_late or not (core.is_busy or self._commands)

    def _take_commands(self, core: Core) -> None:
        while self._commands:
            command = self._commands.popleft()
            try:
                command.run(core)
            except Exception:
                log.exception("a command to the engine failed")

    def _enter(self, core: Core, ticket: Ticket, on_event: OnEvent) -> None:
        with self._changed:
            self._num_entering -= 1
        try:
            ticket._enter(core, on_event)
        except Exception as error:
            on_event(Failed(error=error))
            raise

    @property
    def _num_queued(self) -> int:
        core = self._core
        return core.queue.num_waiting if core is not None else 0

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._commands or self._has_news or self._phase is Phase.STOPPING,
                timeout=1.0,
            )

    def _send(self, command: _Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def _tell_news(self) -> None:
        """The disk tier has something for `step`. Any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _refresh_status(self, core: Core) -> None:
        self._status_at = monotonic()
        layout = core.cache.layout
        self._status = Status(
            phase=self._phase if self._phase is not Phase.LOADING else Phase.READY,
            num_queued=core.queue.num_waiting,
            num_prefilling=len(core.queue.started),
            num_decoding=len(core.batch),
            live_bytes=core.live_bytes,
            memory_bytes=self._limits.memory_bytes,
            context_len=self.context_len,
            layers=layout.summary() if layout is not None else "",
            disabled_because=core.cache.disabled_because,
            is_exact=core.cache.exact,
            can_batch=core.batch.can_merge,
            counters=core.tally.counters(core.warmth.idle),
            cache=core.cache.stats(),
            disk=core.cache.disk.stats() if core.cache.disk is not None else None,
        )
