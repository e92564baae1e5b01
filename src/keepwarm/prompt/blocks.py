"""Long text in blocks that a tokenizer reads each by itself, so that each can be remembered.

A tokenizer cuts a text at its added tokens before it does anything else:

    <|im_start|>user\\n ... <|im_end|>\\n<|im_start|>assistant\\n ...
    ^ block                            ^ the next one, once the first is long enough

Plain data, no mlx; any thread.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Shorter ones are not worth the remembering.
MIN_CHARS = 1024
# Tokens that are looked for in every text; templates use a few of them.
_MAX_CUTS = 32
# Text that has one such character in so many is searched for that alone.
_FEW_HEADS = 256
# 13 bytes each, and as much as so many for a block by itself.
MAX_REMEMBERED_TOKENS = 2 << 20
BLOCK_TOKENS = 64

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Token ids, the characters each begins and ends at, and which of them begin a word, as the
    tokenizer cuts text before it looks at it."""

    ids: Int32s
    starts: Int32s
    ends: Int32s
    is_edge: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(callee: Any, text: str) -> Offsets:
        """As the tokenizer encodes `text`, special tokens read and none added."""
        batch = callee(text, add_special_tokens=False, verbose=False)
        encoding = batch.encodings[0]
        edges = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        # -1 for what is in no word
        words = np.array([-1 if word is None else word for word in encoding.word_ids])
        is_edge = np.ones(len(words), dtype=np.bool_)
        is_edge[1:] = (words[1:] != words[:-1]) | (words[1:] < 0)
        ids = np.array(batch["input_ids"], dtype=np.int32)
        return Offsets(ids, edges[:, 0].copy(), edges[:, 1].copy(), is_edge)._unchanging()

    @staticmethod
    def joined(parts: Sequence[Offsets], chars: Sequence[int]) -> Offsets:
        """Parts of a text, each at its character."""
        if len(parts) == 1:
            return parts[0]
        return Offsets(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.starts + char for part, char in zip(parts, chars)]),
            np.concatenate([part.ends + char for part, char in zip(parts, chars)]),
            np.concatenate([part.is_edge for part in parts]),
        )

    def part(self, first: int, last: int, char: int = 0) -> Offsets:
        """Tokens `first ... last - 1`, on their own: `char` is where their text begins."""
        where = slice(first, last)
        starts, ends = self.starts[where] - char, self.ends[where] - char
        part = Offsets(self.ids[where].copy(), starts, ends, self.is_edge[where].copy())
        return part._unchanging()

    def _unchanging(self) -> Offsets:
        """Many may hold it."""
        for array in (self.ids, self.starts, self.ends, self.is_edge):
            array.flags.writeable = False
        return self


@dataclass(frozen=True, slots=True)
class Cuts:
    """The added tokens before which a text may be cut."""

    tokens: tuple[str, ...]
    ids: frozenset[int]
    min_chars: int = MIN_CHARS

    @staticmethod
    def of(callee: Any) -> Cuts:
        """Those of a fast tokenizer that it tells from all else, whatever stands around them."""
        added: dict[int, Any] = callee.added_tokens_decoder
        plain = {
            number: token.content
            for number, token in added.items()
            if token.content and not (token.lstrip or token.single_word or token.normalized)
        }
        template = str(getattr(callee, "chat_template", "") or "")
        # Those that the template writes come first, then those that end a text and the like.
        order = sorted(
            plain, key=lambda number: (plain[number] not in template, not added[number].special)
        )[:_MAX_CUTS]
        names = [token.content for token in added.values()]
        kept = [number for number in order if not _may_be_covered(plain[number], names)]
        if any(token.single_word for token in added.values()):
            # Those ask whether what follows them goes on as a word.
            kept = [number for number in kept if not re.match(r"\w", plain[number])]
        return Cuts(tuple(plain[number] for number in kept), frozenset(kept))

    def can_begin(self, block: Offsets) -> bool:
        """Whether the tokenizer saw a token there at which it cuts."""
        return len(block) > 0 and int(block.ids[0]) in self.ids

    def is_block(self, text: str) -> bool:
        """Whether it is worth being remembered."""
        return len(text) >= self.min_chars

    def block_starts(self, text: str) -> list[int]:
        """Where blocks begin. They depend on what lies before them only, so that a text that
        goes on has the same ones and more."""
        starts = [0]
        for place in sorted(self._places(text)) if self.is_block(text) else ():
            if place - starts[-1] >= self.min_chars:
                starts.append(place)
        return starts

    def _places(self, text: str) -> list[int]:
        head = self.tokens[0][0] if self.tokens else ""
        is_shared = all(token[0] == head for token in self.tokens)
        if is_shared and text.count(head) * _FEW_HEADS < len(text):
            # One search in place of one for each token.
            return [place for place in _found(text, head) if text.startswith(self.tokens, place)]
        return [place for token in self.tokens for place in _found(text, token)]


def _found(text: str, words: str) -> Iterator[int]:
    place = text.find(words)
    while place >= 0:
        yield place
        place = text.find(words, place + len(words))


def _may_be_covered(token: str, names: Sequence[str]) -> bool:
    """Whether a token of `names` can begin before `token` does, and reach into it."""
    return any(
        token.startswith(name[at:]) or name[at:].startswith(token)
        for name in names
        for at in range(1, len(name))
    )


def blocks_of(run: Offsets, lengths: Sequence[int], cuts: Cuts) -> list[Offsets] | None:
    """A run of blocks that was encoded as one, taken apart into blocks of so many characters.
    None where a block does not begin with one of the tokens of `cuts`."""
    parts, first, char = [], 0, 0
    for i, length in enumerate(lengths):
        end = char + length
        last = int(np.searchsorted(run.starts, end)) if i + 1 < len(lengths) else len(run)
        if last < len(run) and run.starts[last] != end:
            return None
        if last and run.ends[last - 1] > end:
            return None
        parts.append(run.part(first, last, char))
        first, char = last, end
    return parts if all(cuts.can_begin(part) for part in parts[1:]) else None


class Remembered:
    """Blocks by key, those used last: so many tokens in all."""

    def __init__(self, max_tokens: int = MAX_REMEMBERED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._known: OrderedDict[Hashable, Offsets] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def get(self, key: Hashable) -> Offsets | None:
        """Mutates: it counts as used."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def put(self, key: Hashable, block: Offsets) -> None:
        """Mutates."""
        with self._lock:
            before = self._known.pop(key, None)
            self._num_tokens += _weight(block) - (_weight(before) if before is not None else 0)
            self._known[key] = block
            while self._num_tokens > self._max_tokens:
                _, gone = self._known.popitem(last=False)
                self._num_tokens -= _weight(gone)


def _weight(block: Offsets) -> int:
    return len(block) + BLOCK_TOKENS
