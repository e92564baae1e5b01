"""The text of a reply while its tokens arrive, with stop texts cut off. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("keepwarm.engine")


def behind_text(tokenizer: Any) -> Any:
    """A detokenizer for a reply that goes on with a text. At the beginning of a text it drops a
    space, since many tokenizers write one there that nobody typed."""
    detokenizer = tokenizer.detokenizer
    for token in tokenizer.encode("a", add_special_tokens=False):
        detokenizer.add_token(token)
    _ = detokenizer.last_segment  # told: what follows comes without it
    return detokenizer


class ReplyText:
    """Tokens to text. What may turn out to begin a stop text is held back."""

    def __init__(self, detokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._held = ""
        self.text = ""  # all that was given out
        self.is_stopped = False  # a stop text was found; it and what follows are cut off

    def push(self, token: int) -> str:
        """The text that is certain with this token. Mutates."""
        return self._give(self._segment(lambda: self._detokenizer.add_token(token)))

    def end(self) -> str:
        """What was held back, at the end of the reply. Mutates."""
        if self.is_stopped:
            return ""
        given = self._give(self._segment(self._detokenizer.finalize))
        if not self.is_stopped:
            rest, self._held = self._held, ""
            self.text += rest
            given += rest
        return given

    def _segment(self, act: Callable[[], None]) -> str:
        try:
            act()
            return str(self._detokenizer.last_segment)
        except Exception as error:
            # A model may have more tokens than its tokenizer; that is no reason to stop.
            log.debug("a token has no text: %r", error)
            return ""

    def _give(self, piece: str) -> str:
        self._held += piece
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            given, self._held = self._held[: min(found)], ""
        else:
            keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
            cut = len(self._held) - keep
            given, self._held = self._held[:cut], self._held[cut:]
        self.text += given
        return given


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
