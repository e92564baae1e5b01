"""An application whose prompts begin alike: with its tools and its system message, with its tools
only, with one document in the user message, with a text to be completed. One request finds an empty
cache, then come others that begin as it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepwarm.bench import words
from keepwarm.bench.client import Answer, Message
from keepwarm.bench.script import Script, function
from keepwarm.bench.talk import OURS, SAME_KERNELS, Talk

KINDS = ("system", "tools only", "document", "completions")
NUM_USERS = 5
# Of a shape: 2,700 tokens in all, with the punctuation of the tools and the markup around them.
NUM_TOOLS = 8
TOOL_LEN = 190
SYSTEM_LEN = 600
BARE_TOOL_LEN = TOOL_LEN + SYSTEM_LEN // NUM_TOOLS  # where there is no system message
DOCUMENT_LEN = 2700
USER_LEN = 30
REPLY = Script(thought_len=20, answer_len=20)

SIDES = [OURS, SAME_KERNELS]


def play(talk: Talk, number: int) -> None:
    talk.play(REPLY)
    for kind in KINDS:
        _ask_all(talk, number, kind, _asking(kind, number))


def _asking(kind: str, number: int) -> _Asking | _Completing:
    """What all users have in common, of one of KINDS."""
    if kind == "system":
        system = {"role": "system", "content": words.text(SYSTEM_LEN, f"system {number}")}
        return _Asking([system], _tools(TOOL_LEN, number))
    if kind == "tools only":
        return _Asking([], _tools(BARE_TOOL_LEN, number))
    document = words.text(DOCUMENT_LEN, f"document {number}")
    return _Asking(document=document) if kind == "document" else _Completing(document)


def _ask_all(talk: Talk, number: int, name: str, asking: _Asking | _Completing) -> None:
    questions = [words.text(USER_LEN, f"user {number} {i}") for i in range(NUM_USERS + 1)]
    with talk.case(f"{name}, cold"):
        asking(talk, questions[0])
    with talk.part(f"{name}, warm"):
        for question in questions[1:]:
            asking(talk, question)
            talk.side.settle()  # so that the next one finds all there is to find, in every round


class _Asking:
    """What all users of an application have before their own words."""

    def __init__(
        self,
        messages: Sequence[Message] = (),
        tools: Sequence[dict[str, Any]] = (),
        document: str = "",
    ) -> None:
        self._messages = messages
        self._tools = tools
        self._document = document

    def __call__(self, talk: Talk, question: str) -> Answer:
        text = f"{self._document}\n\n{question}" if self._document else question
        return talk.chat([*self._messages, {"role": "user", "content": text}], self._tools)


class _Completing:
    """The same without a template."""

    def __init__(self, document: str) -> None:
        self._document = document

    def __call__(self, talk: Talk, question: str) -> Answer:
        return talk.complete(f"{self._document}\n\n{question}")


def _tools(tool_len: int, number: int) -> list[dict[str, Any]]:
    return [
        function(f"tool_{i}", words.text(tool_len, f"tool {number} {i}"), ["at"])
        for i in range(NUM_TOOLS)
    ]
