"""Each piece of a reply with what it is; together they are the reply, tags and all."""

from __future__ import annotations

import json

import pytest

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.kinds import Kind, Kinds
from tests.server.serving import tokenizer

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
REPLY = f"<think>\nWhere? <b>\n</think>\n\nLet me see.\n{CALL}"
WANTED = [
    (Kind.MARKUP, "<think>"),
    (Kind.THOUGHT, "\nWhere? <b>\n"),
    (Kind.MARKUP, "</think>"),
    (Kind.CONTENT, "\n\nLet me see.\n"),
    (Kind.CALL, CALL),
]


def told(text: str, width: int, finish_reason: str = "stop") -> list[tuple[Kind, str]]:
    """What is told of a reply that comes in pieces, those of one kind joined."""
    kinds = Kinds(tokenizer(), Prompt([1]), None)
    pieces = [
        piece for at in range(0, len(text), width) for piece in kinds.push(text[at : at + width])
    ]
    joined: list[tuple[Kind, str]] = []
    for kind, piece in [*pieces, *kinds.end(finish_reason)]:
        if joined and joined[-1][0] is kind:
            joined[-1] = (kind, joined[-1][1] + piece)
        else:
            joined.append((kind, piece))
    return joined


@pytest.mark.parametrize("width", [1, 2, 5, 11, 1000])
def test_parts_are_told_apart_however_the_reply_is_cut(width: int) -> None:
    assert told(REPLY, width) == WANTED
    assert json.loads(CALL.split("\n")[1])["name"] == "get_weather"


@pytest.mark.parametrize("width", [1, 7])
def test_what_only_looks_like_a_call_is_content(width: int) -> None:
    text = "I would write <tool_call>, then </tool_call>."
    assert told(text, width) == [(Kind.CONTENT, text)]


def test_a_call_that_was_cut_off_is_a_call() -> None:
    cut = CALL[:30]
    assert told("Well." + cut, 3, "length") == [(Kind.CONTENT, "Well."), (Kind.CALL, cut)]


def test_half_a_tag_at_the_end_is_what_it_stands_in() -> None:
    assert told("a <thi", 1) == [(Kind.CONTENT, "a <thi")]
