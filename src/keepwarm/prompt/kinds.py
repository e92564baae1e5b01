"""Which part of a reply each piece of its text belongs to, as it comes in. No mlx; any thread, a
`Kinds` one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.reply import Called
from keepwarm.prompt.scan import markup_of, scanner_of
from keepwarm.prompt.template import Tokenizer

Told = tuple["Kind", str]


class Kind(StrEnum):
    """What a piece of a reply is."""

    CONTENT = "content"  # words for the user
    THOUGHT = "thought"
    CALL = "call"  # of a tool, with its tags
    MARKUP = "markup"  # tags around the others


_KINDS = {"normal": Kind.CONTENT, "reasoning": Kind.THOUGHT}


class Kinds:
    """One reply: the texts it gives make the whole reply again, tags and all. Held back are the
    beginning of what may be a tag, and a call until its end."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Prompt, tools: Sequence[Mapping[str, Any]] | None
    ) -> None:
        self._scanner = scanner_of(tokenizer, prompt, tools)
        edges = [edge for edges in markup_of(tokenizer, prompt).table.values() for edge in edges]
        self._call_tags = [tag for tag, following in edges if following == "tool"]
        self._num_spans = 0  # that were given out
        self._text = ""  # not given out yet
        self._start = 0  # where that begins in the reply

    def push(self, text: str) -> list[Told]:
        """What is certain now that `text` follows. Mutates."""
        self._text += text
        pieces = self._scanner.push(text)
        has_called = any(isinstance(piece, Called) for piece in pieces)
        return list(self._given(self._scanner.decided_len, has_called=has_called))

    def end(self, finish_reason: str) -> list[Told]:
        """What is left when nothing follows. A call that was cut off ("length") is one. Mutates."""
        decided = self._scanner.decided_len
        pieces = self._scanner.end(finish_reason)
        has_called = any(isinstance(piece, Called) for piece in pieces)
        rest = self._text[decided - self._start :]
        if finish_reason == "length" and rest.startswith(tuple(self._call_tags)):
            self._num_spans = len(self._scanner.spans)
        return list(self._given(self._start + len(self._text), has_called=has_called))

    def _given(self, end: int, *, has_called: bool) -> Iterator[Told]:
        """The text up to `end`, cut where its parts begin."""
        spans = self._scanner.spans[self._num_spans :]
        self._num_spans += len(spans)
        for state, first, last in spans:
            yield from self._between(first, has_called=has_called)
            if last > self._start:
                yield _KINDS[state], self._take(last)
        yield from self._between(end, has_called=has_called)

    def _between(self, end: int, *, has_called: bool) -> Iterator[Told]:
        """What is none of content and thought: tags, and behind one that begins it a call."""
        text = self._text[: max(0, end - self._start)]
        starts = [at for tag in self._call_tags if (at := text.find(tag)) >= 0]
        if not self._call_tags and has_called:  # a header says whether a call follows
            starts = [0]
        call = min(starts, default=len(text))
        if call > 0:
            yield Kind.MARKUP, self._take(self._start + call)
        if call < len(text):
            yield Kind.CALL, self._take(end)

    def _take(self, upto: int) -> str:
        taken = self._text[: upto - self._start]
        self._text, self._start = self._text[upto - self._start :], upto
        return taken
