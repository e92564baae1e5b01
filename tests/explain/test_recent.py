"""The log of recent prompts: bounded, each caller's apart, and what stands in both is counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.explain import recent as module
from keepwarm.explain.recent import Asked, Recent, Seen, num_seen
from keepwarm.prompt.boundaries import Prompt


def seen(*tokens: int) -> Seen:
    return Seen.of(Asked(Prompt(tokens)), [])


def test_nearest_shares_the_most_and_is_the_latest_of_several() -> None:
    recent = Recent()
    for tokens in ((1, 2, 3), (1, 2, 9), (1, 2, 8), (4,)):
        recent.add("", seen(*tokens))
    found = recent.nearest("", np.array([1, 2, 7], dtype=np.int32))
    assert found is not None
    assert (found[0].tokens.tolist(), found[1]) == ([1, 2, 8], 2)


def test_reply_belongs_to_what_was_read() -> None:
    recent = Recent()
    recent.add("", Seen.of(Asked(Prompt([1, 2])), [3, 4]))
    found = recent.nearest("", np.array([1, 2, 3, 5], dtype=np.int32))
    assert found is not None
    assert (found[0].prompt_len, found[1]) == (2, 3)


def test_nobody_meets_the_prompts_of_another() -> None:
    recent = Recent()
    recent.add("one", seen(1, 2, 3))
    assert recent.nearest("other", np.array([1, 2, 3], dtype=np.int32)) is None


def test_log_is_bounded_for_each_caller_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = Recent()
    for i in range(100):
        recent.add("busy", seen(i, 1, 2))
    assert recent.nbytes == 16 * 3 * 4
    assert recent.nearest("busy", np.array([83], dtype=np.int32)) is not None
    monkeypatch.setattr(module, "_MAX_BYTES", 200)
    for i in range(20):
        recent.add(f"caller {i}", seen(*range(10)))
        assert recent.nbytes <= 200
    assert recent.nearest("busy", np.array([99], dtype=np.int32)) is None


def naive(tokens: list[int], before: list[int]) -> int:
    size = module._GRAM
    grams = {tuple(before[i : i + size]) for i in range(len(before) - size + 1)}
    covered: set[int] = set()
    for i in range(len(tokens) - size + 1):
        if tuple(tokens[i : i + size]) in grams:
            covered |= set(range(i, i + size))
    return len(covered)


@given(
    st.lists(st.integers(0, 2), max_size=80),
    st.lists(st.integers(0, 2), max_size=80),
    st.integers(0, 60),
)
def test_what_stands_in_both_is_counted_as_a_naive_count_does(
    before: list[int], new: list[int], start: int
) -> None:
    tokens = [*before[start:], *new, *before]
    arrays = (np.array(part, dtype=np.int32) for part in (tokens, before))
    assert num_seen(*arrays) == naive(tokens, before)
