"""A long text before the last words of a message is an end of its own: there may be more to ask."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.prompt.boundaries import BoundaryKind, Prompt
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import TOOLS, assistant, common_len, system, tool, user
from tests.prompt.tokenizers_for_tests import make_tokenizer, own

DOCUMENT = "\n\n".join(f"Paragraph {i}. " + "It goes on and on. " * 9 for i in range(12))
NAMES = ("drops_thoughts", "keeps_thoughts", "plain")


def paragraph_of(prompt: Prompt) -> int | None:
    found = [b.position for b in prompt.boundaries if b.kind is BoundaryKind.PARAGRAPH]
    assert len(found) <= 1
    return found[0] if found else None


def asked(name: str, question: str, *before: dict[str, Any]) -> Prompt:
    return render_chat(own(name), [*before, user(f"{DOCUMENT}\n\n{question}")])


@pytest.mark.parametrize("name", NAMES)
def test_text_before_a_question_ends_where_another_question_parts(name: str) -> None:
    for before in ([], [system(), user("Hi"), assistant("Hello.")]):
        one, other = (asked(name, text, *before) for text in ("Who wrote it?", "Is it long?"))
        place = paragraph_of(one)
        assert place is not None
        assert place == paragraph_of(other) == common_len(one, other)


def test_no_paragraph_where_little_stands_before_it_or_much_behind() -> None:
    name = "drops_thoughts"
    for text in (
        "Hello.\n\nWho wrote it?",
        DOCUMENT.replace("\n\n", "\n"),
        f"Who wrote it?\n\n{DOCUMENT}".replace(". \n\n", ".\n"),
        DOCUMENT.replace("\n\n", "\n") + "\n\n",
    ):
        assert paragraph_of(render_chat(own(name), [user(text)])) is None


def test_only_of_what_a_user_said_last() -> None:
    long = f"{DOCUMENT}\n\nWho wrote it?"
    for messages in (
        [user(long), assistant("Nobody."), user("Sure?")],
        [user("Look."), assistant("Well."), tool(long)],
    ):
        assert paragraph_of(render_chat(own("drops_thoughts"), messages)) is None
    unprompted = render_chat(own("drops_thoughts"), [user(long)], add_generation_prompt=False)
    assert paragraph_of(unprompted) is None


def test_text_to_be_completed_has_its_last_paragraph() -> None:
    tokenizer = make_tokenizer(None)
    one, other = (
        render_text(tokenizer, f"{DOCUMENT}\n\n{text}") for text in ("Who wrote it?", "Is it long?")
    )
    assert paragraph_of(one) == paragraph_of(other) == common_len(one, other)
    assert paragraph_of(render_text(tokenizer, "Hello.\n\nWho?")) is None
    assert one.last_message_end is None


def test_it_is_no_end_of_a_message() -> None:
    prompt = asked("drops_thoughts", "Who wrote it?")
    place = paragraph_of(prompt)
    assert place is not None
    assert prompt.last_message_end is not None
    assert prompt.last_message_end > place
    assert all(end.kind is not BoundaryKind.PARAGRAPH for end in prompt.ends)


@pytest.mark.parametrize("name", NAMES)
def test_tools_and_system_are_no_text_before_a_question(name: str) -> None:
    tools = [
        {**TOOLS[0], "function": {**TOOLS[0]["function"], "name": f"f{i}", "description": DOCUMENT}}
        for i in range(2)
    ]
    for before in ([], [system(DOCUMENT)], [system(DOCUMENT), user("Hi"), assistant(DOCUMENT)]):
        for text in ("Hi there", "Hi there.\n\nWho are you?"):
            assert paragraph_of(render_chat(own(name), [*before, user(text)], tools=tools)) is None


def test_blanks_at_the_end_are_not_encoded_twice() -> None:
    text = f"{DOCUMENT}\n\nWho wrote it?" + " " * 5000
    assert paragraph_of(render_text(make_tokenizer(None), text)) is None
