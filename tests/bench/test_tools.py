"""`keepwarm bench tools`: a real run of all sides, with the tokens that each must have spared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.bench import duel, tools
from keepwarm.bench.script import Script
from keepwarm.bench.talk import Plan

SMALLER = {
    "NUM_STEPS": 3,
    "SYSTEM_LEN": 200,
    "USER_LEN": 20,
    "RESULT_LEN": 60,
    "CALL": Script(thought_len=20, is_call=True),
    "ANSWER": Script(thought_len=20, answer_len=20),
}
NAMES = ("echoed", "not echoed", "omitted")
OURS = (("keepwarm", "idle prefill"), ("keepwarm", "no idle prefill"))
THEIRS = ("mlx-lm", "")
HEADER_LEN = 4  # what begins a reply, up to its thought

Rows = dict[tuple[str, str], dict[str, dict[str, Any]]]  # by system and setting, then by case


@pytest.fixture(scope="module")
def rows() -> Rows:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(tools, name, value)
        found = duel.measure("tools", tools, Plan("qwen3_5-small", 1), lambda _: None)
    sides: Rows = {}
    for row in json.loads(found.as_json())["rows"]:
        sides.setdefault((row["system"], row["setting"]), {})[row["case"]] = row
    return sides


def test_each_style_is_a_loop_and_the_question_after_it(rows: Rows) -> None:
    assert list(rows) == [*OURS, THEIRS]
    for cases in rows.values():
        assert list(cases) == [name + end for name in NAMES for end in ("", ", next turn")]
        for name in NAMES:
            assert cases[name]["num_requests"] == SMALLER["NUM_STEPS"] + 1
            assert cases[f"{name}, next turn"]["num_requests"] == 1
            assert cases[name]["by_request"]["cached_tokens"][0] == 0
    asked = [[case["prompt_tokens"] for case in cases.values()] for cases in rows.values()]
    assert asked[0] == asked[1] == asked[2], "all sides were asked the same"


def test_thoughts_are_in_the_history_of_one_style_only(rows: Rows) -> None:
    cases = rows[THEIRS]
    last = {name: cases[name]["by_request"]["prompt_tokens"][-1] for name in NAMES}
    # Of an empty thought there remain the tags with a line break, and one behind them.
    assert last["not echoed"] - last["omitted"] == 4 * SMALLER["NUM_STEPS"]
    assert last["echoed"] - last["not echoed"] == 20 * SMALLER["NUM_STEPS"]
    after = {cases[f"{name}, next turn"]["prompt_tokens"] for name in NAMES}
    assert len(after) == 1, "then all are stripped"


@pytest.mark.parametrize("side", OURS)
@pytest.mark.parametrize("name", NAMES)
def test_keepwarm_reads_only_what_is_new_in_a_loop(
    rows: Rows, side: tuple[str, str], name: str
) -> None:
    by_request = rows[side][name]["by_request"]
    for most, cached in zip(by_request["max_cached_tokens"], by_request["cached_tokens"]):
        assert cached >= most - HEADER_LEN


def test_a_loop_without_empty_thoughts_is_lost_to_mlx_lm(rows: Rows) -> None:
    """Or the peer has changed, and the words about it should."""
    _, *cached = rows[THEIRS]["omitted"]["by_request"]["cached_tokens"]
    assert len(set(cached)) == 1, "never more than what stood before the first call"
    assert rows[THEIRS]["echoed"]["cached_tokens"] == rows[THEIRS]["echoed"]["max_cached_tokens"]


def test_idle_prefill_has_read_what_the_next_question_follows(rows: Rows) -> None:
    for name in NAMES:
        row = rows[OURS[0]][f"{name}, next turn"]
        # The question with its markup, and what begins the reply.
        assert row["prefilled_tokens"] == SMALLER["USER_LEN"] + 5 + 5
