"""Pictures of reports, really drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from keepwarm.bench import plot
from keepwarm.bench.report import Report

BOTH = ("keepwarm", "mlx-lm")


def row(system: str, case: str, factor: float, **more: Any) -> dict[str, Any]:
    noted = ("all_firsts_s", "gap_s", "longest_gap_s", "tokens_per_s", "held_bytes", "large_bytes")
    notes = {key: [factor] for key in noted}
    return {
        "system": system, "setting": "", "case": case, "num_requests": 3,
        "prompt_tokens": 300, "cached_tokens": int(200 / factor), "max_cached_tokens": 240,
        "read_tokens": int(100 * factor), "distinct_tokens": 100, "large_bytes": 1e9 * factor,
        "ttft_s": [factor, 0.1 * factor, 0.2 * factor], "notes": notes,
        "by_request": {"prompt_tokens": [50, 100, 150], "cached_tokens": [0, 50, 100]},
        **more,
    }  # fmt: skip


def rows(*cases: str) -> list[dict[str, Any]]:
    return [row(system, case, 1.0 + i) for case in cases for i, system in enumerate(BOTH)]


def traced() -> list[dict[str, Any]]:
    policies = [
        ("keepwarm", "worth"),
        ("keepwarm", "lru"),
        ("mlx-lm", "mlx-lm"),
        ("bound", "bound"),
    ]
    return [
        row(system, "", 1 + i, policy=policy, trace=trace, budget_bytes=gb * 10**9)
        for trace in ("a", "b")
        for gb in (4, 8)
        for i, (system, policy) in enumerate(policies)
    ]


REPORTS = {
    "chat": rows("3 turns"),
    "agent": rows("system, warm", "document, warm"),
    "burst": rows("6 cold", "6 warm"),
    "mixed": rows("50,000 tokens", "8 streams"),
    "memory": rows("40 turns", "6 chats"),
    "prefix": rows("2,000, one message, cold", "2,000, exact", "2,000, nearest"),
    "prefill": [row(system, "", 1 + i) for i, system in enumerate(BOTH)],
    "trace": traced(),
}


def report_of(scenario: str, model: str = "qwen3_5-mini") -> Report:
    found = Report(scenario, model, "cpu")
    found.rows = REPORTS[scenario]
    return found


@pytest.mark.parametrize("scenario", REPORTS)
def test_picture_is_small_and_white_and_shows_both(scenario: str, tmp_path: Path) -> None:
    file = plot.draw(report_of(scenario), tmp_path / "new")
    assert file == tmp_path / "new" / f"{scenario}-qwen3_5-mini-cpu.png"
    assert file.stat().st_size < 60_000
    pixels = np.asarray(Image.open(file).convert("RGB")).astype(int)
    assert pixels.shape[1] >= 600
    assert (pixels[0] == 255).all()
    for colour in ("#0072B2", "#D55E00"):
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels - wanted).max(axis=-1) < 12).sum() > 50, colour


def test_each_line_has_its_own_colour_in_the_file(tmp_path: Path) -> None:
    """A picture with few colours keeps those that are drawn with, however thin the lines are."""
    policies = ["worth", "lru", "fifo", "type", "marconi"]
    several = [
        row("keepwarm", "", 1.0 + i / 4, policy=policy, trace=trace, budget_bytes=gb * 10**9)
        for trace in ("a", "b", "c", "d")
        for gb in (4, 8, 16)
        for i, policy in enumerate(policies)
    ]
    image = Image.open(plot.draw(Report("trace", "m", "cpu", rows=several), tmp_path))
    there = {rgb for _, rgb in image.convert("RGB").getcolors(1 << 16)}
    wanted = {tuple(bytes.fromhex(colour[1:])) for colour in plot._COLOURS["keepwarm"]}
    assert wanted <= there


def test_bars_are_as_long_as_the_share_and_the_bound_stands_at_its_own() -> None:
    figure = Figure()
    plot._cached(figure, report_of("agent"))
    [axes] = figure.axes
    ours, theirs = axes.containers[:2]
    assert [bar.get_width() for bar in ours] == pytest.approx([200 / 3] * 2)
    assert [bar.get_width() for bar in theirs] == pytest.approx([100 / 3] * 2)
    bounds = {float(line.get_xdata()[0]) for line in axes.lines}
    assert bounds == {80.0}


def test_chat_shows_the_median_round_of_each_turn() -> None:
    report = report_of("chat")
    report.rows = [row("keepwarm", "a", 1, ttft_s=[1, 2, 3, 3, 2, 1, 5, 5, 5])]
    figure = Figure()
    plot._chat(figure, report)
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([0, 50, 200 / 3])
    assert list(figure.axes[1].lines[0].get_ydata()) == pytest.approx([3000, 2000, 3000])


def test_name_of_a_folder_is_a_name_for_a_file() -> None:
    assert plot.name_of(report_of("chat", "./models/My Model")) == "chat-models-My-Model-cpu.png"


def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write"):
        plot.draw(report_of("agent"), tmp_path / "file" / "folder")
