"""A long chat: 40 turns of short messages, thoughts stripped from the history."""

from __future__ import annotations

from typing import Any

from keepwarm.bench import words
from keepwarm.bench.script import Script
from keepwarm.bench.talk import OURS, Talk
from keepwarm.bench.workers import System

NUM_TURNS = 40
SYSTEM_LEN = 100
USER_LEN = 20
REPLY = Script(thought_len=40, answer_len=20)  # 64 tokens with the markup around them


# With idle prefill, as it comes, and without.
SIDES = [
    System(OURS.name, "idle prefill", OURS.env),
    System(OURS.name, "no idle prefill", OURS.env, {"config": {"idle_prefill": "off"}}),
]


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": words.text(SYSTEM_LEN, f"system {number}")}
    ]
    with talk.case(f"{NUM_TURNS} turns"):
        for turn in range(NUM_TURNS):
            text = words.text(USER_LEN, f"user {number} {turn}")
            messages.append({"role": "user", "content": text})
            messages.append(talk.chat(messages).message())
            talk.side.settle()  # the user reads the answer, and thinks
