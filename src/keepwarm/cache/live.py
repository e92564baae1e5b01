"""The live caches of one running sequence, which know how far they have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keepwarm.prompt.boundaries import PrefixHasher, Prompt, Tokens


class Live:
    """Live layer caches, the number of tokens they have seen and the hash of those tokens.

    Whoever runs the model calls `advance` with the very tokens it fed. The store compares the
    hash with that of the prompt before it files a state, so that none lands under another key.
    """

    __slots__ = ("_hasher", "caches", "cuts")

    def __init__(self, caches: list[Any]) -> None:
        self.caches = caches
        self.cuts: list[int] = []  # the position after each feed
        self._hasher = PrefixHasher()

    @classmethod
    def at(cls, caches: list[Any], prompt: Prompt, position: int, cuts: Sequence[int]) -> Live:
        """Caches that have seen `prompt.tokens[:position]`, fed in pieces ending at `cuts`."""
        live = cls(caches)
        live._hasher.update(prompt.tokens[:position])
        live.cuts = list(cuts)
        return live

    @property
    def position(self) -> int:
        return self._hasher.position

    @property
    def digest(self) -> bytes:
        return self._hasher.digest()

    def advance(self, tokens: Sequence[int] | Tokens) -> None:
        """The model has read `tokens` with these caches, in one call. Mutates."""
        self._hasher.update(np.asarray(tokens, dtype=np.int32))
        self.cuts.append(self.position)

    def __repr__(self) -> str:
        return f"Live({len(self.caches)} layers at {self.position})"
