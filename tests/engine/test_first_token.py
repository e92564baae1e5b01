"""What the model says first to a prompt that was asked before comes at once, and is said once."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from keepwarm.engine.request import Sampling
from keepwarm.events import Delta
from tests.architectures.drive import prompt_of, random_tokens
from tests.engine.engines import Bench, Heard, bench

PROMPT = prompt_of([random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 2)])
OTHER = prompt_of([random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 3)])
HOT = Sampling(temperature=1.0, seed=7)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "random": HOT,
    "penalized": Sampling(temperature=0.7, seed=3, repetition_penalty=1.5, frequency_penalty=0.4),
    "biased": Sampling(temperature=0, logit_bias={5: 1.5, 9: -2.0}),
}


@pytest.fixture(params=["qwen3", "gpt_oss", "qwen3_5"])
def made(request: pytest.FixtureRequest) -> Bench:
    return bench(request.param)


def asked(made: Bench, **settings: Any) -> Heard:
    _, heard = made.ask(PROMPT, 6, **settings)
    made.run()
    return heard


def broken(*_: object) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_it_is_told_before_anything_is_restored(
    made: Bench, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(made, sampling=sampling)
    told: list[int] = []
    _, again = made.ask(PROMPT, 6, sampling=sampling)
    restore = made.cache.restore

    def watched(*args: Any, **more: Any) -> Any:
        told.append(len(again.tokens))
        return restore(*args, **more)

    monkeypatch.setattr(made.cache, "restore", watched)
    made.run()
    assert told == [1]
    assert again.tokens == first.tokens == again.result.tokens
    assert again.result.cached_tokens == len(PROMPT)
    assert again.readings == []  # nothing was left to be read


def test_time_to_it_is_told_as_it_was(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(made)
    restore = made.cache.restore

    def slow(*args: Any, **more: Any) -> Any:
        sleep(0.5)
        return restore(*args, **more)

    monkeypatch.setattr(made.cache, "restore", slow)
    timings = asked(made).result.timings
    assert 0 < timings.first_token_s < 0.5 <= timings.restore_s


def test_nobody_is_told_at_once_who_wants_to_know_more_than_the_token(made: Bench) -> None:
    first = asked(made, top_logprobs=2)
    again = asked(made, top_logprobs=2)
    assert again.tokens == first.tokens
    deltas = [
        event for event in again.events if isinstance(event, Delta) and event.token is not None
    ]
    assert all(delta.logprob is not None and len(delta.top_logprobs) == 2 for delta in deltas)


def test_reply_goes_on_from_what_was_told_when_the_state_is_lost(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(made)
    monkeypatch.setattr("keepwarm.cache.store.restored", broken)
    again = asked(made)
    assert again.tokens == first.tokens
    assert again.result.cached_tokens == 0


def test_whoever_leaves_right_after_it_leaves_nothing_behind(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is lost, so that it has a token, and its prompt still to be read."""
    first = asked(made)
    made.ask(OTHER, 50)
    made.core.step()
    sequence, again = made.ask(PROMPT, 6)
    with monkeypatch.context() as patch:
        patch.setattr("keepwarm.cache.store.restored", broken)
        made.step_until(lambda: bool(again.tokens))
    assert sequence.row is None
    sequence.cancel()
    made.run()
    assert again.result.finish_reason == "cancelled"
    assert again.result.tokens == first.tokens[:1]
    made.cache.evict_to(0)
    assert made.cache.ledger.held_bytes - made.cache.last_end.held_bytes == 0


def test_end_of_a_reply_that_comes_first_is_not_told_as_text(made: Bench) -> None:
    first = asked(made)
    made.core._eos_ids = frozenset(first.tokens[:1])
    again = asked(made, ignore_eos=False)
    assert again.tokens == []
    assert again.result.finish_reason == "stop"


def test_many_that_ask_the_same_together_all_have_it(made: Bench) -> None:
    first = asked(made)
    heard = [made.ask(PROMPT, 6)[1] for _ in range(4)]
    made.run()
    assert [one.tokens for one in heard] == [first.tokens] * 4
