"""Harmony, the format of gpt-oss: every part of a reply has a header that says which channel it goes
to, and to whom. No mlx; any thread, a scanner one at a time.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

from keepwarm.prompt.reply import Called, Piece, Said, ToolCall
from keepwarm.prompt.tags import Markup, Scanner, new_call_id
from keepwarm.prompt.template import Tokenizer

CHANNEL, MESSAGE, END, CALL = "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
START, CONSTRAIN = "<|start|>", "<|constrain|>"
THOUGHT = f"{CHANNEL}analysis{MESSAGE}"  # what opens one
# In front of the names of the client's tools; the model's own (python, browser) have none.
FUNCTIONS = "functions."

_ENDS: list[tuple[str, str | None]] = [
    (tag, "header") for tag in (END, CALL, "<|return|>", START, CHANNEL)
]
# A call's header has further words between channel and message.
MARKUP = Markup(
    {
        "header": [
            (THOUGHT, "reasoning"),
            (f"{CHANNEL}commentary{MESSAGE}", "normal"),
            (f"{CHANNEL}final{MESSAGE}", "normal"),
            (MESSAGE, "tool"),
        ],
        "reasoning": _ENDS,
        "normal": _ENDS,
        "tool": _ENDS,
    },
    "header",
)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


def is_harmony(tokenizer: Tokenizer) -> bool:
    """Whether the chat template of `tokenizer` writes Harmony."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and THOUGHT in template


class HarmonyScanner(Scanner):
    """Analysis is thought, what is final or commentary is said, what has a recipient is a call."""

    is_verbatim = True

    def __init__(self, tokenizer: Tokenizer, markup: Markup, tools: Any) -> None:
        super().__init__(tokenizer, markup, tools)
        self._header = ""
        self._has_parts = self._has_said = False
        self._name = ""  # of the tool that is being called
        self._can_call: bool = getattr(tokenizer, "can_call", True)

    def end(self, finish_reason: str = "stop") -> list[Piece]:
        pieces = super().end(finish_reason)
        header, self._header = self._header, ""
        if header and not self._has_parts and CHANNEL not in header:
            pieces.append(Said(header))  # no Harmony at all
        return pieces

    def _passed(self, text: str) -> Iterator[Piece]:
        if self._state == "header":
            self._header += text
        yield from super()._passed(text)

    def _cross(self, place: int, tag: str, following: str | None) -> Iterator[Piece]:
        if self._state == "header":
            header = self._header + self._unread[:place] + tag
            following = self._following(header)
            if following == "normal" and self._has_said:
                yield Said("\n\n")
            self._has_said = self._has_said or following == "normal"
        yield from super()._cross(place, tag, following)
        self._header = CHANNEL if tag == CHANNEL else ""

    def _following(self, header: str) -> str:
        """The state behind a whole header. Mutates."""
        self._has_parts = True
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] not in ("user", "assistant"):
            self._name = recipient[1].removeprefix(FUNCTIONS)
            return "tool"
        channel = _CHANNEL_NAME.search(header)
        return "reasoning" if channel is not None and channel[1] == "analysis" else "normal"

    def _close_call(self, end_tag: str) -> Generator[Piece, None, bool]:
        text = "".join(self._call)
        self._call, self._call_tag = [], ""
        if not self._can_call or not _is_object(text):
            start = self._call_start + len(MESSAGE)
            self.spans.append(("normal", start, start + len(text)))
            yield Said(text)
            return False
        yield Called(self._num_calls, ToolCall(new_call_id(), self._name, text.strip()))
        self._num_calls += 1
        return True


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
