"""Hard cases: nobody waits forever, no token is lost, nobody is left without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm import Placement
from keepwarm.engine import batch, merging
from keepwarm.engine.request import IdlePrefill, Sampling
from keepwarm.prompt.boundaries import Prompt
from tests.architectures.drive import prompt_of, random_tokens

from .engines import Bench, Heard, Steady, alone, bench

SEEDED = Sampling(temperature=1.0, seed=7, presence_penalty=0.3)


def prompt(length: int, seed: int, head: tuple[int, ...] = ()) -> Prompt:
    return Prompt([*head, *random_tokens(length - len(head), seed)])


def limited(made: Bench, memory_bytes: int) -> None:
    made.core._room.memory_bytes = memory_bytes
    made.core._room._last = None


def at(made: Bench, num_tokens: int) -> int:
    return made.core._room._footprint.at(num_tokens)


def is_served(made: Bench, heard: Heard, max_steps: int = 2000) -> bool:
    for _ in range(max_steps):
        if heard.is_over:
            break
        made.core.step()
    return heard.is_over and heard.error is None


# Nobody waits forever


def test_request_that_fits_only_without_idle_prefill_is_served() -> None:
    made = bench("qwen3")
    limited(made, at(made, 1000) + at(made, 301))
    made.core.warmth.idle.offer(prompt(1000, 1), "")
    made.core.step()
    assert made.core.warmth.idle.reading is not None
    _, heard = made.ask(prompt(300, 2), 4)
    assert is_served(made, heard)


def test_what_is_being_read_goes_on_when_another_cannot_start() -> None:
    made = bench("qwen3")
    row_bytes = made.core._room._footprint.token_bytes
    _, first = made.ask(prompt(1500, 3), 4)
    made.step_until(lambda: first.readings[-1:] > [400])
    limited(made, at(made, 1500) + at(made, 100) + 100 * row_bytes)
    _, second = made.ask(prompt(90, 2), 4)  # the oldest's pin is in its way
    assert is_served(made, first)
    assert is_served(made, second)


def test_short_prompt_does_not_wait_for_a_large_one_that_cannot_start() -> None:
    made = bench("qwen3")
    head = (5, 6, 7, 8) * 10
    limited(made, at(made, 1400))
    _, running = made.ask(prompt(300, 1), 400)
    made.step_until(lambda: bool(running.tokens))
    made.ask(prompt(800, 2, head), 2)
    _, short = made.ask(prompt(60, 3, head), 2)
    made.step_until(lambda: short.is_over)
    assert not running.is_over


def test_idle_prefill_without_room_is_dropped_and_evicts_nothing() -> None:
    made = bench("qwen3", placement=Placement())
    made.ask(prompt(400, 1), 1)
    made.run()
    held = made.cache.ledger.held_bytes
    limited(made, at(made, 500) + held)
    made.core.warmth.idle.offer(prompt(800, 9), "")
    assert made.core.step()
    assert not made.core.step()
    assert made.core.warmth.idle.num_tokens == 0
    assert made.cache.ledger.held_bytes == held


def test_idle_prefill_that_runs_out_of_room_is_given_up() -> None:
    made = bench("qwen3", placement=Placement())
    made.core.warmth.idle.offer(prompt(800, 9), "")
    made.core._pace = Steady(1.0, 64)
    made.core.step()
    limited(made, at(made, 100))
    for _ in range(40):
        if not made.core.step():
            break
    assert not made.core.warmth.idle.has_work
    assert made.core.warmth.idle.num_tokens <= 128


# Nothing is lost by preemption


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("num_tokens", [0, 3])
def test_preempted_again_while_it_is_read_it_keeps_the_token_it_drew(
    exact: bool, num_tokens: int
) -> None:
    asked = prompt(300, 3)
    made = bench("qwen3", exact=exact, budget_bytes=0)
    sequence, heard = made.ask(asked, 8, sampling=SEEDED)
    made.step_until(lambda: sequence.row is not None and len(heard.tokens) >= num_tokens)
    made.core._preempt(sequence)
    made.step_until(lambda: sequence.prefill is not None)
    made.core._preempt(sequence)
    made.run()
    assert heard.tokens == alone(made, asked, 8, SEEDED, exact=exact)


def test_preempted_sequence_resumes_from_what_the_cache_kept() -> None:
    made = bench("qwen3")
    asked = [made.ask(prompt(500, i), 60) for i in range(2)]
    made.step_until(lambda: all(len(heard.tokens) > 10 for _, heard in asked))
    limited(made, made.core.live_bytes - 1)
    made.step_until(lambda: made.core.tally.preemptions > 0)
    youngest = asked[1][0]
    assert youngest.row is None
    assert made.cache.peek(youngest.read).cached_len == len(youngest.read) - 1


# A fault is one request's


def test_evaluation_that_fails_once_loses_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench("qwen3")
    prompts = [prompt(50, 1), prompt(60, 2)]
    heard = [made.ask(asked, 10)[1] for asked in prompts]
    made.step_until(lambda: all(len(h.tokens) >= 3 for h in heard))
    start, calls = batch.Group._start, iter(range(1000))

    def fails_once(group: Any, tokens: Any) -> None:
        if next(calls) == 1:
            raise RuntimeError("out of memory")
        start(group, tokens)

    monkeypatch.setattr(batch.Group, "_start", fails_once)
    made.run()
    assert [h.tokens for h in heard] == [alone(made, asked, 10) for asked in prompts]


def test_group_that_cannot_be_extended_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench("qwen3")
    prompts = [prompt(30 + i, i) for i in range(3)]
    heard = [made.ask(asked, 10)[1] for asked in prompts[:2]]
    made.step_until(lambda: all(len(h.tokens) >= 2 for h in heard))
    monkeypatch.setattr(merging, "extend", lambda *_: 1 / 0)
    heard.append(made.ask(prompts[2], 10)[1])
    made.run()
    assert [h.tokens for h in heard] == [alone(made, asked, 10) for asked in prompts]


@pytest.mark.parametrize("act", ["add_token", "finalize"])
def test_detokenizer_that_fails_costs_text_and_nothing_else(act: str) -> None:
    made = bench("qwen3")
    (bad, first), (_, second) = [made.ask(prompt(30, i), 6) for i in range(2)]
    setattr(bad.reply._detokenizer, act, lambda *_: 1 / 0)
    made.run()
    assert len(first.result.tokens) == len(second.result.tokens) == 6
    assert second.text


def test_requests_after_a_fault_of_the_engine_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench("qwen3", max_stall_s=10.0)
    heard = [made.ask(prompt(20 + i, i), 4)[1] for i in range(2)]
    make, calls = made.core._room.make, iter(range(1000))
    # While the second is admitted, the first is read and not yet in the batch.
    monkeypatch.setattr(
        made.core._room, "make", lambda size: 1 / 0 if next(calls) == 1 else make(size)
    )
    with pytest.raises(ZeroDivisionError):
        made.core.step()
    made.core.end_all(RuntimeError("gone"))
    assert [str(h.error) for h in heard] == ["gone", "gone"]
    _, after = made.ask(prompt(25, 5), 4)
    made.run()
    assert len(after.tokens) == 4


def test_all_are_told_whatever_the_caches_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench("qwen3")
    heard = [made.ask(prompt(20 + i, i), 40)[1] for i in range(4)]
    made.step_until(lambda: all(h.tokens for h in heard))
    monkeypatch.setattr(merging, "keep", lambda *_: 1 / 0)
    monkeypatch.setattr(merging, "extracted", lambda *_: 1 / 0)
    made.core.end_all(RuntimeError("gone"))
    assert [str(h.error) for h in heard] == ["gone"] * 4


def test_fault_while_room_is_made_empties_the_cache_and_serves_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bench("qwen3", idle_prefill=IdlePrefill.OFF)
    made.ask(prompt(300, 1), 2)
    made.run()
    monkeypatch.setattr(made.cache._evictor, "evict_to", lambda *_: 1 / 0)
    limited(made, at(made, 300))
    _, heard = made.ask(prompt(280, 2), 4)
    assert is_served(made, heard)
    assert made.cache.stats().events["fault_evict"] == 1


# Streams


def test_long_prompt_is_cut_as_soon_as_another_one_is_read() -> None:
    made = bench("qwen3", max_stall_s=1e6, placement=Placement())
    made.core._pace = Steady(1.0, 64)
    _, short = made.ask(prompt(20, 1), 4)
    _, long = made.ask(prompt(900, 2), 4)
    made.run()
    assert short.readings == [0, 20]  # rows can be cut: one pass to the end
    *whole, last, end = [b - a for a, b in zip(long.readings, long.readings[1:])]
    assert set(whole) == {64}
    assert 32 < last <= 96  # no crumb is left
    assert end == 1


def test_lookup_of_a_cold_prompt_looks_into_no_other_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bench("qwen3")
    made.cache.keeps_secrets = True
    shared = prompt_of([random_tokens(60, 1)])
    made.ask(shared, 2, namespace="a")
    made.run()
    monkeypatch.setattr(made.cache._spaces["a"].tree, "walk", lambda *_: 1 / 0)
    _, heard = made.ask(shared, 2, namespace="b")
    made.run()
    assert heard.result.reason == "cold"
