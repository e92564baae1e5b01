"""What a person's words mean: something to say, or a command. Plain data; any thread."""

from __future__ import annotations

import re
from dataclasses import dataclass

# /usr/bin is something to talk about.
_COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?", re.DOTALL)
_BLOCK = '"""'

# Name, what it takes, what it does; in the order of /help.
COMMANDS = (
    ("help", "", "show this"),
    ("new", "", "begin a new conversation; the system prompt stays"),
    ("retry", "", "answer the last question again"),
    ("edit", "TEXT", "replace the last question by TEXT"),
    ("undo", "", "remove the last question and its answer"),
    ("system", "[TEXT]", "set the system prompt and begin anew; without TEXT, show it"),
    ("think", "on|off", "let the model think before it answers, or not"),
    ("stats", "", "show what the cache did and holds"),
    ("save", "FILE", "write the conversation to FILE, as JSON"),
    ("quit", "", "leave; so do Ctrl-D and Ctrl-C twice"),
)
_ALIASES = {"exit": "quit", "bye": "quit", "q": "quit", "regenerate": "retry", "clear": "new"}
_NAMES = frozenset(name for name, _, _ in COMMANDS)


@dataclass(frozen=True, slots=True)
class Say:
    """A message to the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One of `COMMANDS`, with what stands behind it."""

    name: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What looks like a command and is none."""

    name: str


def meant(text: str) -> Say | Command | Unknown | None:
    """What `text` asks for; None where it is empty. A second slash makes words of a command."""
    text = text.strip()
    if not text:
        return None
    if text.startswith("//"):
        return Say(text[1:])
    found = _COMMAND.fullmatch(text)
    if found is None:
        return Say(text)
    name = _ALIASES.get(found[1].lower(), found[1].lower())
    if name not in _NAMES:
        return Unknown(found[1])
    return Command(name, unquoted(found[2] or ""))


def is_open(text: str) -> bool:
    """Whether `text` began a block of lines between three quotes and did not end it."""
    return text.count(_BLOCK) % 2 == 1 and _opens(text)


def unquoted(text: str) -> str:
    """`text` without the quotes around a block."""
    text = text.strip()
    if len(text) >= 2 * len(_BLOCK) and text.startswith(_BLOCK) and text.endswith(_BLOCK):
        return text[len(_BLOCK) : -len(_BLOCK)].strip("\n")
    return text


def _opens(text: str) -> bool:
    """A block is all that is said, or what stands behind a command."""
    found = _COMMAND.fullmatch(text.strip())
    said = (found[2] or "") if found is not None else text.strip()
    return said.startswith(_BLOCK)
