"""Short messages leave checkpoints where the next prompt parts from them, on hybrids and windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.bench import words
from keepwarm.bench.client import Message
from tests.bench.near import Near
from tests.prompt.conversations import assistant, system, user


@pytest.fixture(scope="module", params=["qwen3_5-small", "gpt_oss-small"])
def made(request: Any) -> Near:
    return Near(request.param)


@pytest.fixture
def near(made: Near) -> Iterator[Near]:
    made.restart()
    yield made
    made.cache.check()


def said(length: int, what: str) -> str:
    return words.text(length, what)


def test_messages_before_the_files_of_a_coding_client_are_read_once(near: Near) -> None:
    """It shows an example, then files in one message, which change, and asks about them."""
    start: list[Message] = [system(said(250, "system"))]
    for i in range(4):
        start += [user(said(60, f"example {i}")), assistant(said(60, f"answer {i}"))]
    for call in range(2):
        files = [user(said(150, f"files {call}")), assistant("w1 w2")]
        asked = near.ask([*start, *files, user(said(20, f"do {call}"))], max_tokens=2)
    assert asked.most > 700
    assert asked.beyond <= 8


def test_a_document_of_430_tokens_is_read_once_for_two_questions(near: Near) -> None:
    for question in ("first", "second"):
        text = f"{said(430, 'document')}\n\n{said(20, question)}"
        asked = near.ask([system("w1"), user(text)], max_tokens=2)
    assert asked.most > 430
    assert asked.beyond <= 8


@pytest.mark.parametrize("edited", [-1, -3])
def test_one_of_the_last_two_questions_is_edited(near: Near, edited: int) -> None:
    """Its replies came from elsewhere, or were written without their thoughts."""
    messages: list[Message] = [system(said(30, "system"))]
    for turn in range(3):
        messages += [user(said(50, f"user {turn}")), assistant(said(200, f"reply {turn}"))]
    messages.append(user(said(50, "last")))
    near.ask(messages, max_tokens=2)
    place = len(messages) + edited
    asked = near.ask([*messages[:place], user(said(40, "edited"))], max_tokens=2)
    assert asked.most > 500
    assert asked.beyond <= 8


def test_the_next_turn_begins_with_what_is_written_before_every_reply(made: Near) -> None:
    """Its thought is stripped; the header before that stays, and is not read again."""
    made.restart()
    messages: list[Message] = [system(said(30, "system")), user(said(50, "user"))]
    first = made.ask(messages)
    answer = {"role": "assistant", "content": first.message["content"]}
    asked = made.ask([*messages, answer, user("w1")])
    assert asked.cached_len == asked.most
