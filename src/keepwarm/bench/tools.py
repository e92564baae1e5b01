"""A tool loop, with the three ways in which clients and templates treat the thoughts in it: sent
back, left out, and left out with no empty block in their place. Then the user asks something else,
and most templates strip what thoughts there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from keepwarm.bench import chat, words
from keepwarm.bench.script import Script, tool
from keepwarm.bench.talk import Talk

NUM_STEPS = 10
SYSTEM_LEN = 1000
USER_LEN = 100
RESULT_LEN = 300
CALL = Script(thought_len=100, is_call=True)
ANSWER = Script(thought_len=100, answer_len=100)

SIDES = chat.SIDES


@dataclass(frozen=True, slots=True)
class Style:
    """What becomes of a thought on its way back."""

    name: str
    with_thought: bool
    template_args: dict[str, Any] = field(default_factory=dict)


STYLES = (
    Style("echoed", with_thought=True),
    Style("not echoed", with_thought=False),
    Style("omitted", with_thought=False, template_args={"omit_empty_thoughts": True}),
)


def play(talk: Talk, number: int) -> None:
    for style in STYLES:
        loop = _Loop(talk, style, number)
        with talk.case(style.name):
            loop.work()
        with talk.part(f"{style.name}, next turn"):
            loop.ask(f"next {number}")


class _Loop:
    """One conversation."""

    def __init__(self, talk: Talk, style: Style, number: int) -> None:
        self._talk = talk
        self._style = style
        self._number = number
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": words.text(SYSTEM_LEN, f"system {number}")}
        ]

    def work(self) -> None:
        """A question, calls and their results, and the answer."""
        self._add_user(f"user {self._number}")
        self._talk.play(CALL)
        for step in range(NUM_STEPS):
            self._request()
            [call] = self._messages[-1]["tool_calls"]
            result = words.text(RESULT_LEN, f"result {self._number} {step}")
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        self._talk.play(ANSWER)
        self._request()

    def ask(self, seed: str) -> None:
        """The first question after that."""
        self._add_user(seed)
        self._request()

    def _add_user(self, seed: str) -> None:
        self._messages.append({"role": "user", "content": words.text(USER_LEN, seed)})

    def _request(self) -> None:
        answer = self._talk.chat(self._messages, [tool()], **self._style.template_args)
        self._messages.append(answer.message(with_thought=self._style.with_thought))
        self._talk.side.settle()  # the tool runs, or the user reads
