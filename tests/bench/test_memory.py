"""`keepwarm bench memory`: a real run of short chats, with what each system must hold after them."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.bench import duel, memory
from keepwarm.bench.report import Report
from keepwarm.bench.script import Script
from keepwarm.bench.talk import Plan

NUM_TURNS = 4
NUM_CHATS = 2
NUM_TURNS_EACH = 2
NUM_ENTRIES = 6
SMALLER = {
    "NUM_TURNS": NUM_TURNS, "NUM_CHATS": NUM_CHATS, "NUM_TURNS_EACH": NUM_TURNS_EACH,
    "REPLY": Script(thought_len=4, answer_len=20),
    "PEERS": [memory.entries(NUM_ENTRIES)],
}  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(memory, name, value)
        return duel.measure("memory", memory, Plan("qwen3_5-small", 1), lambda words: None)


def test_each_system_says_what_it_holds_after_each_case(report: Report) -> None:
    assert [(row["system"], row["case"], row["num_requests"]) for row in report.rows] == [
        ("keepwarm", "4 turns", NUM_TURNS),
        ("mlx-lm", "4 turns", NUM_TURNS),
        ("keepwarm", "2 chats", NUM_CHATS * NUM_TURNS_EACH),
        ("mlx-lm", "2 chats", NUM_CHATS * NUM_TURNS_EACH),
    ]


def test_both_read_the_same_prompts(report: Report) -> None:
    ours, theirs = (_row(report, system, "4 turns") for system in ("keepwarm", "mlx-lm"))
    assert ours["by_request"]["prompt_tokens"] == theirs["by_request"]["prompt_tokens"]
    assert ours["cached_tokens"] >= theirs["cached_tokens"] > 0


def test_keepwarm_holds_each_row_once(report: Report) -> None:
    ours = _row(report, "keepwarm", "4 turns")
    last = ours["by_request"]["prompt_tokens"][-1]
    answer_len = 20 + len(["<|im_start|>", "assistant", "\n", "<|im_end|>", "\n"])
    generation_len = 5  # <|im_start|> assistant \n <think> \n
    assert ours["num_rows"] == last - generation_len + answer_len


def test_mlx_lm_holds_the_rows_of_each_entry(report: Report) -> None:
    theirs = _row(report, "mlx-lm", "4 turns")
    assert theirs["num_snapshots"] == NUM_ENTRIES
    assert theirs["num_rows"] > 2 * theirs["by_request"]["prompt_tokens"][-1]


def test_what_is_held_is_at_most_what_the_allocator_gave(report: Report) -> None:
    for row in report.rows:
        assert 0 < row["held_bytes"] <= row["active_bytes"] <= row["peak_bytes"]


def test_the_same_in_a_large_model_is_weighed_by_its_sizes(report: Report) -> None:
    for row in report.rows:
        assert row["large_bytes"] == 63e6 * row["num_snapshots"] + 20e3 * row["num_rows"]


def test_the_table_has_a_line_for_each_row(report: Report) -> None:
    assert memory.table(report).row_count == len(report.rows) + 2


def _row(report: Report, system: str, case: str) -> dict[str, Any]:
    [row] = [row for row in report.rows if (row["system"], row["case"]) == (system, case)]
    return row
