"""Random conversations, and how many tokens each server reads that it, or any cache, could have had:
those behind the longest beginning that a prompt shares with what was read or said before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from keepwarm.bench.memory import entries
from keepwarm.bench.report import Report
from keepwarm.bench.story import KINDS, Story
from keepwarm.bench.talk import OURS, THEIRS, Talk
from keepwarm.bench.workers import System

# Each in its own way: with texts the server has not seen, or with what it said.
REPLIES = {"foreign replies": False, "own replies": True}
# Of replies that nobody goes on with.
_SHORT_REPLY = 4
# More than there are places: nothing has to go.
_NUM_ENTRIES = 200
# Each round has other conversations.
_NUM_SEEDS = 1000


def _ours(setting: str, **config: Any) -> System:
    return System(OURS.name, setting, OURS.env, {"config": {"idle_prefill": "off", **config}})


SIDES = [_ours(""), _ours("exact", exact=True)]
PEERS = [THEIRS, entries(_NUM_ENTRIES)]


def play(talk: Talk, number: int) -> None:
    seeds, [num_requests] = talk.plan.options["seeds"], talk.plan.options["requests"]
    for replies, is_own in REPLIES.items():
        for seed in (one + _NUM_SEEDS * (number - 1) for one in seeds):
            with talk.case(f"{replies}, seed {seed}"):
                _play(talk, Story(seed, is_own), num_requests)


def _play(talk: Talk, story: Story, num_requests: int) -> None:
    kinds: list[str] = []
    for ask in story.asks(num_requests):
        talk.play(ask.script)
        max_tokens = 512 if story.has_own_replies else _SHORT_REPLY
        answer = talk.chat(ask.messages, ask.tools, max_tokens=max_tokens)
        talk.side.settle()
        story.answered(ask, answer.message(with_thought=ask.with_thought))
        kinds.append(ask.kind)
    talk.note(kinds=kinds)


def beyond(row: dict[str, Any]) -> dict[str, int]:
    """For each kind of request the tokens that were read and need not have been."""
    found = dict.fromkeys(KINDS, 0)
    asked = row["by_request"]
    for kind, most, cached in zip(row["kinds"], asked["max_cached_tokens"], asked["cached_tokens"]):
        found[kind] += max(0, most - cached)
    return found


def table(report: Report) -> Table:
    """Tokens read beyond the least possible, as a part of all that was asked and for each kind of
    request; and the most bytes that were held behind one seed."""
    columns = ("system", "tokens", "beyond", *(kind.split(" ")[0] for kind in KINDS), "held MB")
    return report.table(columns, [*_lines(report.rows)])


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for replies in REPLIES:
        of_kind = [row for row in rows if row["case"].startswith(replies)]
        yield [f"{replies}, {len({row['case'] for row in of_kind})} seeds"]
        for name, setting in dict.fromkeys((row["system"], row["setting"]) for row in of_kind):
            one = [row for row in of_kind if (row["system"], row["setting"]) == (name, setting)]
            yield [f"  {name} {setting}".rstrip(), *_cells(one)]


def _cells(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Of one system, all seeds together."""
    num_tokens = sum(row["prompt_tokens"] for row in rows)
    found = [beyond(row) for row in rows]
    yield f"{num_tokens:,}"
    yield f"{sum(sum(one.values()) for one in found) / num_tokens:.2%}"
    for kind in KINDS:
        yield f"{sum(one[kind] for one in found):,}"
    yield f"{max(row['held_bytes'] for row in rows) / 1e6:,.1f}"
