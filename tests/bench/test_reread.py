"""`keepwarm bench reread`: what is read beyond the least possible, on every kind of layer, in this
process; and a small run of the scenario with both servers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from keepwarm.bench import duel, reread
from keepwarm.bench.report import Report
from keepwarm.bench.story import KINDS, Story
from keepwarm.bench.talk import Plan
from tests.bench.near import Near, play, share_beyond


def told(story: Story, num_requests: int) -> list[tuple[str, list[dict[str, Any]]]]:
    found = []
    for ask in story.asks(num_requests):
        found.append((ask.kind, ask.messages))
        story.answered(ask, {"role": "assistant", "content": "w1"})
    return found


def test_a_story_depends_on_its_seed_alone_and_has_every_kind_of_request() -> None:
    assert told(Story(1, False), 60) == told(Story(1, False), 60)
    assert told(Story(1, False), 60) != told(Story(2, False), 60)
    assert {kind for kind, _ in told(Story(1, False), 60)} == set(KINDS)


@pytest.mark.parametrize(
    ("shape", "exact", "at_most"),
    [
        ("qwen3-small", False, 0.0),
        ("gpt_oss-small", False, 0.02),
        ("qwen3_5-small", False, 0.02),
        ("qwen3_5-small", True, 0.1),
    ],
)
def test_little_is_read_beyond_the_least_possible(shape: str, exact: bool, at_most: float) -> None:
    assert share_beyond(play(Near(shape, exact=exact), Story(1, False), 40)) <= at_most


@pytest.fixture(scope="module")
def report() -> Report:
    plan = Plan("qwen3_5-small", 1, options={"seeds": [1], "requests": [6]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reread, "REPLIES", {"foreign replies": False})
        patch.setattr(reread, "SIDES", reread.SIDES[:1])
        patch.setattr(reread, "PEERS", reread.PEERS[1:])
        return duel.measure("reread", reread, plan, lambda _: None)


def test_both_systems_are_asked_the_same_and_each_kind_has_its_tokens(report: Report) -> None:
    assert [row["system"] for row in report.rows] == ["keepwarm", "mlx-lm"]
    [asked] = {tuple(row["by_request"]["prompt_tokens"]) for row in report.rows}
    assert len(asked) == 6
    for row in report.rows:
        assert len(row["kinds"]) == 6
        most, cached = (row["by_request"][k] for k in ("max_cached_tokens", "cached_tokens"))
        lacking = sum(max(0, m - c) for m, c in zip(most, cached))
        assert sum(reread.beyond(row).values()) == lacking


def test_table_has_a_line_for_each_system_and_kind(report: Report) -> None:
    out = io.StringIO()
    Console(width=100, file=out).print(reread.table(report))
    assert "mlx-lm 200 entries" in out.getvalue()
    assert all(kind.split(" ")[0] in out.getvalue() for kind in KINDS)
