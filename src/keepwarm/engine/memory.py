"""How much memory a running sequence takes, so that it is known before one is admitted. On the
engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from keepwarm.state.nested import flattened

# mlx-lm's caches grow by this many rows at a time: as many may be unused.
_STEP = 256


@dataclass(frozen=True, slots=True)
class Growth:
    """Layers that take `token_bytes` for each token, up to `max_tokens` of them."""

    token_bytes: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of one sequence's live caches, by the number of tokens they have seen."""

    fixed_bytes: int = 0
    growths: tuple[Growth, ...] = ()

    @property
    def token_bytes(self) -> int:
        """What one more token takes, in the layers that keep every token."""
        return sum(growth.token_bytes for growth in self.growths if growth.max_tokens is None)

    def at(self, num_tokens: int) -> int:
        """What a sequence of that length takes at most, with the slack of its buffers."""
        # In steps: rows are added in steps, and what is lent by the cache should not move
        # with every token.
        rounded = -(-num_tokens // _STEP) * _STEP
        return self.fixed_bytes + sum(
            growth.token_bytes * (min(rounded, growth.max_tokens or rounded) + _STEP)
            for growth in self.growths
        )

    @classmethod
    def of(cls, caches: Sequence[Any]) -> Footprint:
        """Measured from live caches that have seen a few tokens."""
        fixed, growths = 0, []
        for leaf in flattened(caches):
            rows = _row_arrays(leaf)
            if rows:
                token_bytes = sum(array.nbytes // array.shape[2] for array in rows)
                growths.append(Growth(token_bytes, _window_of(leaf)))
            else:
                fixed += _nbytes_of(leaf)
        return cls(fixed, tuple(growths))


def _row_arrays(leaf: Any) -> list[mx.array]:
    keys = getattr(leaf, "keys", None)
    if keys is None or not hasattr(leaf, "offset"):
        return []
    return [array for array in _arrays_in([keys, leaf.values]) if array.ndim == 4]


def _window_of(leaf: Any) -> int | None:
    size = getattr(leaf, "max_size", None)
    if size is None and (chunk := getattr(leaf, "chunk_size", None)) is not None:
        size = 2 * chunk  # the chunk before goes when the next one begins
    return size


def _nbytes_of(leaf: Any) -> int:
    return sum(array.nbytes for array in _arrays_in(leaf.state))


def _arrays_in(tree: Any) -> list[mx.array]:
    flat: list[tuple[str, Any]] = tree_flatten(tree)  # type: ignore[assignment]
    return [value for _, value in flat if isinstance(value, mx.array)]
