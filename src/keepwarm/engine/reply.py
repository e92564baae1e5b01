"""The text of a reply while its tokens arrive, with stop texts cut off. Engine thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from keepwarm.prompt.tags import Markup

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
    """Tokens to text. What may turn out to begin a stop text is held back.

    With `markup`, stop texts bind in the content alone, from its first letter on: thoughts and
    calls are full of them, and so are the blank lines in between.
    """

    def __init__(
        self, detokenizer: Any, stop: Sequence[str] = (), markup: Markup | None = None
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._table = markup.table if markup is not None and stop else {}
        self._state: str | None = markup.state if markup is not None else "normal"
        self._is_before_content = markup is not None
        self._held = ""
        self.text = ""  # all that was given out
        self.stop_text: str | None = None  # the one that was found; it and the rest are cut off

    def push(self, token: int) -> str:
        """The text that is certain with this token. Mutates."""
        return self._give(self._segment(lambda: self._detokenizer.add_token(token)))

    @property
    def is_stopped(self) -> bool:
        return self.stop_text is not None

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
        given = ""
        while self._stop:
            given += self._passed_blanks()
            tags = self._table.get(self._state or "", [])
            stops = self._stop if self._binds else ()
            stop = _first(self._held, stops)
            tag = _first(self._held, [tag for tag, _ in tags])
            if stop is not None and (tag is None or stop[0] <= tag[0]):
                self.stop_text = stop[1]
                given, self._held = given + self._held[: stop[0]], ""
                break
            if tag is None:
                wanted = [*stops, *(tag for tag, _ in tags)]
                keep = max((_overlap(self._held, text) for text in wanted), default=0)
                cut = len(self._held) - keep
                given, self._held = given + self._held[:cut], self._held[cut:]
                break
            cut = tag[0] + len(tag[1])
            given, self._held = given + self._held[:cut], self._held[cut:]
            self._state = dict(tags)[tag[1]]
            self._is_before_content = True
        else:
            given, self._held = self._held, ""
        self.text += given
        return given

    @property
    def _binds(self) -> bool:
        return self._state == "normal" and not self._is_before_content

    def _passed_blanks(self) -> str:
        """The blanks before the content; stop texts bind behind them. Mutates."""
        if self._state != "normal" or not self._is_before_content:
            return ""
        rest = self._held.lstrip()
        blanks = self._held[: len(self._held) - len(rest)]
        self._held = rest
        self._is_before_content = not rest
        return blanks


def _first(text: str, wanted: Sequence[str]) -> tuple[int, str] | None:
    """(place, text) of what comes first of `wanted`, the longer of two at one place."""
    found = [(at, -len(part), part) for part in wanted if (at := text.find(part)) >= 0]
    return (min(found)[0], min(found)[2]) if found else None


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
