"""Caches made by hand, whose rows tell where they stand, and sequences to file them under."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from keepwarm.compat.mlx_lm import LRUPromptCache

MODEL = ("some/model", None, None)
ROW_BYTES = 2 * 4 * 4  # keys and values, four floats each


def rows(tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
    """A row for each token that tells where it stands and what it is."""
    keys = mx.array([[i, t, 0, 0] for i, t in enumerate(tokens)], dtype=mx.float32)[None, None]
    return keys, -keys


def kv(tokens: Sequence[int]) -> list[KVCache]:
    """What an attention model holds after reading `tokens`."""
    cache = KVCache()
    cache.update_and_fetch(*rows(tokens))
    return [cache]


def hybrid(tokens: Sequence[int]) -> list[Any]:
    """One layer of attention and one recurrent layer, whose state is the sum of the tokens."""
    state = ArraysCache(1)
    state[0] = mx.array([[float(sum(tokens))]])
    return [*kv(tokens), state]


def read_tokens(caches: Sequence[Any]) -> list[int]:
    """The tokens whose rows these caches hold."""
    keys, values = caches[0].keys_and_values()
    assert mx.array_equal(keys, -values)
    assert keys[0, 0, :, 0].tolist() == list(range(keys.shape[2]))
    return [int(t) for t in keys[0, 0, :, 1].tolist()]


def is_stored(cache: LRUPromptCache, tokens: list[int], model: Any = MODEL) -> bool:
    """Whether all that a fetch can give of `tokens` is there. Counts as a use."""
    caches, rest = cache.fetch_nearest_cache(model, tokens)
    return caches is not None and len(rest) == 1


def words(first: int, count: int = 8) -> list[int]:
    """A sequence that has nothing in common with that of another `first`."""
    return [1000 * first + i for i in range(count)]
