"""Streams that run beside a long prompt, and many that decode together: the gaps between tokens, and
tokens per second, as a client sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any

import numpy as np
from rich.table import Table

from keepwarm.bench import words
from keepwarm.bench.client import Answer, Message
from keepwarm.bench.duel import lines
from keepwarm.bench.flight import Flight
from keepwarm.bench.report import Report, median
from keepwarm.bench.script import Script
from keepwarm.bench.talk import OURS, Talk

NUM_STREAMS = 4  # beside the long prompt
STREAM_PROMPT_LEN = 128
NUM_BEFORE = 8  # tokens of each stream that are not timed: until all run
NUM_TIMED = 32  # tokens of each stream, at least
TIMED_S = 2.0  # at least
NUM_AFTER = 32  # tokens of the reply to the long prompt
MAX_TOKENS = 20_000  # of a stream: more than it lives to see
# Until a server has seen that a client left. mlx-lm's looks every half second.
LEFT_S = 1.5
REPLY = Script(thought_len=1, answer_len=100, is_endless=True)


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    for prompt_len in talk.plan.options["prompt"]:
        with talk.case(f"{prompt_len:,} tokens"):
            _read_beside(talk, prompt_len, f"{number} {prompt_len}")
    for num_streams in talk.plan.options["streams"]:
        with talk.case(f"{num_streams} stream{'s' if num_streams > 1 else ''}"):
            _decode_together(talk, num_streams, f"{number} {num_streams}")


def _read_beside(talk: Talk, prompt_len: int, seed: str) -> None:
    """A long prompt is read while streams run."""
    asked = _conversation(prompt_len, f"long {seed}")
    prompt = talk.render(asked)
    streams = _started(talk, NUM_STREAMS, seed)
    began, _ = _timed(streams)
    answer = Flight(talk.side.client, asked, NUM_AFTER).answer()
    left = _left(streams)
    talk.write_down(prompt, answer)
    first, last = answer.at[0], answer.at[-1]
    talk.note(
        **_gaps("before_", left, began, answer.sent),
        **_gaps("", left, answer.sent, first),
        **_gaps("after_", left, first, last),
        tokens_per_s=_rate(left, answer.sent, first),
    )


def _decode_together(talk: Talk, num_streams: int, seed: str) -> None:
    streams = _started(talk, num_streams, seed)
    began, ended = _timed(streams)
    left = [_until(ended, answer) for answer in _left(streams)]
    for i, answer in enumerate(left):
        prompt = talk.render(_conversation(STREAM_PROMPT_LEN, f"{seed} {i}"))
        answer.prompt_tokens = len(prompt)  # who leaves is told no usage
        talk.write_down(prompt, answer)
    talk.note(**_gaps("", left, began, ended), tokens_per_s=_rate(left, began, ended))


# Streams


def _conversation(num_tokens: int, seed: str) -> list[Message]:
    return [{"role": "user", "content": words.text(num_tokens, seed)}]


def _started(talk: Talk, num_streams: int, seed: str) -> list[Flight]:
    return [
        Flight(talk.side.client, _conversation(STREAM_PROMPT_LEN, f"{seed} {i}"), MAX_TOKENS)
        for i in range(num_streams)
    ]


def _timed(streams: Sequence[Flight]) -> tuple[float, float]:
    """From when all run until each has said enough."""
    for stream in streams:
        stream.wait(NUM_BEFORE)
    began = perf_counter()
    ends = [stream.num_tokens + NUM_TIMED for stream in streams]
    sleep(TIMED_S)
    for stream, end in zip(streams, ends, strict=True):
        stream.wait(end)
    return began, perf_counter()


def _left(streams: Sequence[Flight]) -> list[Answer]:
    """All leave; what came to each."""
    for stream in streams:
        stream.leave()
    found = [stream.answer() for stream in streams]
    sleep(LEFT_S)
    return found


def _until(end: float, answer: Answer) -> Answer:
    """What had come by then: all leave at once, and are given up while others still run."""
    return replace(answer, at=[at for at in answer.at if at <= end])


# Figures


def _gaps(prefix: str, answers: Sequence[Answer], start: float, end: float) -> dict[str, float]:
    """Those that a stream was in at some moment between `start` and `end`."""
    pairs = [pair for answer in answers for pair in pairwise(answer.at)]
    gaps = [hi - lo for lo, hi in pairs if hi > start and lo < end]
    return {
        f"{prefix}gap_s": float(np.median(gaps)),
        f"{prefix}p99_gap_s": float(np.percentile(gaps, 99)),
        f"{prefix}longest_gap_s": max(gaps),
    }


def _rate(answers: Sequence[Answer], start: float, end: float) -> float:
    """Tokens per second, of all together."""
    return sum(start < at <= end for answer in answers for at in answer.at) / (end - start)


def table(report: Report) -> Table:
    """Gaps in milliseconds: in the middle before the long prompt came, and while it was read. The
    ratio says how much shorter keepwarm's longest gap is, or how many more tokens per second come
    where nothing is read."""
    columns = ("system", "before", "gap ms", "p99", "longest", "tokens/s", "ttft s", "ratio")
    return report.table(columns, lines(report, _cells))


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    notes = row["notes"]
    for key in ("before_gap_s", "gap_s", "p99_gap_s", "longest_gap_s"):
        yield f"{median(notes[key]) * 1e3:,.1f}" if key in notes else ""
    yield f"{median(notes['tokens_per_s']):,.1f}"
    yield f"{median(row['ttft_s']):.2f}"
    yield "" if row["system"] == OURS.name else f"{_ratio(row, ours):.2f}x"


def _ratio(row: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
    if "before_gap_s" in row:
        return median(row["notes"]["longest_gap_s"]) / median(ours["notes"]["longest_gap_s"])
    return median(ours["notes"]["tokens_per_s"]) / median(row["notes"]["tokens_per_s"])
