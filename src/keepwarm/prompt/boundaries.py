"""Prompts: token ids with the positions where a message, the system part or the generation
prompt ends. Plain data, no mlx; any thread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keepwarm.errors import BadInput

DIGEST_BYTES = 16

Tokens = NDArray[np.int32]

_INTEGERS = (int, np.integer)
_LARGEST_ID = int(np.iinfo(np.int32).max)


class BoundaryKind(StrEnum):
    """What ends at a boundary."""

    SYSTEM = "system"  # tools + system part: shared by every conversation of an application
    HEAD = "head"  # a beginning of that, which other applications may share: the tools, say
    MESSAGE = "message"  # a message with all its closing markup
    USER = (
        "user"  # a message in which the user speaks: templates strip the thoughts before the last
    )
    GENERATION = "generation"  # the generation prompt, without its thinking tail
    MARK = "mark"  # the client asked for a checkpoint here
    # All but the last paragraph of the last message: a document, say, before a question.
    PARAGRAPH = "paragraph"


# What a prompt has by what stands behind it, too.
_OWN = (BoundaryKind.GENERATION, BoundaryKind.PARAGRAPH)


@dataclass(frozen=True, slots=True, order=True)
class Boundary:
    """`position` tokens lie before this boundary."""

    position: int
    kind: BoundaryKind


def shared_len(one: Tokens, other: Tokens) -> int:
    """How many tokens two prompts begin with in common. Cheap where they part early."""
    upto, start, width = min(len(one), len(other)), 0, 256
    while start < upto:
        end = min(start + width, upto)
        differs = one[start:end] != other[start:end]
        if differs.any():
            return start + int(np.argmax(differs))
        start, width = end, 4 * width
    return upto


class PrefixHasher:
    """Hashes a growing token prefix: equal digests mean equal tokens from the very start."""

    __slots__ = ("_state", "position")

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.position = 0

    def update(self, tokens: Tokens) -> None:
        """Mutates: appends `tokens`."""
        self._state.update(np.ascontiguousarray(tokens, dtype="<i4").tobytes())
        self.position += len(tokens)

    def digest(self) -> bytes:
        return self._state.digest()

    def copy(self) -> PrefixHasher:
        twin = PrefixHasher.__new__(PrefixHasher)
        twin._state = self._state.copy()
        twin.position = self.position
        return twin


class Prompt:
    """Token ids plus boundaries. Immutable, except that it remembers digests it computed."""

    __slots__ = ("_digests", "_hasher", "boundaries", "tokens")

    def __init__(self, tokens: Sequence[int] | Tokens, boundaries: Iterable[Boundary] = ()) -> None:
        """Raises BadInput for an empty prompt, for what is no token id and for a boundary outside
        the prompt."""
        self.tokens = _as_tokens(tokens)
        self.boundaries = _as_boundaries(boundaries, len(self.tokens))
        self._hasher = PrefixHasher()
        self._digests: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        marks = ", ".join(f"{b.kind}@{b.position}" for b in self.boundaries)
        return f"Prompt({len(self)} tokens{'; ' + marks if marks else ''})"

    def digest(self, position: int) -> bytes:
        """The hash of `tokens[:position]`. Cheap when asked for rising positions."""
        known = self._digests.get(position)
        if known is not None:
            return known
        if position < self._hasher.position:
            self._hasher = PrefixHasher()
        self._hasher.update(self.tokens[self._hasher.position : position])
        digest = self._hasher.digest()
        self._digests[position] = digest
        return digest

    def twin(self) -> Prompt:
        """The same, with the digests that are known, for another thread."""
        twin = Prompt.__new__(Prompt)
        twin.tokens, twin.boundaries = self.tokens, self.boundaries
        twin._hasher, twin._digests = PrefixHasher(), self._digests.copy()
        return twin

    def extended(self, tokens: Sequence[int] | Tokens) -> Prompt:
        """This prompt followed by `tokens` (a decoded reply), with the same boundaries."""
        return Prompt(np.concatenate([self.tokens, _as_tokens(tokens)]), self.boundaries)

    @property
    def last_message_end(self) -> int | None:
        """Where the last message ends and the generation prompt begins, if that is known."""
        return self.ends[-1].position if self.ends else None

    @property
    def tail(self) -> int | None:
        """The last position that the next turn is known to share: where the last message ends, or
        behind what the template also writes before a past reply, if a thinking tail follows."""
        end = self.last_message_end
        if end is None:
            return None
        heads = [b.position for b in self.boundaries if b.kind is BoundaryKind.GENERATION]
        return max([end, *(head for head in heads if head < len(self))])

    @property
    def ends(self) -> list[Boundary]:
        """Those that a longer prompt with the same beginning has as well."""
        return [b for b in self.boundaries if b.kind not in _OWN]


AnyPrompt = Prompt | Sequence[int] | Tokens


def as_prompt(prompt: AnyPrompt) -> Prompt:
    """A prompt as it is, or made of a list of token ids. Raises BadInput for anything else."""
    return prompt if isinstance(prompt, Prompt) else Prompt(prompt)


def _as_tokens(tokens: Sequence[int] | Tokens) -> Tokens:
    if isinstance(tokens, str | bytes | Prompt):
        raise BadInput(
            f"a prompt is made of token ids, not of {type(tokens).__name__}:"
            " render_text and render_chat make one of text"
        )
    try:
        array = np.array(tokens, ndmin=1)
    except (TypeError, ValueError) as error:  # items of several lengths
        raise BadInput(f"a prompt is a flat list of token ids: {error}") from error
    if array.ndim != 1 or not len(array):
        raise BadInput("a prompt needs at least one token, in a flat list of ids")
    if array.dtype.kind not in "iu":
        raise BadInput(f"token ids are integers, got {array.flat[0]!r}")
    if array.min() < 0:
        raise BadInput(f"token ids cannot be negative, got {int(array.min())}")
    if array.max() > _LARGEST_ID:
        raise BadInput(f"token ids fit into 31 bits, got {int(array.max())}")
    array = array.astype(np.int32, copy=False)
    array.flags.writeable = False
    return array


def _as_boundaries(boundaries: Iterable[Boundary], prompt_len: int) -> tuple[Boundary, ...]:
    given: list[Any] = list(boundaries)
    for boundary in given:
        if not isinstance(boundary, Boundary) or not isinstance(boundary.position, _INTEGERS):
            raise BadInput(f"a boundary is Boundary(position, kind), not {boundary!r}")
    try:
        ordered = tuple(sorted({Boundary(b.position, BoundaryKind(b.kind)) for b in given}))
    except ValueError as error:
        raise BadInput(f"no boundary is of this kind: {error}") from error
    for boundary in ordered:
        if not 0 < boundary.position <= prompt_len:
            raise BadInput(f"boundary {boundary} lies outside a prompt of {prompt_len} tokens")
    return ordered
