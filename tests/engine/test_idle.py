"""Idle prefill: read in advance, give way at once, say what it cost and saved."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.engine.request import IdlePrefill
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.architectures.drive import prompt_of, random_tokens

from .engines import Bench, alone, bench

SYSTEM = random_tokens(48, 0)
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2"]


def next_turn(answer: list[int]) -> Prompt:
    """The conversation as the next turn begins: the reply rewritten, as without its thought."""
    tokens = [*SYSTEM, *random_tokens(20, 1), *answer]
    marks = [(48, BoundaryKind.SYSTEM), (68, BoundaryKind.MESSAGE)]
    marks.append((len(tokens), BoundaryKind.MESSAGE))
    return Prompt(tokens, [Boundary(*mark) for mark in marks])


def turn_and_follow_up(made: Bench, answer: list[int]) -> Prompt:
    sequence, _ = made.ask(prompt_of([SYSTEM, random_tokens(20, 1)]), 12)
    made.run()
    upcoming = next_turn(answer)
    made.core.warmth.follow_up(sequence, upcoming)
    return upcoming


def ask_next(made: Bench, upcoming: Prompt) -> Any:
    question = random_tokens(9, 7)
    tokens = [*upcoming.tokens.tolist(), *question, 1, 2, 3]
    boundary = Boundary(len(upcoming) + 9, BoundaryKind.MESSAGE)
    prompt = Prompt(tokens, [*upcoming.boundaries, boundary])
    _, heard = made.ask(prompt, 6)
    made.run()
    return prompt, heard


@pytest.mark.parametrize("kind", KINDS)
def test_next_turn_reads_only_the_new_message(kind: str) -> None:
    made = bench(kind)
    upcoming = turn_and_follow_up(made, random_tokens(60, 9))
    made.run_idle()
    prompt, heard = ask_next(made, upcoming)
    assert heard.result.cached_tokens == len(upcoming)
    assert heard.tokens == alone(made, prompt, 6)
    counters = made.core.tally.counters(made.core.warmth.idle)
    assert counters.idle_tokens == len(upcoming) - 68
    assert counters.idle_saved_tokens == counters.idle_tokens
    assert counters.idle_s > 0
    assert counters.prefilled_tokens == 71 + 12


def test_exact_mode_reads_to_the_last_stop_and_stays_exact() -> None:
    made = bench("qwen3_5", exact=True)
    upcoming = turn_and_follow_up(made, random_tokens(60, 9))
    made.run_idle()
    prompt, heard = ask_next(made, upcoming)
    last = [stop.position for stop in made.cache.placement.exact_schedule(upcoming)][-1]
    assert heard.result.cached_tokens == last > 68
    assert heard.tokens == alone(made, prompt, 6, exact=True)


def test_switched_off_it_reads_nothing() -> None:
    made = bench("qwen3_5", idle_prefill=IdlePrefill.OFF)
    turn_and_follow_up(made, random_tokens(60, 9))
    assert not made.core.step()
    assert made.core.warmth.idle.num_tokens == 0


def test_stripped_reads_only_conversations_that_were_rewritten() -> None:
    made = bench("qwen3_5", idle_prefill=IdlePrefill.STRIPPED)
    sequence, _ = made.ask(prompt_of([SYSTEM, random_tokens(20, 1)]), 12)
    made.run()
    appended = sequence.read.extended(random_tokens(40, 3))
    made.core.warmth.follow_up(sequence, appended)
    assert not made.core.step()
    made.core.warmth.follow_up(sequence, next_turn(random_tokens(60, 9)))
    made.run_idle()
    assert made.core.warmth.idle.num_tokens == 60


@pytest.mark.parametrize("kind", KINDS)
def test_reply_that_the_next_turn_does_not_pass_is_dropped(kind: str) -> None:
    made = bench(kind, idle_prefill=IdlePrefill.OFF)
    turn_and_follow_up(made, random_tokens(60, 9))
    stats = made.cache.stats()
    assert stats.events["discarded"] == 1
    # Where rows make it, all of the prompt is left; else its end lies beside the tree.
    is_cut = kind in ("llama", "gpt_oss")
    assert stats.num_tokens == (71 if is_cut else 68)
    assert (made.cache.last_end.end is None) == is_cut
    made.cache.check()
    _, heard = made.ask(prompt_of([SYSTEM, random_tokens(20, 1)]), 3)
    made.run()
    assert heard.result.cached_tokens == 71


def test_reply_that_is_written_again_but_for_its_end_is_kept_up_to_there() -> None:
    made = bench("llama", idle_prefill=IdlePrefill.OFF)
    sequence, _ = made.ask(prompt_of([SYSTEM, random_tokens(20, 1)]), 40)
    made.run()
    read = sequence.read.tokens.tolist()
    shared = len(read) - 3
    upcoming = Prompt([*read[:shared], (read[shared] + 1) % 100, 5, 6], sequence.read.boundaries)
    made.core.warmth.follow_up(sequence, upcoming)
    assert made.cache.stats().num_tokens == shared
    _, heard = ask_next(made, upcoming)
    assert heard.result.cached_tokens == shared
    made.cache.check()


@pytest.mark.parametrize("kind", KINDS)
def test_last_turn_asked_again_is_not_read_though_the_next_was_read_ahead(kind: str) -> None:
    made = bench(kind)
    turn_and_follow_up(made, random_tokens(60, 9))
    made.run_idle()
    prompt = prompt_of([SYSTEM, random_tokens(20, 1)])
    _, heard = made.ask(prompt, 12)
    made.run()
    assert heard.result.cached_tokens == len(prompt)
    assert heard.tokens == alone(made, prompt, 12)
    made.cache.check()


def test_gives_way_within_a_chunk_and_keeps_what_it_read() -> None:
    made = bench("qwen3_5")
    upcoming = turn_and_follow_up(made, random_tokens(400, 9))
    for _ in range(3):
        assert made.core.step()
    read = made.core.warmth.idle.num_tokens
    assert 0 < read <= 3 * 40
    _, heard = ask_next(made, upcoming)  # the user was faster
    assert heard.result.cached_tokens >= 68 + read - 40
    assert made.core.warmth.idle.num_tokens == read
    assert made.core.warmth.idle.num_saved == read
    assert not made.core.warmth.idle.has_work  # that turn is here already


def test_comes_back_to_it_after_another_request() -> None:
    made = bench("qwen3_5")
    upcoming = turn_and_follow_up(made, random_tokens(400, 9))
    made.core.step()
    made.ask(prompt_of([random_tokens(50, 33)]), 3)
    made.run()
    made.run_idle()
    assert made.core.warmth.idle.num_tokens == 400
    _, heard = ask_next(made, upcoming)
    assert heard.result.cached_tokens == len(upcoming)


def test_respects_the_budget() -> None:
    made = bench("qwen3_5", budget_bytes=200_000)
    turn_and_follow_up(made, random_tokens(1000, 9))
    made.run_idle()
    assert made.cache.ledger.held_bytes <= 200_000


def test_fault_while_idle_is_logged_and_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    made = bench("qwen3_5")
    turn_and_follow_up(made, random_tokens(100, 9))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of luck")

    made.core.warmth.idle._model = broken
    made.run_idle()
    assert "idle prefill failed" in caplog.text
    _, heard = made.ask(prompt_of([SYSTEM]), 3)
    made.run()
    assert len(heard.tokens) == 3
