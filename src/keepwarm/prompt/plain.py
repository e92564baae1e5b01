"""Plain text to tokens, for completions. No mlx; any thread."""

from __future__ import annotations

import numpy as np

from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from keepwarm.prompt.bounds import UNBOUND, Bounds
from keepwarm.prompt.encode import check_unicode, encode, encodes_in_order
from keepwarm.prompt.template import Tokenizer

# A question about a text, and a text worth keeping for the next one: about 500 tokens each.
_MAX_LAST_CHARS = 2000
_MIN_TEXT_CHARS = 1500


def render_text(
    tokenizer: Tokenizer, text: str, *, namespace: str = "", bounds: Bounds = UNBOUND
) -> Prompt:
    """A plain completion: `text` as the tokenizer encodes it, without boundaries but for its last
    paragraph. A beginning token already written out is not added again. Those of one `namespace`
    share what was encoded before. Raises BadInput where no token is left, TooLong and Abandoned
    where `bounds` say so."""
    check_unicode(text)
    bounds.check_len(tokenizer, text)
    bos: str | None = getattr(tokenizer, "bos_token", None)
    has_bos = bos is not None and text.startswith(bos)
    around = ([], []) if has_bos else _added_around(tokenizer)
    if around is None or not encodes_in_order(tokenizer):
        return _encoded_whole(tokenizer, text, adds_special=not has_bos)
    before, behind = (np.array(ids, dtype=np.int32) for ids in around)
    encoded = encode(tokenizer, text, namespace)
    char = last_paragraph(text)
    position = encoded.position(char) if char else None
    marks = [Boundary(len(before) + position, BoundaryKind.PARAGRAPH)] if position else []
    return Prompt(np.concatenate([before, encoded.ids, behind]), marks)


def _added_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """The tokens that a tokenizer puts before and behind a text, such as one for its beginning.
    None where that cannot be seen."""
    plain, whole = (
        list(tokenizer.encode("a", add_special_tokens=is_whole)) for is_whole in (False, True)
    )
    places = range(len(whole) - len(plain) + 1) if plain else ()
    found = [at for at in places if whole[at : at + len(plain)] == plain]
    return (whole[: found[0]], whole[found[0] + len(plain) :]) if len(found) == 1 else None


def _encoded_whole(tokenizer: Tokenizer, text: str, *, adds_special: bool) -> Prompt:
    ids = tokenizer.encode(text, add_special_tokens=adds_special)
    char = last_paragraph(text)
    last = tokenizer.encode(text[char:], add_special_tokens=False) if char else []
    is_cut_there = 0 < len(last) < len(ids) and list(ids[-len(last) :]) == list(last)
    marks = [Boundary(len(ids) - len(last), BoundaryKind.PARAGRAPH)] if is_cut_there else []
    return Prompt(ids, marks)


def last_paragraph(text: str, start: int = 0, end: int | None = None) -> int:
    """Where the last paragraph of `text[start:end]` begins in `text`, if it is short and much stands
    before it; else 0."""
    end = len(text) if end is None else end
    first = max(start, end - _MAX_LAST_CHARS)
    words_end = first + len(text[first:end].rstrip())
    blank = text.rfind("\n\n", first, words_end)
    return blank + 2 if blank - start >= _MIN_TEXT_CHARS else 0
