"""Long text that begins as one that was encoded before: only its end is encoded.

A document with another question behind it is one block, and none that is known. What was encoded is
found again by digests of its beginnings; then a window before the place where the texts may part is
encoded together with all behind it. Where the tokens of the window are those that are known, up to
the edge of a word, the known ones stand for all before.

    known   a b c d e f g h|i j         h: the last piece that both have
    text    a b c d e f g h|x y z
                  ^-----^--------       encoded anew: the window, which ends at the edge of a word,
                                        and what is behind it
Plain data, no mlx; any thread.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from tokenizers import Regex, pre_tokenizers

from keepwarm.prompt.blocks import Offsets

PIECE_CHARS = 4096
# Tokens between the edge that is taken and the place where the texts may part; tokens that have to
# be the same before it; and how many of those before them may be others, since a word was cut.
MARGIN = 48
WINDOW = 64
RUN_UP = 32
MAX_BEGINNINGS = 1 << 16


class Beginnings:
    """Which known block has a beginning, those used last."""

    def __init__(self, max_entries: int = MAX_BEGINNINGS) -> None:
        self._max_entries = max_entries
        self._known: OrderedDict[Hashable, Hashable] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, about: Hashable, text: str, block: Hashable) -> None:
        """All beginnings of `text`, of which `block` is the key. Mutates."""
        if len(text) < PIECE_CHARS:
            return
        with self._lock:
            for sign in _signs(text):
                self._known[about, sign] = block
                self._known.move_to_end((about, sign))
            while len(self._known) > self._max_entries:
                self._known.popitem(last=False)

    def longest(self, about: Hashable, text: str) -> tuple[Hashable, int] | None:
        """The key of a block that begins with as many pieces of `text` as any, and how many
        characters these have."""
        signs = list(_signs(text))
        with self._lock:
            for i in range(len(signs), 0, -1):
                block = self._known.get((about, signs[i - 1]))
                if block is not None:
                    return block, i * PIECE_CHARS
        return None


def _signs(text: str) -> Iterator[bytes]:
    """One for each number of whole pieces at the beginning."""
    so_far = hashlib.blake2b(digest_size=16)
    for end in range(PIECE_CHARS, len(text) + 1, PIECE_CHARS):
        so_far.update(text[end - PIECE_CHARS : end].encode("utf-8", "surrogatepass"))
        yield so_far.digest()


def continued(callee: Any, text: str, known: Offsets, shared_chars: int) -> Offsets | None:
    """`text` as the tokenizer encodes it, where `known` is another one with the same
    `shared_chars`. None where that cannot be told without encoding all of it."""
    last = int(np.searchsorted(known.ends, shared_chars, side="right")) - MARGIN
    first = last - WINDOW - 2 * RUN_UP
    if first <= 0:
        return None
    char = int(known.starts[first])
    end, words = Offsets.with_words(callee, text[char:])
    end = end.moved(char)
    for at in range(last, last - RUN_UP, -1):
        found = int(np.searchsorted(end.starts, known.starts[at]))
        if _is_edge(end, words, found) and _are_same(known, at, end, found):
            return Offsets.joined([known.part(0, at, 0), end.part(found, len(end), 0)], [0, 0])
    return None


def _is_edge(tokens: Offsets, words: list[int | None], at: int) -> bool:
    return (
        0 < at < len(tokens)
        and words[at] != words[at - 1]
        and bool(tokens.ends[at - 1] <= tokens.starts[at])
    )


def _are_same(known: Offsets, at: int, tokens: Offsets, found: int) -> bool:
    """The tokens before both places."""
    if found < WINDOW:
        return False
    ours, theirs = slice(at - WINDOW, at), slice(found - WINDOW, found)
    return (
        np.array_equal(known.ids[ours], tokens.ids[theirs])
        and np.array_equal(known.starts[ours], tokens.starts[theirs])
        and known.starts[at] == tokens.starts[found]
    )


# Which tokenizers look at what is near only

# They cut by kinds of characters, and that of GPT-2 by a pattern that stays near.
_NEAR_SIGHTED = {
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation",
    "UnicodeScripts", "Whitespace", "WhitespaceSplit",
}  # fmt: skip
# A character, a kind of them, or the end of a group; and whether it may come any number of times.
_ATOM = re.compile(r"(\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|.)([*+]|\{\d*,\})?", re.DOTALL)


def is_near_sighted(callee: Any) -> bool:
    """Whether a fast tokenizer cuts text into words by what stands around each place, so that what
    is far behind a place changes nothing before it."""
    try:
        described = json.loads(callee.backend_tokenizer.to_str()).get("pre_tokenizer")
    except (AttributeError, TypeError, ValueError):
        return False
    # One that does not cut has a single word, which has no edges.
    return described is not None and all(map(_is_near_sighted, _parts(described)))


def _parts(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if described["type"] != "Sequence":
        yield described
        return
    for part in described["pretokenizers"]:
        yield from _parts(part)


def _is_near_sighted(part: dict[str, Any]) -> bool:
    if part["type"] != "Split":
        return part["type"] in _NEAR_SIGHTED
    pattern = part["pattern"]
    return "String" in pattern or _stays_near(pattern.get("Regex", ""))


def _stays_near(pattern: str) -> bool:
    """Whether no match can go on for as long as text does: what may come any number of times is a
    letter or a blank, not both. Neither groups do, nor does anything look back."""
    if not pattern or "(?<" in pattern or "&&" in pattern:
        return False
    repeated = {atom for atom, how in _ATOM.findall(pattern) if how}
    return not any(atom == ")" or (_has(atom, "a") and _has(atom, " ")) for atom in repeated)


def _has(atom: str, char: str) -> bool:
    """Whether it matches that character. What cannot be read might."""
    try:
        split = pre_tokenizers.Split(Regex(atom), "removed")
    except Exception:  # the library raises no other
        return True
    return not split.pre_tokenize_str(char)
