"""`keepwarm bench trace` as it is called: table, JSON and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepwarm.cli.main import main

LINES = [
    {
        "timestamp": 1000 * i,
        "input_length": 512 * n + 1,
        "output_length": 1,
        "hash_ids": [*range(n)],
    }
    for i, n in enumerate([2, 3, 4])
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "growing.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


def test_every_policy_and_the_bound_are_told(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "out.json"
    assert main(["bench", "trace", str(path), "--budgets", "1,4", "--json", str(told)]) == 0
    shown = capsys.readouterr().out
    assert "growing" in shown
    words = [line.split() for line in shown.splitlines()]
    # 1 and 4 GB, for tokens and for seconds: nobody is ahead where all find all.
    ends = [line[-3:] for line in words if line[:1] in (["1"], ["4"]) and len(line) > 2]
    assert [end[0] for end in ends] == ["+0.00"] * 4
    assert [end[2] for end in ends] == ["100.0"] * 4
    assert ["GB", "at", "message"] in words
    report = json.loads(told.read_text())
    assert report["bounds"] == {"max_cached_tokens": {"growing": 5 * 512}}
    rows = report["rows"]
    assert [row["policy"] for row in rows[:7]] == [
        "worth", "lru", "fifo", "type", "marconi", "mlx-lm", "bound",
    ]  # fmt: skip
    assert [row["budget_bytes"] for row in rows] == [10**9] * 7 + [4 * 10**9] * 7
    # 2 + 3 of the 9 blocks were there: all of them fit, so all find them, and the bound no more.
    assert {row["cached_tokens"] for row in rows} == {5 * 512}
    assert [row["saved_s"] for row in rows] == pytest.approx([rows[0]["saved_s"]] * len(rows))
    assert rows[0]["earned_tokens"] == {"message": 5 * 512}


def test_only_the_first_requests_are_replayed_where_told(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "out.json"
    flags = ["--budgets", "4", "--requests", "2", "--json", str(told)]
    assert main(["bench", "trace", str(path), *flags]) == 0
    rows = json.loads(told.read_text())["rows"]
    assert {row["num_requests"] for row in rows} == {2}
    assert {row["cached_tokens"] for row in rows} == {2 * 512}


def test_what_is_named_twice_is_replayed_once(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "out.json"
    flags = ["--budgets", "4,4", "--policies", "lru,worth,lru", "--json", str(told)]
    assert main(["bench", "trace", str(path), *flags]) == 0
    rows = json.loads(told.read_text())["rows"]
    assert [row["policy"] for row in rows] == ["lru", "worth", "bound"]


def test_first_requests_are_left_out_where_told(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "out.json"
    flags = ["--budgets", "4", "--skip", "1", "--json", str(told)]
    assert main(["bench", "trace", str(path), *flags]) == 0
    rows = json.loads(told.read_text())["rows"]
    assert {row["num_requests"] for row in rows} == {2}
    assert {row["cached_tokens"] for row in rows} == {3 * 512}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--skip", "-1"], "negative"),
        (["--skip", "3"], "has but 3 requests"),
        (["--policies", "worth,best"], "best"),
        (["--policies", "marconi:"], "marconi:"),
        (["--budgets", "4,x"], "4,8,16"),
        (["--budgets", "0"], "above 0"),
        (["--model", "gpt"], "nemotron-h-30b"),
        (["--users", "0"], "at least 1"),
        (["--requests", "0"], "at least 1"),
        (["--json", "nowhere/at/all.json"], "no folder"),
        (["--json", "."], "is a folder"),
    ],
)
def test_flags_that_cannot_be_meant_are_told(
    flags: list[str], told: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "trace", str(path), *flags]) != 0
    assert told in capsys.readouterr().err
