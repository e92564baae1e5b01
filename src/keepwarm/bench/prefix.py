"""A prompt that was read before: asked again (exact), and with another ending (nearest). What that
saves, what it costs, and what storing costs while a prompt is read for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from keepwarm.bench import words
from keepwarm.bench.client import Answer, Message
from keepwarm.bench.duel import lines
from keepwarm.bench.report import Report, median, spread
from keepwarm.bench.script import Script
from keepwarm.bench.talk import Talk

NUM_HOT = 3  # times that a known prompt is asked again in a round
NUM_MESSAGES = 80
MARKUP_LEN = 5  # tokens around a message
NEAREST_LEN = 23  # tokens that are others, at the end of the message
GAP_LEN = 4
REPLY = Script(thought_len=8, answer_len=24)
PARTS = ("lookup", "restore", "insert")


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    for length in talk.plan.options["lengths"]:
        _one_message(talk, length, f"{number} {length}")
        _many_messages(talk, length, f"{number} {length}")


def _one_message(talk: Talk, length: int, seed: str) -> None:
    text = words.text(length, f"one {seed}")
    with talk.case(f"{length:,}, one message, cold"):
        _ask(talk, [[_user(text)]])
    with talk.part(f"{length:,}, exact"):
        _ask(talk, [[_user(text)]] * NUM_HOT)
    kept = text.split()[: max(0, length - NEAREST_LEN)]
    endings = [words.text(min(length, NEAREST_LEN), f"nearest {seed} {i}") for i in range(NUM_HOT)]
    with talk.part(f"{length:,}, nearest"):
        _ask(talk, [[_user(" ".join([*kept, ending]))] for ending in endings])


def _many_messages(talk: Talk, length: int, seed: str) -> None:
    """About as long in all."""
    each = max(1, length // NUM_MESSAGES - MARKUP_LEN)
    messages = [
        {"role": _role(i), "content": words.text(each, f"{i} {seed}")} for i in range(NUM_MESSAGES)
    ]
    with talk.case(f"{length:,}, {NUM_MESSAGES} messages, cold"):
        _ask(talk, [messages])


def _role(place: int) -> str:
    return "system" if not place else "user" if place % 2 else "assistant"


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _ask(talk: Talk, requests: Sequence[Sequence[Message]]) -> None:
    """One after the other, with what each part took."""
    answers = []
    for messages in requests:
        answers.append(talk.chat(messages))
        talk.side.settle()
    talk.note(step_s=median([_step_s(answer) for answer in answers]))
    if all(answer.timings_ms for answer in answers):
        for part in PARTS:
            talk.note(**{f"{part}_s": median([a.timings_ms[part] / 1e3 for a in answers])})


def _step_s(answer: Answer) -> float:
    """Of one decode step: the time between tokens, after the first. Over several, as some come
    together."""
    at = answer.at
    return median([(after - before) / GAP_LEN for before, after in zip(at, at[GAP_LEN:])])


# Its table


def table(report: Report) -> Table:
    """`steps` is how many decode steps the first token takes, and the ratio how many times sooner
    it comes from keepwarm; of that, how long lookup, restore and insert took."""
    columns = ("times in ms", "read", "ttft", "spread", "ratio", "step", "steps", "look/rest/ins")
    return report.table(columns, lines(report, _cells))


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    ttft_s, step_s = median(row["ttft_s"]), median(row["notes"]["step_s"])
    yield f"{row['prefilled_tokens'] / row['num_requests']:,.0f}"
    yield f"{ttft_s * 1e3:,.1f}"
    yield spread(row["ttft_s"])
    yield "" if row is ours else f"{ttft_s / median(ours['ttft_s']):.2f}x"
    yield f"{step_s * 1e3:.1f}"
    yield f"{ttft_s / step_s:.1f}"
    parts = [row["notes"].get(f"{part}_s") for part in PARTS]
    yield "/".join(f"{median(found) * 1e3:.1f}" for found in parts if found)
