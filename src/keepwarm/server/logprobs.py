"""Log probabilities in the two forms OpenAI has for them. Plain functions; any thread."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from keepwarm.events import Delta

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


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
