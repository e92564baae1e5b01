"""Conversations that go another way: the fifth of ten questions is edited, the fifth and the last
answer are generated anew. `miss` is what lies between the cached tokens and the most that any cache
could have had, in the worst request; keepwarm's is to be less than `min_span`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from rich.table import Table

from keepwarm.bench import chat, words
from keepwarm.bench.duel import lines
from keepwarm.bench.report import Report, median
from keepwarm.bench.script import Script
from keepwarm.bench.talk import OURS, Exchange, Talk

NUM_TURNS = 10
EDITED = 5  # counted from 1
NUM_MORE = 3  # turns after an edit
SYSTEM_LEN = 300
THOUGHT_LEN = 60
# Tokens of questions and of answers, in turn.
LENGTHS: dict[str, list[tuple[int, int]]] = {
    "even": [(200, 150)],
    "uneven": [(40, 170), (900, 30), (15, 15), (120, 170), (350, 80), (20, 120), (60, 100)],
}

SIDES = chat.SIDES


def play(talk: Talk, number: int) -> None:
    for name, lengths in LENGTHS.items():
        whole = _Conversation(talk, f"{name} {number}", lengths)
        with talk.case(name):
            whole.go_on(NUM_TURNS)
        with talk.part(f"{name}, edit {EDITED}"):
            whole.upto(EDITED - 1, "edited").go_on(1 + NUM_MORE)
        with talk.part(f"{name}, again {EDITED}"):
            whole.upto(EDITED - 1).go_on(1)
        with talk.part(f"{name}, again {NUM_TURNS}"):
            whole.upto(NUM_TURNS - 1).go_on(1)


class _Conversation:
    """Turns of known lengths, and what another one with its beginning would say."""

    def __init__(self, talk: Talk, seed: str, lengths: Sequence[tuple[int, int]]) -> None:
        self._talk = talk
        self._seed = seed
        self._lengths = lengths
        self._wording = seed
        system = words.text(SYSTEM_LEN, f"system {seed}")
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def upto(self, num_turns: int, wording: str = "") -> _Conversation:
        """One with the same turns up to there; what it asks then is the same, or not."""
        found = copy(self)
        found._messages = self._messages[: 1 + 2 * num_turns]
        found._wording = f"{self._seed}{wording}"
        return found

    def go_on(self, num_turns: int) -> None:
        """Mutates."""
        for _ in range(num_turns):
            turn = len(self._messages) // 2
            user_len, answer_len = self._lengths[turn % len(self._lengths)]
            self._talk.play(Script(thought_len=THOUGHT_LEN, answer_len=answer_len))
            question = words.text(user_len, f"user {self._wording} {turn}")
            self._messages.append({"role": "user", "content": question})
            self._messages.append(self._talk.chat(self._messages).message())
            self._talk.side.settle()  # the user reads the answer, and thinks
        self._talk.note(miss_tokens=max(_miss(exchange) for exchange in self._talk.exchanges))


def _miss(exchange: Exchange) -> int:
    """Idle prefill may have read more than was ever asked for."""
    return max(0, exchange.max_cached_tokens - exchange.answer.cached_tokens)


def table(report: Report) -> Table:
    """`bound` is the most that any cache could have had, in all requests of a line together."""
    columns = ("system", "tokens", "cached", "bound", "miss", "read", "ttft ms", "ratio")
    return report.table(columns, lines(report, _cells))


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    ttft_s = median(row["ttft_s"])
    yield f"{row['prompt_tokens']:,}"
    yield f"{row['cached_tokens']:,}"
    yield f"{row['max_cached_tokens']:,}"
    yield f"{row['miss_tokens']:,}"
    yield f"{row['prefilled_tokens']:,}"
    yield f"{ttft_s * 1e3:,.0f}"
    yield "" if row["system"] == OURS.name else f"{ttft_s / median(ours['ttft_s']):.2f}x"
