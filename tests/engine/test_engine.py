"""The engine's thread: requests from any other, and a life that nothing ends but `stop`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm import PrefixCache, Sampling
from keepwarm.engine.engine import Engine
from keepwarm.engine.request import EngineSettings, Request
from keepwarm.engine.status import Phase
from keepwarm.errors import BadInput, Overloaded, TooLarge, TooLong, Unavailable
from keepwarm.events import Delta, Done, Event, Failed
from keepwarm.prompt.boundaries import Prompt
from tests.architectures.drive import prompt_of, random_tokens

from .engines import PLACEMENT, model_of, tokenizer

SYSTEM = random_tokens(48, 0)


def engine_of(architecture: str = "qwen3_5", **settings: Any) -> Engine:
    return Engine(
        lambda: (model_of(architecture), tokenizer()),
        make_cache=lambda model: PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 26),
        settings=EngineSettings(**settings),
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of() as made:
        yield made
        made.call(lambda cache: cache.check())


def request(seed: int = 1, max_tokens: int = 6, **settings: Any) -> Request:
    prompt = prompt_of([SYSTEM, random_tokens(20, seed)])
    return Request(prompt, max_tokens, ignore_eos=True, **settings)


def test_stream_gives_the_events_and_the_result(engine: Engine) -> None:
    events = list(stream := engine.stream(request()))
    assert isinstance(events[-1], Done)
    tokens = [e.token for e in events if isinstance(e, Delta) and e.token is not None]
    assert stream.result.tokens == tokens
    assert len(tokens) == 6
    assert stream.result.reply.content == stream.result.text


def test_threads_get_what_each_would_get_alone(engine: Engine) -> None:
    wanted = [engine.stream(request(i)).result.tokens for i in range(6)]
    found: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        found[i] = engine.stream(request(i)).result.tokens

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(6)] == wanted


def test_closing_the_stream_cancels(engine: Engine) -> None:
    before = engine.call(lambda _: None)
    stream = engine.stream(request(max_tokens=4000))
    next(e for e in stream if isinstance(e, Delta))
    stream.close()
    assert before is None
    while engine.status().num_decoding:
        engine.call(lambda _: None)
    assert engine.stream(request(2)).result.finish_reason == "length"


def test_streams_are_queued_at_the_call_and_run_unread() -> None:
    with engine_of() as engine:
        streams = [engine.stream(request(seed)) for seed in (11, 12, 13)]
        engine.stop(deadline_s=60)  # takes no more, and lets end what was queued
        assert [len(stream.result.tokens) for stream in streams] == [6, 6, 6]


def test_stream_that_is_dropped_unread_is_cancelled() -> None:
    with engine_of() as engine:
        core = engine._core
        assert core is not None
        engine.stream(request(14, max_tokens=4000))
        engine.stop(deadline_s=60)
        assert core.tally._requests == {"cancelled": 1}


def test_closed_stream_gives_what_there_was_until_then(engine: Engine) -> None:
    with engine.stream(request(15, max_tokens=4000)) as stream:
        told = [next(e for e in stream if isinstance(e, Delta)) for _ in range(3)]
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert result.tokens[:3] == [event.token for event in told]
    assert stream.result is result


def test_stream_that_failed_raises_that_again(engine: Engine) -> None:
    def fails(_: Any, logits: Any) -> Any:
        raise ZeroDivisionError("a processor of the caller's")

    stream = engine.stream(request(sampling=Sampling(processors=[fails])))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.result  # noqa: B018


def test_ticket_cancelled_before_the_engine_saw_it_still_ends(engine: Engine) -> None:
    over = threading.Event()
    results: list[Any] = []

    def hear(event: Event) -> None:
        if isinstance(event, Done):
            results.append(event.result)
            over.set()

    engine.submit(request(3, 4000), hear).cancel()
    assert over.wait(30)
    assert results[0].finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [
        ([1, 2, 500], BadInput, "token 500 is not in the model's vocabulary of 128 tokens"),
        ([1] * 5000, TooLong, "the prompt has 5000 tokens; the model's context has 4096"),
    ],
)
def test_request_that_cannot_be_served_is_refused_at_once(
    engine: Engine, tokens: list[int], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        engine.submit(Request(Prompt(tokens), 5), lambda event: None)


def test_reply_ends_where_the_context_does() -> None:
    with engine_of(context_len=80) as short:
        result = short.stream(request(max_tokens=100)).result
    assert (len(result.tokens), result.finish_reason) == (80 - 71, "length")


def test_prompt_larger_than_all_memory_is_refused() -> None:
    with engine_of(memory_bytes=400_000) as engine:
        with pytest.raises(TooLarge, match="raise --memory-bytes"):
            engine.submit(Request(Prompt([1] * 4000), 5), lambda event: None)
        assert len(engine.stream(request()).result.tokens) == 6


def test_full_queue_says_when_to_come_back() -> None:
    with engine_of(max_running=1, max_queue=2) as engine:
        gate, begun = threading.Event(), threading.Event()

        def hold(_: Event) -> None:
            begun.set()
            gate.wait(60)

        engine.submit(request(1), hold)
        begun.wait(60)
        try:
            for i in range(2):
                engine.submit(request(i), lambda event: None)
            with pytest.raises(Overloaded) as refused:
                engine.submit(request(5), lambda event: None)
            assert refused.value.retry_after_s >= 1
        finally:
            gate.set()


def test_stop_lets_running_requests_end() -> None:
    engine = engine_of()
    engine.start()
    assert engine.wait_ready(60)
    stream = engine.stream(request(max_tokens=50))
    next(stream)
    engine.stop(deadline_s=60)
    assert len(stream.result.tokens) == 50
    assert engine.status().phase is Phase.STOPPED
    assert not engine.is_alive
    with pytest.raises(Unavailable, match="stopped"):
        engine.submit(request(), lambda event: None)


def test_stop_ends_requests_at_the_deadline() -> None:
    engine = engine_of()
    engine.start()
    engine.wait_ready(60)
    stream = engine.stream(request(max_tokens=4000))
    next(stream)
    engine.stop(deadline_s=0)
    with pytest.raises(Unavailable, match="stopping"):
        list(stream)


def test_loading_that_fails_is_raised_to_whoever_waits() -> None:
    def load() -> Any:
        raise OSError("no such model")

    engine = Engine(load)
    engine.start()
    with pytest.raises(OSError, match="no such model"):
        engine.wait_ready(60)
    assert not engine.is_ready


def test_fault_of_the_engine_itself_ends_the_requests_and_not_the_thread() -> None:
    with engine_of() as engine:
        engine.call(lambda _: None)
        core = engine._core
        assert core is not None
        ready, core.queue.ready = core.queue.ready, lambda _: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(ZeroDivisionError):
            list(engine.stream(request()))
        core.queue.ready = ready  # type: ignore[method-assign]
        assert len(engine.stream(request()).result.tokens) == 6


def test_status_tells_what_was_done(engine: Engine) -> None:
    engine.stream(request()).result  # noqa: B018
    before = engine.status().counters.prompt_tokens
    result = engine.stream(request()).result
    while engine.status().counters.prompt_tokens == before:
        engine.call(lambda _: None)
    status = engine.status()
    assert status.phase is Phase.READY
    assert status.layers == "3 snapshot, 1 rows"
    assert status.context_len == 4096
    assert status.cache is not None
    assert status.cache.held_bytes > 0
    assert status.counters.cached_by_reason["exact"] >= 1
    assert result.cached_tokens > 0


def test_call_raises_what_the_function_raises(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda _: 1 / 0)


def test_request_accepted_just_before_the_end_is_told() -> None:
    engine = engine_of()
    engine.start()
    engine.wait_ready(60)
    begun, gate, told = threading.Event(), threading.Event(), threading.Event()

    def hold(_: Event) -> None:
        begun.set()
        gate.wait(60)

    engine.submit(request(1), hold)
    begun.wait(60)
    heard: list[Event] = []

    def hear(event: Event) -> None:
        heard.append(event)
        told.set()

    engine.submit(request(2), hear)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while engine._phase is Phase.READY:
        pass
    gate.set()
    stopping.join()
    assert told.wait(60)
    assert isinstance(heard[-1], Failed)
    assert isinstance(heard[-1].error, Unavailable)
