"""Many requests at once: as many as the engine has room for, the others wait here and not in an
error. Any thread; what is asynchronous belongs to the event loop that awaits it."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from keepwarm.engine.chat import Teller
from keepwarm.engine.request import Request
from keepwarm.errors import Overloaded
from keepwarm.events import ChatResult, Delta, Done, Event, Failed
from keepwarm.prompt.boundaries import AnyPrompt, as_prompt

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine, Ticket

Outcome = ChatResult | Exception

# Others fill the queue: how long until it is tried again.
_RETRY_S = 0.05


def outcomes(
    engine: Engine, requests: Iterable[Request], num_at_once: int
) -> Iterator[tuple[int, Outcome]]:
    """The number of each request and what came of it, as they end. Requests are taken from the
    iterable as there is room; what still runs when the caller stops is cancelled."""
    told: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
    running: dict[int, tuple[Ticket, Teller]] = {}
    coming, is_over = enumerate(requests), False
    waiting: tuple[int, Request] | None = None
    try:
        while True:
            while not is_over and len(running) < num_at_once:
                waiting = waiting or next(coming, None)
                if waiting is None:
                    is_over = True
                    break
                index, request = waiting
                try:
                    ticket = engine.submit(request, _teller_of_ends(told, index))
                except Overloaded:
                    if not running:
                        time.sleep(_RETRY_S)
                        continue
                    break
                except Exception as error:
                    waiting = None
                    yield index, error
                    continue
                waiting = None
                running[index] = (ticket, Teller(engine.tokenizer, ticket.request))
            if not running:
                return
            index, event = told.get()
            _, teller = running.pop(index)
            yield index, _outcome(event, teller)
    finally:
        for ticket, _ in running.values():
            ticket.cancel()


def scoring(prompt: AnyPrompt, start: int, num_top: int, namespace: str) -> Request:
    """A request for the scores of a prompt, and no reply."""
    prompt = as_prompt(prompt)
    start = start if start >= 0 else max(0, len(prompt) + start)
    return Request(
        prompt, 0, namespace=namespace, scores_from=start, num_score_top=num_top,
        continues_text=True,
    )  # fmt: skip


def _teller_of_ends(
    told: queue.SimpleQueue[tuple[int, Event]], index: int
) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, Done | Failed):
            told.put((index, event))

    return tell


def _outcome(event: Event, teller: Teller) -> Outcome:
    if isinstance(event, Done) and event.result is not None:
        return teller.result(event.result)
    assert isinstance(event, Failed)
    return event.error or RuntimeError("a request failed without an error")


def results(
    engine: Engine, requests: Iterable[Request], num_at_once: int, *, ordered: bool
) -> Iterator[ChatResult]:
    """What `outcomes` gives, in the order of the requests or as they end. Raises the first error;
    then the rest is cancelled."""
    done: dict[int, ChatResult] = {}
    num_given = 0
    for index, outcome in outcomes(engine, requests, num_at_once):
        if isinstance(outcome, Exception):
            raise outcome
        if not ordered:
            yield outcome
            continue
        done[index] = outcome
        while num_given in done:
            yield done.pop(num_given)
            num_given += 1


async def stream(engine: Engine, request: Request) -> AsyncGenerator[Event, None]:
    """The events of one request; waits while the queue is full. Cancelled when it is closed."""
    loop, told = asyncio.get_running_loop(), asyncio.Queue[Event]()
    ticket = await _submitted(engine, request, lambda e: _post(loop, told, e))
    teller = Teller(engine.tokenizer, ticket.request)
    try:
        while True:
            event = await told.get()
            if isinstance(event, Failed) and event.error is not None:
                raise event.error
            if isinstance(event, Delta):
                for delta in teller.told(event):
                    yield delta
            elif isinstance(event, Done) and event.result is not None:
                for delta in teller.rest(event.result.finish_reason):
                    yield delta
                yield Done(result=teller.result(event.result))
                return
            else:
                yield event
    finally:
        ticket.cancel()


async def generate(engine: Engine, request: Request) -> ChatResult:
    """The result of one request; waits while the queue is full."""
    async with aclosing(stream(engine, request)) as events:
        async for event in events:
            if isinstance(event, Done):
                assert isinstance(event.result, ChatResult)
                return event.result
    raise AssertionError("a stream ends with its result, or raises")


async def _submitted(engine: Engine, request: Request, tell: Callable[[Event], None]) -> Ticket:
    while True:
        try:
            return engine.submit(request, tell)
        except Overloaded:
            await asyncio.sleep(_RETRY_S)


def _post(loop: asyncio.AbstractEventLoop, told: asyncio.Queue[Event], event: Event) -> None:
    """On the engine's thread. Raises RuntimeError where the loop has ended, which cancels."""
    loop.call_soon_threadsafe(told.put_nowait, event)
