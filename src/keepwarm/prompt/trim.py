"""Line breaks around the parts of a reply: some are the reply's own, some the template writes
anyway and a client must not send back. No mlx; any thread, a Trimmer one at a time.

    <think>\\nHm.\\n</think>\\n\\nOn it.\\n<tool_call>...
           └ thought ┘        └lead┘    └tail
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from keepwarm.prompt.reply import Called, Piece, Said, Thought
from keepwarm.prompt.tags import Scanner


@dataclass(frozen=True, slots=True)
class Form:
    """Which line breaks are left to the template."""

    trims_thought: bool = True  # on both sides of the reasoning
    trims_lead: bool = True  # before the content, behind a thought
    trims_tail: bool = True  # behind the content, in a reply that calls tools


# What templates expect most comes first.
FORMS = tuple(itertools.starmap(Form, itertools.product((True, False), repeat=3)))


class Trimmer:
    """Takes the line breaks that `form` leaves to the template out of a scanned reply."""

    def __init__(self, form: Form, scanner: Scanner) -> None:
        """Asks `scanner` only what may come; it is not kept."""
        self._form = form
        self._can_drop_lead = form.trims_lead and scanner.can_think
        self._can_drop_tail = form.trims_tail and scanner.can_call
        self._has_thought = scanner.starts_in_thought
        self._has_shown_thought = False
        self._has_called = False
        self._is_inside_thought = False  # behind the first letter of the reasoning
        self._is_inside_content = False
        # Line breaks that belong to the text if more of it follows.
        self._thought_breaks = ""
        self._content_breaks = ""

    def push(self, pieces: Iterable[Piece]) -> list[Piece]:
        """What can be shown of `pieces` now. Mutates."""
        shown: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Thought):
                self._has_thought = True
                shown += self._think(piece.text)
                continue
            shown += self._show_empty_thought()
            if isinstance(piece, Said):
                shown += self._say(piece.text)
            else:
                self._has_called = True
                shown.append(piece)
        return joined(shown)

    def end(self) -> list[Piece]:
        """What is left when nothing follows. Mutates."""
        shown = list(self._show_empty_thought())
        is_dropped = self._drops_lead or (self._form.trims_tail and self._has_called)
        if self._content_breaks and not is_dropped:
            shown.append(Said(self._content_breaks))
        self._thought_breaks = self._content_breaks = ""
        return shown

    def _think(self, text: str) -> Iterator[Piece]:
        if self._form.trims_thought:
            text = self._thought_breaks + text
            text = text if self._is_inside_thought else text.lstrip("\n")
            kept = text.rstrip("\n")
            self._thought_breaks = text[len(kept) :]
            text = kept
        if text:
            self._is_inside_thought = self._has_shown_thought = True
            yield Thought(text)

    def _show_empty_thought(self) -> Iterator[Piece]:
        if self._has_thought and not self._has_shown_thought:
            self._has_shown_thought = True
            yield Thought("")

    def _say(self, text: str) -> Iterator[Piece]:
        text = self._content_breaks + text
        kept = text.rstrip("\n")
        if not kept and not self._is_inside_content:
            can_drop = self._can_drop_lead or self._can_drop_tail
        else:
            can_drop = self._can_drop_tail
        self._content_breaks = text[len(kept) :] if can_drop else ""
        shown = kept if can_drop else text
        if kept:
            shown = shown.lstrip("\n") if self._drops_lead else shown
            self._is_inside_content = True
        if shown:
            yield Said(shown)

    @property
    def _drops_lead(self) -> bool:
        return not self._is_inside_content and self._form.trims_lead and self._has_thought


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """`pieces` with neighbours of one kind made one."""
    made: list[Piece] = []
    for kind, run in itertools.groupby(pieces, type):
        if kind is Called:
            made += run
        else:
            text = "".join(piece.text for piece in run if not isinstance(piece, Called))  # none is
            made.append(Said(text) if kind is Said else Thought(text))
    return made
