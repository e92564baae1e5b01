"""`keepwarm bench batch`: its table, and a real run of all systems."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from keepwarm.bench.batch import OURS, Plan, measure, peers, table
from keepwarm.bench.batch_worker import prompts_of
from keepwarm.bench.report import Report
from keepwarm.cli.main import main


def test_all_systems_answer_the_same_prompts_and_the_beginning_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLX_DISABLE_COMPILE", "1")  # else mlx starts a compiler for every shape
    plan = Plan(None, "qwen3_5-small", 5, 40, 6, 3, 1)
    words: list[str] = []
    report = measure(plan, words.append)
    assert report.bounds["left_out"] == {}
    ours, cold, copied, ours_copied = report.rows
    assert ours["cached_tokens"] == copied["cached_tokens"] == ours_copied["cached_tokens"] == 160
    assert cold["cached_tokens"] == 0
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 for row in report.rows)
    assert words[0] == "loading"
    assert len(words) == 1 + 4 * 2


def test_peers_compute_with_their_own_kernels_but_for_one() -> None:
    cold, copied, with_ours = peers("float32")
    assert [p.env["KEEPWARM_KERNELS"] for p in (cold, copied)] == ["mlx-lm", "mlx-lm"]
    assert with_ours.env == OURS.env


def test_table_says_how_many_times_as_long_the_others_take() -> None:
    def row(system: str, *seconds: float) -> dict[str, Any]:
        counts = {"num_prompts": 4, "shared_tokens": 2000, "cached_tokens": 6000}
        return {"system": system, "setting": "x", "seconds": list(seconds), **counts}

    report = Report("batch", "small", "cpu")
    report.rows = [row("keepwarm", 2.0, 1.0, 3.0), row("mlx-lm", 5.0)]
    report.bounds["left_out"] = {"mlx-lm, y": "it cannot"}
    out = io.StringIO()
    Console(width=100, file=out).print(table(report))
    assert "2.50x" in out.getvalue()
    assert "cannot" in out.getvalue()


def test_prompts_share_their_beginning_and_nothing_else() -> None:
    asked = {"seed": 1, "num_ids": 1000, "num_prompts": 3, "shared_len": 30, "own_len": 5}
    prompts = prompts_of(asked)
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 1
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 3
    assert prompts == prompts_of(asked)


@pytest.mark.parametrize("arguments", [["--prompts", "0"], ["--shape", "no-such"]])
def test_what_cannot_be_meant_is_told(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "batch", *arguments]) == 2
    assert "keepwarm: " in capsys.readouterr().err
