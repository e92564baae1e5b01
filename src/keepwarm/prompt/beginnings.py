"""Long text that begins as one that was encoded before: only its end is encoded.

A document with another question behind it is one block, and none that is known. What was encoded is
found again by digests of its beginnings. Then a window before the place where the texts may part is
encoded together with all behind it:

    known   a b c d e f g h|i j         h: the last piece that both have
    text    a b c d e f g h|x y z
                ^-----^----------       encoded anew: from the edge of a word on, over a window to
                                        another edge, up to which the known tokens are taken

A tokenizer cuts text into words from left to right. One that looks at what is near only has the same
words in both texts, up to a little before they part; from the edge of one of them on it goes on as if
the text began there. The tokens of the window have to be the same, besides. Plain data, no mlx; any
thread.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from keepwarm.prompt.blocks import Offsets, Remembered

PIECE_CHARS = 4096
# Tokens between the last edge that is taken and the place where the texts may part; tokens that have
# to be the same before it; and how far before these places an edge is looked for.
MARGIN = 48
WINDOW = 64
MAX_BACK = 1024
MAX_BEGINNINGS = 1 << 16


class Beginnings:
    """Which known block has a beginning, those that came last."""

    def __init__(self, max_entries: int = MAX_BEGINNINGS) -> None:
        self._max_entries = max_entries
        self._known: OrderedDict[Hashable, Hashable] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, about: Hashable, text: str, block: Hashable) -> None:
        """All beginnings of `text`, of which `block` is the key. Mutates."""
        signs = list(_signs(text))
        with self._lock:
            for sign in signs:
                self._known[about, sign] = block
                self._known.move_to_end((about, sign))
            while len(self._known) > self._max_entries:
                self._known.popitem(last=False)

    def longest(self, about: Hashable, text: str, blocks: Remembered) -> tuple[Offsets, int] | None:
        """Of `blocks`, one that begins with as many pieces of `text` as any, and how many
        characters these have."""
        signs = list(_signs(text))
        with self._lock:
            keys = [self._known.get((about, sign)) for sign in signs]
        for i in range(len(keys), 0, -1):
            block = blocks.get(keys[i - 1]) if keys[i - 1] is not None else None
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
    """`text` as a tokenizer that is near-sighted encodes it, where `known` is another one with the
    same `shared_chars`. None where that cannot be told without encoding all of it."""
    last = int(np.searchsorted(known.ends, shared_chars, side="right")) - MARGIN
    at = _edge_before(known, last, text)
    first = _edge_before(known, at - WINDOW, text) if at is not None else None
    if at is None or first is None:
        return None
    char = int(known.starts[first])
    end = Offsets.of(callee, text[char:])
    found = at - first
    window, ours = end.part(0, found + 1), known.part(first, at + 1, char)
    # The edge at its end is one in both. (The first token begins the text here, and has to be one.)
    names = ("ids", "starts", "ends", "is_edge")
    if not all(np.array_equal(getattr(window, name), getattr(ours, name)) for name in names):
        return None
    return Offsets.joined([known.part(0, at), end.part(found, len(end))], [0, char])


def _edge_before(tokens: Offsets, place: int, text: str) -> int | None:
    """The last token before `place` that begins a word where the one before it ends, and that no
    sign reaches back from."""
    lowest = max(1, place - MAX_BACK)
    for at in range(place, lowest, -1):
        if (
            tokens.is_edge[at]
            and tokens.ends[:at].max() == tokens.starts[at]
            and unicodedata.combining(text[int(tokens.starts[at])]) == 0
        ):
            return at
    return None


# Which tokenizers look at what is near only

_PRE_TOKENIZERS = {
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation",
    "Whitespace", "WhitespaceSplit",
}  # fmt: skip
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# What the patterns of the vendors have between their bars. Each matches a run of characters of one
# kind, whatever comes behind it. (Two look for the end of a run first: of blanks, of capitals. Both
# have the whole run in the end, or all but the last blank.)
_NEAR = {
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _SHORT, r"'(?i:[sdmt]|ll|ve|re)",
    r"\p{L}+", r" ?\p{L}+", rf"{_LETTERS}\p{{L}}+", rf"{_LETTERS}[\p{{L}}\p{{M}}]+",
    rf"{_LETTERS}{_UPPER}*{_LOWER}+", rf"{_LETTERS}{_UPPER}+{_LOWER}*",
    rf"{_LETTERS}{_UPPER}*{_LOWER}+{_SHORT}?", rf"{_LETTERS}{_UPPER}+{_LOWER}*{_SHORT}?",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+", "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r" ?\p{N}+", "[0-9][0-9][0-9]", r"\d", r"\d+", r"\d{1,3}",
    r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*",
    r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+",
    r" ?\w+", r"[^\s\w]", r"\.?\n+", r"\s",
}  # fmt: skip
# A text as it stands, without signs that mean something in a pattern.
_PLAIN = re.compile(r"""(?:\\[nrt]|\\\W|[\w\s"',:;<>=/@&%#!~`-])+""")
# One blank at a time does not go with what looks for the end of a run of them.
_ONE_BLANK, _RUN_OF_BLANKS = r"\s", r"\s*["


def is_near_sighted(callee: Any) -> bool:
    """Whether a fast tokenizer cuts text into words by what stands around each place, so that what
    is far behind a place changes nothing before it."""
    try:
        backend = callee.backend_tokenizer
        cutting = json.loads(backend.pre_tokenizer.__getstate__())
        before = json.loads(backend.normalizer.__getstate__()) if backend.normalizer else None
    except (AttributeError, TypeError, ValueError):
        return False  # also where nothing is cut: a single word has no edges
    return all(map(_cuts_near, _parts(cutting, "pretokenizers"))) and all(
        map(_normalizes_near, _parts(before, "normalizers"))
    )


def _parts(described: Any, name: str) -> Iterator[dict[str, Any]]:
    if isinstance(described, dict) and described.get("type") == "Sequence":
        for part in described.get(name, ()):
            yield from _parts(part, name)
    elif described is not None:
        yield described


def _cuts_near(part: dict[str, Any]) -> bool:
    if part.get("type") != "Split":
        return part.get("type") in _PRE_TOKENIZERS
    pattern = part.get("pattern", {})
    return "String" in pattern or stays_near(pattern.get("Regex", ""))


def _normalizes_near(part: dict[str, Any]) -> bool:
    if part.get("type") == "Replace":
        return len(part.get("pattern", {}).get("String", "")) == 1
    return part.get("type") in _NORMALIZERS


def stays_near(pattern: str) -> bool:
    """Whether all that it may match is known to."""
    ways = set(_alternatives(pattern))
    has_run = any(way.startswith(_RUN_OF_BLANKS) for way in ways)
    is_known = all(way in _NEAR or _PLAIN.fullmatch(way) for way in ways)
    return is_known and not (_ONE_BLANK in ways and has_run)


def _alternatives(pattern: str) -> Iterator[str]:
    """What stands between the bars of a pattern, not of its groups and sets."""
    depth, is_set, start, at = 0, False, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif is_set:
            is_set = char != "]"
        elif char == "[":
            is_set = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            yield pattern[start:at]
            start = at + 1
        at += 1
    yield pattern[start:]
