"""`keepwarm bench mixed`: a real run with few tokens, and its figures for streams that are known."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.bench import duel, mixed
from keepwarm.bench.client import Answer
from keepwarm.bench.report import Report
from keepwarm.bench.talk import Plan

PROMPT_LEN = 700
MARKUP_LEN = 10  # around the one message: <|im_start|> user \\n ... <|im_start|> assistant ...
SMALLER = {
    "NUM_STREAMS": 2, "STREAM_PROMPT_LEN": 16, "NUM_BEFORE": 2, "NUM_TIMED": 8, "TIMED_S": 0.0,
    "NUM_AFTER": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(mixed, name, value)
        plan = Plan("qwen3_5-small", 1, options={"prompt": [PROMPT_LEN], "streams": [1, 3]})
        return duel.measure("mixed", mixed, plan, lambda words: None)


def test_one_row_is_the_long_prompt_and_the_others_are_streams(report: Report) -> None:
    for system in ("keepwarm", "mlx-lm"):
        rows = [row for row in report.rows if row["system"] == system]
        assert [row["case"] for row in rows] == ["700 tokens", "1 stream", "3 streams"]
        assert [row["num_requests"] for row in rows] == [1, 1, 3]
        assert [row["prompt_tokens"] - row["num_requests"] * MARKUP_LEN for row in rows] == [
            PROMPT_LEN,
            16,
            3 * 16,
        ]


def test_nothing_was_known_before(report: Report) -> None:
    assert {row["cached_tokens"] for row in report.rows} == {0}


def test_streams_have_gaps_before_the_prompt_while_it_is_read_and_after(report: Report) -> None:
    for row in report.rows[:2]:
        for when in ("before_", "", "after_"):
            typical, p99 = row[f"{when}gap_s"], row[f"{when}p99_gap_s"]
            assert 0 < typical <= p99 <= row[f"{when}longest_gap_s"]
    assert all("before_gap_s" not in row for row in report.rows[2:])


def test_the_table_has_a_line_for_each_row(report: Report) -> None:
    assert mixed.table(report).row_count == len(report.rows) + 3


def test_a_gap_counts_when_any_of_it_lies_in_the_time_asked_for() -> None:
    answers = [Answer(0.0, at=[1.0, 2.0, 5.0, 6.0]), Answer(0.0, at=[3.5, 4.5])]
    found = mixed._gaps("x_", answers, 2.5, 5.0)
    assert found["x_longest_gap_s"] == 3.0  # began before
    assert found["x_gap_s"] == 2.0  # of 3 and 1


def test_a_rate_is_that_of_all_streams_together() -> None:
    answers = [Answer(0.0, at=[1.0, 2.0, 3.0]), Answer(0.0, at=[1.5, 2.5, 3.5])]
    assert mixed._rate(answers, 1.0, 3.0) == 2.0  # 2, 3 and 1.5, 2.5 in two seconds


def test_more_tokens_per_second_are_a_ratio_above_one() -> None:
    assert mixed._ratio(_row(tokens_per_s=[50.0]), _row(tokens_per_s=[100.0])) == 2.0


def test_a_shorter_longest_gap_is_a_ratio_above_one() -> None:
    ours = _row(longest_gap_s=[0.1], before_gap_s=[0.01], tokens_per_s=[1.0])
    theirs = _row(longest_gap_s=[0.5], before_gap_s=[0.01], tokens_per_s=[1.0])
    assert mixed._ratio(theirs, ours) == 5.0


def _row(**notes: list[float]) -> dict[str, Any]:
    return {**{key: values[-1] for key, values in notes.items()}, "notes": notes}
