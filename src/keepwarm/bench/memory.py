"""What is held after a long chat, and after several in turn: bytes, and what they spared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from keepwarm.bench import words
from keepwarm.bench.chat import REPLY, SYSTEM_LEN, USER_LEN
from keepwarm.bench.duel import lines
from keepwarm.bench.report import Report
from keepwarm.bench.shapes import SHAPES
from keepwarm.bench.talk import OURS, THEIRS, Talk
from keepwarm.bench.workers import System

NUM_TURNS = 40
NUM_CHATS = 6
NUM_TURNS_EACH = 10
# Its own default of ten does not hold six chats; this is the least that does.
NUM_ENTRIES = 17
# Of Qwen3.5-35B-A3B: one snapshot, one row.
SNAPSHOT_BYTES = 63 * 10**6
ROW_BYTES = 20 * 10**3


def entries(num_entries: int) -> System:
    """mlx-lm's server with room for so many."""
    flags = ["--prompt-cache-size", str(num_entries)]
    return System(THEIRS.name, f"{num_entries} entries", THEIRS.env, {"flags": flags})


PEERS = [THEIRS, entries(NUM_ENTRIES)]


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    with talk.case(f"{NUM_TURNS} turns"):
        _chat(talk, 1, NUM_TURNS, f"long {number}")
    with talk.case(f"{NUM_CHATS} chats"):
        _chat(talk, NUM_CHATS, NUM_TURNS_EACH, f"many {number}")


def _chat(talk: Talk, num_chats: int, num_turns: int, seed: str) -> None:
    """A turn of each chat, and so on."""
    chats: list[list[dict[str, Any]]] = [
        [{"role": "system", "content": words.text(SYSTEM_LEN, f"system {seed} {i}")}]
        for i in range(num_chats)
    ]
    for turn in range(num_turns):
        for i, messages in enumerate(chats):
            text = words.text(USER_LEN, f"user {seed} {i} {turn}")
            messages.append({"role": "user", "content": text})
            messages.append(talk.chat(messages).message())
            talk.side.settle()  # the user reads the answer, and thinks
    figures = talk.side.figures()
    num_snapshots, num_rows = figures["num_checkpoints"], figures["num_rows"]
    talk.note(num_snapshots=num_snapshots, num_rows=num_rows, peak_bytes=figures["peak_bytes"])
    if _is_alike(talk.plan.model):
        talk.note(large_bytes=num_snapshots * SNAPSHOT_BYTES + num_rows * ROW_BYTES)


def _is_alike(model: str) -> bool:
    """Whether its layers are those of Qwen3.5, so that sizes are all that differs."""
    return str(SHAPES.get(model, {}).get("model_type", "")).startswith("qwen3_5")


def table(report: Report) -> Table:
    """Snapshots, rows and bytes that are held, what the allocator says, and what it would be with
    the sizes of Qwen3.5-35B-A3B. The ratio is theirs over ours, of the last where there is one."""
    columns = ("system", "cached", "snaps", "rows", "held MB", "alloc", "35B GB", "ratio")
    return report.table(columns, lines(report, _cells))


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    yield f"{row['cached_tokens'] / row['prompt_tokens']:.1%}"
    yield f"{row['num_snapshots']:,}"
    yield f"{row['num_rows']:,}"
    yield f"{row['held_bytes'] / 1e6:,.1f}"
    yield f"{row['active_bytes'] / 1e6:,.1f}"
    yield f"{row['large_bytes'] / 1e9:.2f}" if "large_bytes" in row else ""
    key = "large_bytes" if "large_bytes" in row else "held_bytes"
    yield "" if row["system"] == OURS.name else f"{row[key] / ours[key]:.2f}x"
