"""Reads what a person types: line editing, history, pasted text and blocks between three quotes.
Main thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from keepwarm.cli.chat.words import is_open, unquoted

PROMPT = "you> "
_PROMPT_WITHIN = "...> "
_HISTORY_LEN = 1000

ReadLine = Callable[[str], str]


def read_message(read_line: ReadLine = input) -> str:
    """What is typed up to the end of the line or block, or pasted. Raises EOFError and
    KeyboardInterrupt, as `input` does."""
    text = read_line(PROMPT)
    while is_open(text):
        try:
            text += "\n" + read_line(_PROMPT_WITHIN)
        except EOFError:  # as good as the quotes
            text += '"""'
    return unquoted(text)


@contextmanager
def line_editing() -> Iterator[None]:
    """Arrow keys, and a history that outlives the process; without them where Python has no
    readline. Pasted lines stay together where the library knows how (GNU readline from 8.1)."""
    try:
        import readline
    except ImportError:
        yield
        return
    with suppress(Exception):  # libedit has other words for it
        readline.parse_and_bind("set enable-bracketed-paste on")
    file = _history_file()
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LEN)
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # before anything is in it
            readline.write_history_file(file)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "keepwarm" / "chat_history"
