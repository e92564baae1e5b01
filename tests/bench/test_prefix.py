"""`keepwarm bench prefix`: what is found again is counted, and the parts of a hit are told."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from keepwarm.bench import duel, prefix
from keepwarm.bench.report import Report
from keepwarm.bench.talk import Plan

LENGTH = 200
# Around a message of LENGTH words: <|im_start|> user \n before it; <|im_end|> \n behind it; then
# <|im_start|> assistant \n <think> \n.
PROMPT_LEN = LENGTH + 10


@pytest.fixture(scope="module", params=["qwen3-small", "qwen3_5-small"])
def report(request: pytest.FixtureRequest) -> Report:
    plan = Plan(request.param, num_rounds=1, options={"lengths": [LENGTH]})
    return duel.measure("prefix", prefix, plan, lambda words: None)


def row_of(report: Report, system: str, case: str) -> Mapping[str, Any]:
    [row] = [r for r in report.rows if (r["system"], r["case"]) == (system, f"{LENGTH}, {case}")]
    return row


def test_both_read_a_new_prompt_whole_in_one_message_or_many(report: Report) -> None:
    for case in ("one message, cold", f"{prefix.NUM_MESSAGES} messages, cold"):
        ours, theirs = (row_of(report, system, case) for system in ("keepwarm", "mlx-lm"))
        assert ours["prompt_tokens"] == theirs["prompt_tokens"]
        assert ours["cached_tokens"] == theirs["cached_tokens"] == 0
        assert ours["read_tokens"] >= ours["prompt_tokens"] - 1


def test_prompt_asked_again_is_restored_to_its_end(report: Report) -> None:
    row = row_of(report, "keepwarm", "exact")
    assert row["by_request"]["prompt_tokens"] == [PROMPT_LEN] * prefix.NUM_HOT
    assert row["by_request"]["cached_tokens"] == [PROMPT_LEN] * prefix.NUM_HOT


def test_other_ending_costs_attention_its_own_tokens_only(report: Report) -> None:
    row = row_of(report, "keepwarm", "nearest")
    parted = 3 + LENGTH - prefix.NEAREST_LEN
    assert row["by_request"]["max_cached_tokens"] == [parted] * prefix.NUM_HOT
    if report.model == "qwen3-small":
        assert row["by_request"]["cached_tokens"] == [parted] * prefix.NUM_HOT


def test_parts_of_a_hit_are_told_by_ours_only(report: Report) -> None:
    for case in ("one message, cold", "exact", "nearest"):
        ours, theirs = (row_of(report, system, case) for system in ("keepwarm", "mlx-lm"))
        assert all(ours[f"{part}_s"] >= 0.0 for part in prefix.PARTS)
        # Of a prompt that is known to its end nothing is stored before its reply has ended.
        assert (ours["insert_s"] > 0.0) == (case != "exact")
        assert not any(f"{part}_s" in theirs for part in prefix.PARTS)
    assert row_of(report, "keepwarm", "exact")["restore_s"] > 0.0


def test_table_says_how_many_decode_steps_the_first_token_takes() -> None:
    report = Report("prefix", "small", "cpu")
    common = {"setting": "", "case": "exact", "prefilled_tokens": 3, "num_requests": 3}
    report.rows = [
        {**common, "system": "keepwarm", "ttft_s": [0.012],
         "notes": {"step_s": [0.008], "lookup_s": [1e-4], "restore_s": [2e-3], "insert_s": [3e-3]}},
        {**common, "system": "mlx-lm", "ttft_s": [0.024], "notes": {"step_s": [0.008]}},
    ]  # fmt: skip
    out = io.StringIO()
    Console(width=80, file=out).print(prefix.table(report))
    ours, theirs = out.getvalue().splitlines()[-4:-2]
    assert ours.split() == ["keepwarm", "1", "12.0", "n=1", "8.0", "1.5", "0.1/2.0/3.0"]
    assert theirs.split() == ["mlx-lm", "1", "24.0", "n=1", "2.00x", "8.0", "3.0"]
