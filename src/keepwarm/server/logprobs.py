"""Log probabilities in the two forms OpenAI has for them. Plain functions; any thread."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from keepwarm.events import Delta
from keepwarm.prompt.tags import Scanner

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SortedTokens:
    """The tokens of a chat's reply as they come in, sorted into those of its content and those of
    its thought. Tags, calls and line breaks that are left to the template are neither."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._read_len = 0
        self._undecided: list[tuple[Delta, int, int]] = []  # with start and end in the reply
        self._num_spans = 0  # that no coming token lies in
        self._breaks: list[Delta] = []  # may be left to the template
        self._has_content = False

    def push(self, token: Delta, content: str) -> list[tuple[str, Delta]]:
        """Those that are certain now, each with "normal" or "reasoning". `content` is all that was
        shown until now. Mutates."""
        start, self._read_len = self._read_len, self._read_len + len(token.text)
        self._undecided.append((token, start, self._read_len))
        self._scanner.push(token.text)
        return self._sorted(content, self._scanner.decided_len)

    def end(self, finish_reason: str, content: str) -> list[tuple[str, Delta]]:
        """The rest, once. Mutates."""
        self._scanner.end(finish_reason)
        told = self._sorted(content, self._read_len)
        breaks = self._breaks if content.endswith("\n") else []
        return [*told, *(("normal", token) for token in breaks)]

    def _sorted(self, content: str, decided_len: int) -> list[tuple[str, Delta]]:
        told: list[tuple[str, Delta]] = []
        waiting: list[tuple[Delta, int]] = []  # of half a character each
        for place, (token, start, end) in enumerate(self._undecided):
            if end > decided_len:
                self._undecided = self._undecided[place - len(waiting) :]
                return told
            waiting.append((token, start))
            if start == end:
                continue
            kind = self._kind(start, end)
            for each, _ in waiting:
                told += self._placed(kind, each, content)
            waiting = []
        self._undecided = self._undecided[len(self._undecided) - len(waiting) :]
        return told

    def _kind(self, start: int, end: int) -> str | None:
        spans = self._scanner.spans
        while self._num_spans < len(spans) and spans[self._num_spans][2] <= start:
            self._num_spans += 1
        later = spans[self._num_spans :]
        return next((kind for kind, first, last in later if first < end and last > start), None)

    def _placed(self, kind: str | None, token: Delta, content: str) -> list[tuple[str, Delta]]:
        if kind == "normal" and token.text and not token.text.strip("\n"):
            self._breaks.append(token)
            return []
        if kind != "normal":
            return [] if kind is None else [(kind, token)]
        is_kept = self._has_content or content.startswith("\n")
        breaks, self._breaks = (self._breaks if is_kept else []), []
        self._has_content = True
        return [("normal", each) for each in [*breaks, token]]


def chat_entry(tokenizer: Any, delta: Delta, num_top: int) -> dict[str, Any]:
    """One token of `choices[].logprobs.content`."""
    entry = _entry(tokenizer, delta.token or 0, delta.logprob or 0.0)
    top = delta.top_logprobs[:num_top]
    return {**entry, "top_logprobs": [_entry(tokenizer, *pair) for pair in top]}


def text_entries(tokenizer: Any, deltas: list[Delta], start: int, num_top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `start` characters lie before the first token."""
    texts = [token_text(tokenizer, delta.token or 0) for delta in deltas]
    offsets = []
    for text in texts:
        offsets.append(start)
        start += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [delta.logprob for delta in deltas],
        "top_logprobs": [_top_by_text(tokenizer, delta, num_top) for delta in deltas],
        "text_offset": offsets,
    }


def token_text(tokenizer: Any, token: int) -> str:
    """The text of a token alone. A model may have more tokens than its tokenizer."""
    try:
        return str(tokenizer.decode([token]))
    except (IndexError, KeyError, TypeError, OverflowError):
        return ""


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes of a token: some hold a part of a character only."""
    text = token_text(tokenizer, token)
    if "\ufffd" not in text:
        return text.encode()
    piece = str(tokenizer.convert_ids_to_tokens([token])[0])
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(found[1])
    table = _byte_letters()
    return bytes(table[c] for c in piece) if all(c in table for c in piece) else text.encode()


def _entry(tokenizer: Any, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token),
        "logprob": logprob,
        "bytes": list(token_bytes(tokenizer, token)),
    }


def _top_by_text(tokenizer: Any, delta: Delta, num_top: int) -> dict[str, float]:
    """Two tokens may have one text; the likelier one stays."""
    top: dict[str, float] = {}
    for token, logprob in delta.top_logprobs[:num_top]:
        top.setdefault(token_text(tokenizer, token), logprob)
    return top


@cache
def _byte_letters() -> dict[str, int]:
    """How byte-level vocabularies write bytes: the printable ones as they are, the others as the
    letters from U+0100 on, in order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in plain]
    letters = {chr(value): value for value in plain}
    return letters | {chr(0x100 + i): value for i, value in enumerate(others)}
