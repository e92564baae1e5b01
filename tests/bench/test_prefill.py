"""`keepwarm bench prefill`: its figures, its table, and a real run of all systems."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from rich.console import Console

from keepwarm.bench import worker
from keepwarm.bench.prefill import OURS, Plan, measure, peers, speed, table
from keepwarm.bench.report import Report, spread
from keepwarm.bench.workers import System, Worker, WorkerFailed
from keepwarm.cli.main import main
from keepwarm.model import blas, names
from keepwarm.model.head import head_of
from tests.architectures.drive import random_tokens
from tests.architectures.zoo import ARCHITECTURES


def row(system: str, setting: str, *ttft_s: float) -> dict[str, Any]:
    return {
        "system": system,
        "setting": setting,
        "blas": "",
        "dtype": "float32",
        "prompt_tokens": 1000,
        "ttft_s": list(ttft_s),
    }


def test_speed_is_that_of_the_median_round() -> None:
    assert speed(row("keepwarm", "", 0.5, 9.0, 0.1)) == 2000
    assert spread([0.5, 0.6, 0.45]) == "±20%"


def test_table_says_how_many_times_faster_keepwarm_is() -> None:
    report = Report("prefill", "small", "cpu")
    report.rows = [row("keepwarm", "default", 0.1), row("mlx-lm", "same BLAS", 0.25)]
    out = io.StringIO()
    Console(width=80, file=out).print(table(report))
    assert "2.50x" in out.getvalue()
    assert "10,000" in out.getvalue()


def test_blas_and_dtype_are_compared_where_they_are_ours_to_choose() -> None:
    alike, as_it_comes = peers({"device": "cpu", "dtype": "float32"})
    assert alike.env["KEEPWARM_BLAS"] == OURS.env["KEEPWARM_BLAS"]
    assert alike.job == {"dtype": "float32"}
    assert as_it_comes.env["KEEPWARM_BLAS"] == "off"
    assert not as_it_comes.job
    assert peers({"device": "gpu", "dtype": "bfloat16"}) == [as_it_comes]
    assert {peer.env["KEEPWARM_KERNELS"] for peer in (alike, as_it_comes)} == {"mlx-lm"}


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="that is so on a CPU")
def test_who_cannot_run_the_model_is_left_out_and_said_so() -> None:
    """MLX cannot multiply sorted experts in bfloat16 there, which is what gpt-oss comes in."""
    report = measure(Plan(None, "gpt_oss-small", [100, 120], 1), lambda _: None)
    found = [(row["system"], row["setting"], row["prompt_tokens"]) for row in report.rows]
    assert found == [
        (system, setting, length)
        for length in (100, 120)
        for system, setting in (("keepwarm", "default"), ("mlx-lm", "same BLAS, dtype"))
    ]
    [(name, why)] = report.bounds["left_out"].items()
    assert name == "mlx-lm, default"
    assert "GatherMM" in why
    out = io.StringIO()
    Console(width=100, file=out).print(table(report))
    assert "cannot" in out.getvalue()


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="BLAS is compared on a CPU")
def test_all_systems_read_the_same_prompts_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_DISABLE_COMPILE", "1")
    # What the caller has chosen is of no account.
    monkeypatch.setenv("KEEPWARM_KERNELS", "no-such")
    monkeypatch.setenv("KEEPWARM_BLAS", "off")
    words: list[str] = []
    report = measure(Plan(None, "qwen3_5-small", [24], 2), words.append)
    written = json.loads(report.as_json())
    assert set(written) >= {"scenario", "model", "device", "versions", "rows", "bounds"}
    assert written["model"] == "qwen3_5-small"
    systems = [(row["system"], row["setting"], row["dtype"]) for row in written["rows"]]
    assert systems == [
        ("keepwarm", "default", "float32"),
        ("mlx-lm", "same BLAS, dtype", "float32"),
        ("mlx-lm", "default", "bfloat16"),
    ]
    assert written["rows"][0]["blas"] == written["rows"][1]["blas"]
    if blas.open_library("auto") is not None:
        assert written["rows"][0]["blas"] != written["rows"][2]["blas"]
    for one in written["rows"]:
        assert (one["prompt_tokens"], one["cached_tokens"], one["prefilled_tokens"]) == (24, 0, 24)
        assert len(one["ttft_s"]) == 2
        assert min(one["ttft_s"]) > 0
    turns = words[1:]
    assert len(turns) == 3 * len(systems)
    assert turns[0] != turns[len(systems)], "each is first once"


@pytest.mark.parametrize("system", worker._SYSTEMS)
def test_each_system_reads_the_prompt_and_begins_no_reply(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ARCHITECTURES["llama"].build()
    head_of(model)
    call, called = type(model).__call__, []

    def counting(self: Any, tokens: mx.array, *args: Any, **more: Any) -> Any:
        called.append(tokens.size)
        return call(self, tokens, *args, **more)

    monkeypatch.setattr(type(model), "__call__", counting)
    _, read = worker._SYSTEMS[system]
    assert read(model, random_tokens(24, 0)) == 0
    assert sum(called) == 24


def test_system_that_cannot_run_says_why() -> None:
    with (
        Worker(System("mlx-lm", "broken"), {"shape": "no-such"}) as worker,
        pytest.raises(WorkerFailed, match=r"mlx-lm \(broken\): KeyError: 'no-such'"),
    ):
        worker.hear()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lengths", "many"], "--lengths"),
        (["--lengths", "1"], "--lengths"),
        (["--rounds", "0"], "--rounds"),
        (["--shape", "no-such"], "choose one of qwen3-small"),
        (["--json", "/no/such/file.json"], "no folder"),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(flags: list[str], words: str, capsys: Any) -> None:
    assert main(["bench", "prefill", *flags]) == 2
    assert words in capsys.readouterr().err


def test_package_without_its_model_asks_for_one(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(names, "files", lambda _: tmp_path)
    assert main(["bench", "prefill"]) == 2
    assert capsys.readouterr().err == "keepwarm: this build has no built-in model; name one\n"


def test_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot write"):
        Report("prefill", "small", "cpu").write(tmp_path)
