"""What a person's words mean."""

from __future__ import annotations

import pytest

from keepwarm.cli.chat.loop import Loop
from keepwarm.cli.chat.words import COMMANDS, Command, Say, Unknown, is_open, meant, unquoted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("  \n ", None),
        ("hello there ", Say("hello there")),
        ("what is /help?", Say("what is /help?")),
        ("/usr/bin is a folder", Say("/usr/bin is a folder")),
        ("/ is the root", Say("/ is the root")),
        ("//new is a command", Say("/new is a command")),
        ("/new", Command("new")),
        ("  /NEW  ", Command("new")),
        ("/exit", Command("quit")),
        ("/regenerate", Command("retry")),
        ("/system You are\na cat.", Command("system", "You are\na cat.")),
        ('/system """\nYou are\na cat.\n"""', Command("system", "You are\na cat.")),
        ("/think  off ", Command("think", "off")),
        ("/dance", Unknown("dance")),
        ("/dance with me", Unknown("dance")),
    ],
)
def test_words_are_said_or_obeyed(text: str, expected: object) -> None:
    assert meant(text) == expected


def test_every_command_can_be_obeyed() -> None:
    for name, _, _ in COMMANDS:
        assert callable(getattr(Loop, f"_do_{name}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""', True),
        ('"""one', True),
        ('/system """one', True),
        ('"""one"""', False),
        ('say """ now', False),
        ("one", False),
    ],
)
def test_block_is_open_until_its_second_quotes(text: str, expected: bool) -> None:
    assert is_open(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [('"""one\ntwo"""', "one\ntwo"), ('"""\none\n"""', "one"), ('a """b"""', 'a """b"""')],
)
def test_quotes_around_a_block_are_no_part_of_it(text: str, expected: str) -> None:
    assert unquoted(text) == expected
