"""The sequences of one HTTP request: given to the engine together, heard of in one queue, and
given up together. The engine's thread only ever puts events into that queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from keepwarm.engine.request import Request
from keepwarm.errors import Unavailable
from keepwarm.events import Done, Event, Failed, Reading, Result
from keepwarm.prompt.boundaries import Prompt
from keepwarm.server.mailbox import Mailbox
from keepwarm.server.metrics import Metrics

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine, Ticket


class Generation:
    """A context manager: what still runs at the end of the block is cancelled."""

    def __init__(
        self, requests: Sequence[Request], mailbox: Mailbox, *, keep_alive_s: float
    ) -> None:
        self.results: dict[int, Result] = {}
        self.progress = ""  # of the prompt, while it is read
        self._requests = requests
        self._keep_alive_s = keep_alive_s
        self._tickets: list[Ticket] = []
        self._mailbox = mailbox
        self._loop = mailbox.loop
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._started = perf_counter()
        self._silent_from = self._loop.time()

    def submit(self, engine: Engine) -> None:
        """Raises what the engine raises; then none of the sequences runs."""
        try:
            for index, request in enumerate(self._requests):
                self._tickets.append(engine.submit(request, partial(self._hear, index)))
        except Exception:
            self.cancel()
            raise

    async def events(self, metrics: Metrics) -> AsyncIterator[tuple[int, Event] | None]:
        """(index, event) until all sequences ended; None whenever nothing was said for a while.
        Raises what made a sequence fail, and Unavailable when the engine gave one up."""
        while not self.is_over:
            try:
                async with asyncio.timeout_at(self._silent_from + self._keep_alive_s):
                    index, event = await self._queue.get()
            except TimeoutError:
                self.said()
                yield None
                continue
            if isinstance(event, Reading):
                self.progress = f"prefill {event.position}/{event.prompt_tokens}"
            elif isinstance(event, Failed):
                raise event.error or RuntimeError("a sequence failed without an error")
            elif isinstance(event, Done) and event.result is not None:
                self._take(index, event.result, metrics)
            yield index, event

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self._requests)

    def said(self) -> None:
        """Something was sent to the client now. Mutates."""
        self._silent_from = self._loop.time()

    def follow_up(self, index: int, prompt: Prompt) -> None:
        """Tells the engine what the next turn of a conversation will begin with."""
        self._tickets[index].follow_up(prompt)

    def cancel(self) -> None:
        """Gives up what has not ended. May be called again."""
        for index, ticket in enumerate(self._tickets):
            if index not in self.results:
                ticket.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.cancel()

    def _hear(self, index: int, event: Event) -> None:
        """Runs on the engine's thread."""
        self._mailbox.post(partial(self._queue.put_nowait, (index, event)))

    def _take(self, index: int, result: Result, metrics: Metrics) -> None:
        if result.finish_reason == "cancelled":
            raise Unavailable("the server is stopping")
        self.results[index] = result
        metrics.observe(result, perf_counter() - self._started)
