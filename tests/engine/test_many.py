"""Many requests for one engine: those that find no room wait, and nobody hears `Overloaded`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request
from keepwarm.errors import BadInput
from keepwarm.events import Delta, Done

from .test_engine import engine_of, request


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(max_running=2, max_queue=2) as made:
        yield made
        made.call(lambda cache: cache.check())


def lengths(count: int) -> Iterator[Request]:
    """Of unlike length, so that they do not end in order."""
    for i in range(count):
        yield request(i, max_tokens=1 + (7 * i) % 5)


def test_map_gives_results_in_order_whatever_the_queue_takes(engine: Engine) -> None:
    given = [len(result.tokens) for result in engine.map(lengths(12))]
    assert given == [1 + (7 * i) % 5 for i in range(12)]


def test_map_as_they_end_gives_each_once(engine: Engine) -> None:
    given = [len(result.tokens) for result in engine.map(lengths(12), ordered=False)]
    assert sorted(given) == sorted(1 + (7 * i) % 5 for i in range(12))


def test_requests_are_taken_as_there_is_room(engine: Engine) -> None:
    taken = []

    def endless() -> Iterator[Request]:
        while True:
            taken.append(0)
            yield request(len(taken))

    results = engine.map(endless())
    next(results)
    assert len(taken) <= 5
    results.close()  # type: ignore[attr-defined]
    while engine.status().num_decoding + engine.status().num_queued:
        engine.call(lambda _: None)


def test_map_raises_what_a_request_failed_of_and_outcomes_give_it(engine: Engine) -> None:
    asked = [request(1), Request([500], 5), request(2)]
    with pytest.raises(BadInput, match="vocabulary"):
        list(engine.map(asked))
    found = dict(engine.outcomes(asked))
    assert isinstance(found[1], BadInput)
    assert [type(found[i]).__name__ for i in (0, 2)] == ["ChatResult", "ChatResult"]


def test_a_busy_engine_is_waited_for(engine: Engine) -> None:
    others = [engine.stream(request(i, max_tokens=30)) for i in range(2)]
    assert len(list(engine.map(lengths(4)))) == 4
    assert [len(stream.result.tokens) for stream in others] == [30, 30]


def test_agenerate_gives_many_their_results(engine: Engine) -> None:
    async def run() -> list[Any]:
        return await asyncio.gather(*(engine.agenerate(request(i)) for i in range(10)))

    wanted = [engine.stream(request(i)).result.tokens for i in range(10)]
    assert [result.tokens for result in asyncio.run(run())] == wanted


def test_astream_gives_events_and_raises_errors(engine: Engine) -> None:
    async def run() -> list[Any]:
        return [event async for event in engine.astream(request(1))]

    events = asyncio.run(run())
    assert isinstance(events[-1], Done)
    assert len([e for e in events if isinstance(e, Delta) and e.token is not None]) == 6

    async def fails() -> None:
        await engine.agenerate(Request([500], 5))

    with pytest.raises(BadInput, match="vocabulary"):
        asyncio.run(fails())


def test_cancelled_task_cancels_its_request(engine: Engine) -> None:
    async def run() -> None:
        task = asyncio.create_task(engine.agenerate(request(1, max_tokens=4000)))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert engine.stream(request(2)).result.finish_reason == "length"
    assert engine._core is not None
    assert engine._core.tally._requests["cancelled"] > 0
