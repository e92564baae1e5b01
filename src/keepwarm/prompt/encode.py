"""Text as tokens with their edges. What was encoded once is remembered, since a conversation sends
its whole past with every turn. No mlx; any thread."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import BadInput
from keepwarm.prompt.beginnings import continued, is_near_sighted
from keepwarm.prompt.blocks import Cuts, Offsets, blocks_of
from keepwarm.prompt.memory import Memory, memory_of
from keepwarm.prompt.template import Tokenizer, digest

# How byte-level and SentencePiece vocabularies write space, newline and tab.
_SPACES = frozenset("ĠĊĉ▁ \n\t")
# What a text goes through in transformers.
_WAYS = ("__call__", "encode", "_encode_plus", "_batch_encode_plus")


class Encoded(Protocol):
    """Token ids and where in the text they begin and end."""

    ids: NDArray[np.int32]

    def position(self, char: int) -> int | None:
        """How many tokens lie before `char`; None where that cuts a token."""
        ...


def encode(tokenizer: Tokenizer, text: str, namespace: str = "") -> Encoded:
    """`text` as `apply_chat_template` would tokenize it: special tokens are read, none is added.
    How long it takes tells nothing of what other namespaces encoded. Raises BadInput for text
    that is not Unicode."""
    callee = _callee(tokenizer)
    check_unicode(text)
    if not callable(callee) or not getattr(callee, "is_fast", False):
        return _PrefixEncoded(tokenizer, text)
    can_cut = encodes_in_order(tokenizer)
    offsets = _offsets(callee, text, namespace) if can_cut else Offsets.of(callee, text)
    return _OffsetEncoded(text, offsets, callee)


def encodes_in_order(tokenizer: Tokenizer) -> bool:
    """Whether it is a fast tokenizer that hands text on as it is. There are some that rewrite it
    first: CodeLlama's puts what is to be filled in behind all else."""
    callee = _callee(tokenizer)
    ways = [getattr(type(callee), name, None) for name in _WAYS]
    return bool(getattr(callee, "is_fast", False)) and all(
        way is None or str(way.__module__).startswith("transformers.tokenization_utils")
        for way in ways
    )


def vocabulary_len(tokenizer: Tokenizer) -> int:
    """How many tokens it knows; 0 where it does not tell. It grows when someone adds some."""
    callee = _callee(tokenizer)
    return len(callee) if hasattr(callee, "__len__") else 0


def _callee(tokenizer: Tokenizer) -> Any:
    """mlx-lm's wrapper forwards names, not calls; the tokenizer inside takes the call."""
    return tokenizer if callable(tokenizer) else getattr(tokenizer, "_tokenizer", None)


def check_unicode(text: object) -> None:
    """Raises BadInput for half of a character: JSON can carry one, and no tokenizer takes it."""
    if not isinstance(text, str):
        raise BadInput(f"text must be a string, got {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the text holds half of a character (a lone surrogate) at {error.start}"
        ) from error


def _offsets(callee: Any, text: str, namespace: str) -> Offsets:
    """The blocks that are known, and runs of those that are not, encoded together."""
    memory, size = memory_of(callee), vocabulary_len(callee)
    cuts: Cuts = memory.recall(("cuts", size), lambda: Cuts.of(callee))
    if not cuts.is_block(text):
        return Offsets.of(callee, text)
    starts = cuts.block_starts(text)
    ends = [*starts[1:], len(text)]
    keys = [(namespace, size, digest(text[start:end])) for start, end in zip(starts, ends)]
    known = [memory.blocks.get(key) for key in keys]
    at = 0
    while at < len(known):
        if known[at] is not None:
            at += 1
            continue
        upto = next((i for i in range(at, len(known)) if known[i] is not None), len(known))
        unknown = text[starts[at] : ends[upto - 1]]
        run = _run(memory, callee, unknown, ends[at] - starts[at], (namespace, size))
        lengths = [end - start for start, end in zip(starts[at:upto], ends[at:upto])]
        parts = blocks_of(run, lengths, cuts)
        if parts is None:
            return Offsets.of(callee, text)
        known[at:upto] = parts
        for i, part in enumerate(parts, at):
            if ends[i] - starts[i] >= cuts.min_chars:
                memory.blocks.put(keys[i], part)
                memory.beginnings.put((namespace, size), text[starts[i] : ends[i]], keys[i])
        at = upto
    blocks = [part for part in known if part is not None]
    if not all(cuts.can_begin(block) for block in blocks[1:]):
        return Offsets.of(callee, text)
    return Offsets.joined(blocks, starts)


def _run(memory: Memory, callee: Any, text: str, first_len: int, about: tuple[str, int]) -> Offsets:
    """Blocks that are not known, of which the first has so many characters: only their end where
    one that is known begins alike."""
    found = memory.beginnings.longest(about, text[:first_len], memory.blocks)
    if found is not None and memory.recall(("near", about[1]), lambda: is_near_sighted(callee)):
        run = continued(callee, text, *found)
        if run is not None:
            return run
    return Offsets.of(callee, text)


class _OffsetEncoded:
    """Reads edges from a fast tokenizer's offsets."""

    def __init__(self, text: str, offsets: Offsets, callee: Any) -> None:
        self.ids = offsets.ids
        self._starts = offsets.starts
        self._ends = offsets.ends
        self._text = text
        self._callee = callee

    def position(self, char: int) -> int | None:
        index = int(np.searchsorted(self._starts, char))
        if index and self._ends[index - 1] > char:
            return None
        return None if self._hides_space(index, char) else index

    def _hides_space(self, index: int, char: int) -> bool:
        """Whether the token at `index` holds a space from before `char`: tokenizers may trim
        the spaces a token begins with from its offsets."""
        if index == len(self.ids) or not char or not self._text[char - 1].isspace():
            return False
        if index and self._ends[index - 1] == char:
            return False  # the space is the previous token's
        name = self._callee.convert_ids_to_tokens(int(self.ids[index]))
        return name[:1] in _SPACES and not self._text[char : char + 1].isspace()


class _PrefixEncoded:
    """Proves an edge by encoding the text on either side of it, for tokenizers without offsets."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self._tokenizer = tokenizer
        self._text = text
        self.ids = self._encoded(text)
        self._proven = {0: 0}  # char → position

    def position(self, char: int) -> int | None:
        if char not in self._proven:
            start = max(known for known in self._proven if known < char)
            # From the last proven edge first: the whole beginning each time would be quadratic.
            found = self._match(start, char)
            if found is None and start:
                found = self._match(0, char)
            if found is None:
                return None
            self._proven[char] = found
        return self._proven[char]

    def _match(self, start: int, char: int) -> int | None:
        piece = self._encoded(self._text[start:char])
        begin = self._proven[start]
        end = begin + len(piece)
        return end if np.array_equal(self.ids[begin:end], piece) else None

    def _encoded(self, text: str) -> NDArray[np.int32]:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
