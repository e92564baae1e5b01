"""A tool call while it is written, where models write calls as JSON between tags: first its name,
then its arguments letter by letter, as clients get them. No mlx; any thread, a Dictation one at a
time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from uuid import uuid4

# mlx-lm's parser of {"name": ..., "arguments": {...}} between two tags.
JSON_PARSER = "mlx_lm.tool_parsers.json_tools"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
# A head that is longer has no tool's name in it.
_MOST_HEAD = 400


@dataclass(frozen=True, slots=True)
class Calling:
    """A call has begun; its arguments follow."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Written:
    """More of the JSON text of the arguments."""

    text: str


class Dictation:
    """The text of one call as it comes. Says nothing of a text that does not begin as a call of a
    known tool does: that may be words about calls."""

    def __init__(self, names: Collection[str]) -> None:
        self.id = uuid4().hex[:9]
        self.has_begun = False  # the client was told of it
        self._is_over = False  # all arguments were told
        self._names = names
        self._head: str | None = ""  # None once the name is known, or cannot be
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def push(self, text: str) -> Iterator[Calling | Written]:
        """Mutates."""
        if self._head is not None:
            self._head += text
            found = _HEAD.match(self._head)
            if found is None:
                self._head = self._head if len(self._head) < _MOST_HEAD else None
                return
            name, text, self._head = json.loads(found[1]), self._head[found.end() :], None
            if name not in self._names:
                return
            self.has_begun = True
            yield Calling(self.id, name)
        if self.has_begun and not self._is_over and (written := text[: self._end(text)]):
            yield Written(written)

    def _end(self, text: str) -> int:
        """How much of `text` belongs to the arguments. Mutates."""
        for at, letter in enumerate(text):
            if self._is_in_string:
                self._is_in_string = self._is_escaped or letter != '"'
                self._is_escaped = letter == "\\" and not self._is_escaped
            elif letter == '"':
                self._is_in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    self._is_over = True
                    return at + 1
        return len(text)
