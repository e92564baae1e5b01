"""How a request ends: it is told first, and what it read is stored behind that."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from keepwarm.engine.batch import Group
from keepwarm.engine.request import Request
from keepwarm.events import Done, Event, Failed, Result
from tests.architectures.drive import prompt_of

from .engines import alone, bench
from .test_core import SYSTEM, question


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_all_that_end_together_are_told_before_the_first_is_stored(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(kind)
    prompts = [prompt_of([SYSTEM, question(i)]) for i in range(3)]
    asked = [made.ask(prompt, 100) for prompt in prompts]
    keep, over_by_then = made.core.warmth.keep_reply, []

    def watched(sequence: Any) -> None:
        over_by_then.append(sum(heard.is_over for _, heard in asked))
        keep(sequence)

    monkeypatch.setattr(made.core.warmth, "keep_reply", watched)
    made.step_until(lambda: all(len(heard.tokens) > 4 for _, heard in asked))
    for sequence, _ in asked:
        sequence.cancel()
    made.core.step()
    assert over_by_then == [3, 3, 3]
    for prompt, (_, heard) in zip(prompts, asked):
        follow = prompt.extended([*heard.result.tokens, 3, 4])
        _, again = made.ask(follow, 2)
        made.run()
        assert again.result.cached_tokens == len(prompt) + len(heard.result.tokens)


def test_what_a_result_says_stays_as_it_was_told() -> None:
    made = bench()
    results: list[Result] = []
    as_told: list[Result] = []

    def hear(event: Event) -> None:
        if isinstance(event, Done) and event.result is not None:
            results.append(event.result)
            as_told.append(deepcopy(event.result))

    made.core.submit(Request(prompt_of([SYSTEM, question(1)]), 6, ignore_eos=True), hear)
    made.run()
    assert results == as_told
    assert results[0].timings.insert_s > 0


def test_fault_while_a_reply_is_stored_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench("llama")
    _, short = made.ask(prompt_of([SYSTEM, question(1)]), 4)
    _, beside = made.ask(prompt_of([SYSTEM, question(2)]), 12)
    take = Group.take

    def fails_once(group: Group, row: Any) -> None:
        monkeypatch.setattr(Group, "take", take)
        raise RuntimeError("no room")

    monkeypatch.setattr(Group, "take", fails_once)
    made.run()
    assert [type(e) for e in short.events if isinstance(e, Done | Failed)] == [Done]
    assert len(short.result.tokens) == 4
    assert beside.tokens == alone(made, prompt_of([SYSTEM, question(2)]), 12)
    assert made.core.tally.counters(made.core.warmth.idle).requests == {"length": 2}


def test_who_hears_that_a_request_was_cancelled_finds_its_place_free() -> None:
    made = bench("llama", max_running=1)
    made.ask(prompt_of([SYSTEM]), 20)
    made.core.step()
    num_waiting: list[int] = []

    def hear(event: Event) -> None:
        if isinstance(event, Done):
            num_waiting.append(made.core.queue.num_waiting)

    waiting = made.core.submit(Request(prompt_of([question(1)]), 4), hear)
    made.core.step()
    waiting.cancel()
    made.run()
    assert num_waiting == [0]
