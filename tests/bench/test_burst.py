"""`keepwarm bench burst`, with fewer and shorter requests."""

from typing import Any

import pytest

from keepwarm.bench import burst, duel
from keepwarm.bench.report import Report
from keepwarm.bench.talk import Plan

SYSTEM_LEN = 600
NUM_REQUESTS = 3
NUM_MARKUP = 3  # tokens between the system prompt and the user's words: <|im_start|> user \\n


@pytest.fixture(scope="module")
def report() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burst, "SYSTEM_LEN", SYSTEM_LEN)
        patch.setattr(burst, "OWN_LEN", 60)
        patch.setattr(burst, "OWN_SPREAD", 8)
        plan = Plan("qwen3_5-small", 1, options={"requests": [NUM_REQUESTS]})
        return duel.measure("burst", burst, plan, lambda words: None)


def test_keepwarm_reads_each_distinct_token_once(report: Report) -> None:
    ours = _row(report, "keepwarm", "cold")
    # But for the markup before the user's words, which is shared too.
    assert ours["cached_tokens"] == ours["max_cached_tokens"] - NUM_MARKUP * (NUM_REQUESTS - 1)
    assert ours["read_tokens"] == ours["distinct_tokens"] + NUM_MARKUP * (NUM_REQUESTS - 1)


def test_nobody_reads_less_than_the_distinct_tokens(report: Report) -> None:
    # How much more mlx-lm reads depends on how close together the requests arrive.
    for system in ("keepwarm", "mlx-lm"):
        cold = _row(report, system, "cold")
        assert cold["read_tokens"] >= cold["distinct_tokens"] - NUM_REQUESTS


def test_the_bound_is_all_but_the_distinct_tokens(report: Report) -> None:
    for system in ("keepwarm", "mlx-lm"):
        cold, warm = _row(report, system, "cold"), _row(report, system, "warm")
        assert cold["max_cached_tokens"] == cold["prompt_tokens"] - cold["distinct_tokens"]
        assert warm["max_cached_tokens"] == warm["prompt_tokens"] - NUM_REQUESTS
    assert report.bounds["by_case"]["3 cold"] == cold["max_cached_tokens"]


def test_requests_differ_in_length_and_share_the_system_prompt(report: Report) -> None:
    by_request = _row(report, "keepwarm", "cold")["by_request"]
    assert len(set(by_request["prompt_tokens"])) == NUM_REQUESTS
    first, *others = by_request["max_cached_tokens"]
    assert first == 0
    assert all(SYSTEM_LEN < shared < SYSTEM_LEN + 10 for shared in others)


def test_known_requests_read_hardly_anything(report: Report) -> None:
    warm = _row(report, "keepwarm", "warm")
    assert warm["num_requests"] == NUM_REQUESTS
    assert warm["read_tokens"] < 8 * NUM_REQUESTS  # the generation prompt


def test_requests_apart_share_the_first_markup_only(report: Report) -> None:
    for system in ("keepwarm", "mlx-lm"):
        apart = _row(report, system, "apart")
        assert apart["num_requests"] == NUM_REQUESTS
        assert apart["cached_tokens"] <= apart["max_cached_tokens"] <= 3 * (NUM_REQUESTS - 1)
        assert apart["prompt_tokens"] > NUM_REQUESTS * SYSTEM_LEN


def test_times_are_in_order(report: Report) -> None:
    for row in report.rows:
        assert 0 < row["first_s"] <= row["all_firsts_s"] <= row["all_done_s"]


def test_the_table_has_a_line_for_each_row(report: Report) -> None:
    assert burst.table(report).row_count == len(report.rows) + 3


def _row(report: Report, system: str, part: str) -> dict[str, Any]:
    case = f"{NUM_REQUESTS} {part}"
    [row] = [row for row in report.rows if (row["system"], row["case"]) == (system, case)]
    return row
