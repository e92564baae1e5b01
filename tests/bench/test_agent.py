"""`keepwarm bench agent`: a real run of both servers, with the tokens that each must have spared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepwarm.bench import agent, duel, words
from keepwarm.bench.talk import Plan

CASES = ("system", "tools only", "document", "completions")
NUM_USERS = 2
SMALLER = {"NUM_USERS": NUM_USERS, "SYSTEM_LEN": 60, "NUM_TOOLS": 1, "DOCUMENT_LEN": 600}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(agent, name, value)
        patch.setattr(agent, "REPLY", agent.Script(thought_len=2, answer_len=2))
        found = duel.measure("agent", agent, Plan("qwen3_5-small", 1), lambda _: None)
    written: dict[str, Any] = json.loads(found.as_json())
    return written


def rows_of(report: dict[str, Any], system: str, setting: str = "") -> dict[str, dict[str, Any]]:
    wanted = (system, setting)
    rows = report["rows"]
    return {row["case"]: row for row in rows if (row["system"], row["setting"]) == wanted}


def test_each_case_has_a_cold_row_and_a_warm_one_of_each_system(report: dict[str, Any]) -> None:
    cases = [f"{case}, {state}" for case in CASES for state in ("cold", "warm")]
    for system in ("keepwarm", "mlx-lm"):
        rows = rows_of(report, system)
        assert list(rows) == cases
        for case, row in rows.items():
            num_requests = NUM_USERS if case.endswith("warm") else 1
            assert row["num_requests"] == num_requests == len(row["ttft_s"])
            assert row["prefilled_tokens"] == row["prompt_tokens"] - row["cached_tokens"]
            assert row["held_bytes"] > 0
    by_case = report["bounds"]["by_case"]
    assert report["bounds"]["max_cached_tokens"] == sum(by_case.values())


def test_the_same_cache_with_the_kernels_of_mlx_lm_finds_the_same(report: dict[str, Any]) -> None:
    ours, plain = rows_of(report, "keepwarm"), rows_of(report, "keepwarm", "mlx-lm's kernels")
    assert {case: row["cached_tokens"] for case, row in plain.items()} == {
        case: row["cached_tokens"] for case, row in ours.items()
    }


def test_cost_of_idle_prefill_is_noted(report: dict[str, Any]) -> None:
    row = rows_of(report, "keepwarm")["system, warm"]
    assert row["idle_tokens"] > 0
    assert row["idle_s"] > 0
    assert "idle_tokens" not in rows_of(report, "mlx-lm")["system, warm"]


def test_what_users_share_is_2700_tokens() -> None:
    tokenizer = words.tokenizer()
    system = {"role": "system", "content": words.text(agent.SYSTEM_LEN, "system")}
    for messages, tool_len in (([system], agent.TOOL_LEN), ([], agent.BARE_TOOL_LEN)):
        tools = agent._tools(tool_len, 1)
        user = {"role": "user", "content": ""}
        prompt = tokenizer.apply_chat_template([*messages, user], tools=tools)
        assert abs(len(prompt) - 2700) < 20


def test_nothing_is_known_at_first_and_the_same_is_shared_by_all(report: dict[str, Any]) -> None:
    for system in ("keepwarm", "mlx-lm"):
        rows = rows_of(report, system)
        for case in CASES:
            assert rows[f"{case}, cold"]["cached_tokens"] == 0
            assert len(set(rows[f"{case}, warm"]["by_request"]["max_cached_tokens"])) == 1


def test_only_keepwarm_finds_what_is_shared_outside_a_system_message(
    report: dict[str, Any],
) -> None:
    ours, theirs = rows_of(report, "keepwarm"), rows_of(report, "mlx-lm")
    for case in ("system, warm", "tools only, warm"):
        # All but the words that begin a user message.
        assert ours[case]["max_cached_tokens"] - ours[case]["cached_tokens"] <= 3 * NUM_USERS
    for case in ("document, warm", "completions, warm"):
        # The document ends with a blank line.
        found, most = (ours[case]["by_request"][f"{what}cached_tokens"] for what in ("", "max_"))
        assert found == most
        assert found[0] > 600
    assert theirs["system, warm"]["cached_tokens"] == theirs["system, warm"]["max_cached_tokens"]
    assert {theirs[f"{case}, warm"]["cached_tokens"] for case in CASES[1:]} == {0}
