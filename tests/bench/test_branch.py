"""`keepwarm bench branch`: real runs of keepwarm on every kind of layer, and of both systems on one;
what is reused lies within `min_span` of the bound."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from keepwarm.bench import branch, duel
from keepwarm.bench.report import Report
from keepwarm.bench.talk import OURS, Plan
from keepwarm.cache.placement import Placement

CASES = ("even", "even, edit 3", "even, again 3", "even, again 4")
SMALLER = {
    "NUM_TURNS": 4,
    "EDITED": 3,
    "NUM_MORE": 1,
    "SYSTEM_LEN": 100,
    "THOUGHT_LEN": 10,
    "LENGTHS": {"even": [(250, 20)]},
    "SIDES": [OURS],
}


def measured(model: str, **more: Any) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(branch, name, value)
        return duel.measure("branch", branch, Plan(model, 1, **more), lambda _: None)


@pytest.fixture(scope="module")
def report() -> Report:
    return measured("qwen3_5-small")


def rows_of(report: Report, system: str = OURS.name) -> dict[str, dict[str, Any]]:
    return {row["case"]: row for row in report.rows if row["system"] == system}


def test_each_branch_is_a_row_with_its_bound_and_what_was_missed(report: Report) -> None:
    for system in (OURS.name, "mlx-lm"):
        rows = rows_of(report, system)
        assert tuple(rows) == CASES
        assert [row["num_requests"] for row in rows.values()] == [4, 2, 1, 1]
        for row in rows.values():
            assert row["max_cached_tokens"] <= row["prompt_tokens"] - row["num_requests"]
            most, cached = (row["by_request"][k] for k in ("max_cached_tokens", "cached_tokens"))
            assert row["miss_tokens"] == max(0, *(m - c for m, c in zip(most, cached)))


def test_what_is_asked_again_is_known_to_its_last_token_but_one(report: Report) -> None:
    rows = rows_of(report)
    turns = rows["even"]["by_request"]["prompt_tokens"]
    for case, turn in (("even, again 3", 3), ("even, again 4", 4)):
        assert rows[case]["prompt_tokens"] == turns[turn - 1]
        assert rows[case]["max_cached_tokens"] == turns[turn - 1] - 1
    edited = rows["even, edit 3"]["by_request"]
    assert edited["prompt_tokens"] == turns[2:]
    # Up to where the question begins: its words, the end behind them and the reply's beginning.
    assert edited["max_cached_tokens"][0] == turns[2] - 250 - 2 - 5


def test_hybrid_is_reused_within_min_span_of_the_bound(report: Report) -> None:
    for row in rows_of(report).values():
        assert row["miss_tokens"] <= Placement().min_span


@pytest.mark.parametrize("model", ["gpt_oss-small", "mamba2-small"])
def test_window_and_recurrent_layers_are_reused_within_min_span_of_the_bound(model: str) -> None:
    rows = rows_of(measured(model, has_peer=False))
    assert tuple(rows) == CASES
    for row in rows.values():
        assert row["miss_tokens"] <= Placement().min_span
    # The last checkpoint lies before the generation prompt. Snapshots without rows are dear: of a
    # conversation that rests they stay at its end only.
    assert rows["even, again 4"]["miss_tokens"] <= (4 if model == "gpt_oss-small" else 512)


def test_table_prints_the_bound_and_the_miss(report: Report) -> None:
    out = io.StringIO()
    Console(width=80, file=out).print(branch.table(report))
    for row in report.rows:
        assert f"{row['max_cached_tokens']:,}" in out.getvalue()
        assert f"{row['miss_tokens']:,}" in out.getvalue()
