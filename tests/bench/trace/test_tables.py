"""The tables of `keepwarm bench trace`: what is ahead of what, and by how much."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from keepwarm.bench.report import Report
from keepwarm.bench.trace.tables import points_ahead, tables


def row(policy: str, cached: int, saved_s: float, *, gb: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy, "trace": "agents", "budget_bytes": gb * 10**9, "prompt_tokens": 1000,
        "cached_tokens": cached, "prefill_s": 50.0, "saved_s": saved_s, "earned_tokens": {}, **more,
    }  # fmt: skip


def shown(*rows: dict[str, Any]) -> list[list[list[str]]]:
    """By table, its lines as words, on a usual terminal."""
    report = Report("trace", "a-model", "states by their sizes", rows=list(rows))
    made = []
    for table in tables(report):
        out = io.StringIO()
        Console(width=80, file=out).print(table)
        made.append([line.split() for line in out.getvalue().splitlines()])
    return made


def test_ours_is_compared_with_the_best_of_the_others_and_the_bound() -> None:
    [policies] = shown(
        row("worth", 600, 30.0), row("lru", 500, 20.0), row("mlx-lm", 550, 35.0),
        row("bound", 800, 40.0),
    )  # fmt: skip
    assert ["GB", "worth", "lru", "mlx-lm", "ahead", "bound", "of", "it"] in policies
    assert ["4", "60.0", "50.0", "55.0", "+5.00", "80.0", "75.0"] in policies
    assert ["4", "60.0", "40.0", "70.0", "-10.00", "80.0", "75.0"] in policies


def test_what_ours_found_is_told_by_kind_and_budget() -> None:
    [_, kinds] = shown(
        row("worth", 300, 10.0, earned_tokens={"tail": 200, "message": 100}),
        row("bound", 800, 40.0),
        row("worth", 500, 10.0, gb=8, earned_tokens={"tail": 500}),
        row("bound", 800, 40.0, gb=8),
    )
    assert ["GB", "at", "message", "at", "tail"] in kinds
    assert ["4", "10.00", "20.00"] in kinds
    assert ["8", "0.00", "50.00"] in kinds


def test_who_knows_the_future_is_no_rival() -> None:
    [policies] = shown(
        row("worth", 600, 30.0), row("lru", 500, 20.0), row("oracle", 700, 35.0),
        row("bound", 800, 40.0),
    )  # fmt: skip
    assert ["4", "60.0", "50.0", "70.0", "+10.00", "80.0", "75.0"] in policies


def test_all_policies_fit_a_usual_terminal() -> None:
    policies = ["worth", "lru", "fifo", "type", "marconi", "mlx-lm", "oracle", "bound"]
    [table] = shown(*(row(policy, 1000, 50.0, gb=128) for policy in policies))
    heads = ["GB", *policies[:-1], "ahead", "bound", "of", "it"]
    assert heads in table
    assert ["128", *["100.0"] * 7, "+0.00", "100.0", "100.0"] in table


def test_others_alone_are_not_compared_with_ours() -> None:
    [policies] = shown(row("lru", 500, 20.0), row("bound", 800, 40.0))
    assert ["4", "50.0", "80.0"] in policies


def test_each_trace_has_its_tables() -> None:
    found = {"earned_tokens": {"message": 1, "system": 1, "tail": 1}}
    both = shown(
        row("worth", 1, 1.0, **found), row("bound", 1, 1.0),
        row("worth", 0, 0.0, trace="chats"), row("bound", 1, 1.0, trace="chats"),
    )  # fmt: skip
    assert [table[0][0] for table in both] == ["agents:", "agents:", "chats:"]


def test_what_is_rounded_away_is_neither_ahead_nor_behind() -> None:
    assert points_ahead(1.0, [0.2, 1.001]) == points_ahead(1.0, [0.999]) == "+0.00"
