"""A reply taken apart while it streams. No mlx; any thread, a Splitter one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.echo import Echo, trimmed
from keepwarm.prompt.reply import Called, Piece, Reply, Said, Thought, ToolCall
from keepwarm.prompt.scan import scanner_of
from keepwarm.prompt.template import Tokenizer
from keepwarm.prompt.trim import FORMS, Trimmer, joined

__all__ = ["Called", "Piece", "Said", "Splitter", "Thought", "ToolCall"]


class Splitter:
    """One reply as it comes in. `Reply.of` all its pieces is what `parse_reply` gives for the whole
    text, however it was cut, with one exception: `parse_reply` sees the end before it decides on
    the line breaks around the parts. A stream takes the form in which the template writes most
    replies again; the two differ where the template writes this reply again in another form only,
    and the stream has passed the place where that one begins to differ.

    Held back are the beginning of what may be a tag, a call until its end, and line breaks that
    are the template's if nothing, or a call, follows them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt: Prompt | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`prompt` is what the reply continues. The first reply of a template costs some small
        renderings, to learn its form."""
        self._scanner = scanner_of(tokenizer, prompt, tools)
        self._echo = Echo(tokenizer, tools, template_kwargs)
        self._form = self._echo.usual_form(self._scanner)
        self._trimmer = Trimmer(self._form, self._scanner)
        # The reply so far: as it came, cut at its tags, and as it was given out.
        self._texts: list[str] = []
        self._scanned: list[Piece] = []
        self._shown: list[Piece] = []

    def call_text(self, start: int) -> str | None:
        """As `Scanner.call_text`."""
        return self._scanner.call_text(start)

    @property
    def closed_call(self) -> str:
        """The text of the call that was closed last, without its tags."""
        return self._scanner.closed_call

    def push(self, text: str) -> list[Piece]:
        """What is certain now that `text` follows. Mutates."""
        self._texts.append(text)
        return self._show(self._scanner.push(text))

    def end(self, finish_reason: str = "stop") -> list[Piece]:
        """What is left, once, when nothing follows. A call without its end tag is tried too, and
        left out where the limit ("length") cut it off."""
        pieces = self._show(self._scanner.end(finish_reason))
        said_len = len(Reply.of(self._shown).content)
        pieces += [piece for piece in self._trimmer.end() if not isinstance(piece, Said)]
        rest = self._picked().content[said_len:]
        return [*pieces, Said(rest)] if rest else pieces

    def _show(self, scanned: list[Piece]) -> list[Piece]:
        self._scanned += scanned
        shown = self._trimmer.push(scanned)
        self._shown += shown
        return shown

    def _picked(self) -> Reply:
        """The whole, in the form the template writes again of those that are still open: only
        line breaks at the end of the content are."""
        scanned = joined(self._scanned)  # once: there is a piece for every token
        usual, *others = (trimmed(form, self._scanner, scanned) for form in (self._form, *FORMS))
        said = Reply.of(self._shown).content
        is_open = [
            way.reasoning == usual.reasoning and way.content.startswith(said) for way in others
        ]
        return self._echo.pick("".join(self._texts), [usual, *itertools.compress(others, is_open)])
