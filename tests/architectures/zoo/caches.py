"""A walk over the caches of a model: lists of lists down to the arrays each one holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, make_prompt_cache

from .weights import Model


def leaves(caches: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every cache that is not a CacheList, with its path: ``"2"``, or ``"2.0"`` inside a list."""
    for index, cache in enumerate(caches):
        path = f"{prefix}{index}"
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches, f"{path}.")
        else:
            yield path, cache


def arrays(leaf: Any) -> dict[str, mx.array]:
    """The arrays a leaf holds, by attribute, or by index for an ArraysCache. Empty ones are out."""
    slots = enumerate(leaf.cache) if isinstance(leaf, ArraysCache) else vars(leaf).items()
    return {str(name): slot for name, slot in slots if isinstance(slot, mx.array) and slot.size}


def put_array(leaf: Any, name: str, value: mx.array) -> None:
    """Replace one of the arrays that ``arrays`` names. Changes the leaf."""
    if isinstance(leaf, ArraysCache):
        leaf[int(name)] = value
    else:
        setattr(leaf, name, value)


def cache_classes(model: Model) -> tuple[str, ...]:
    """The class name of each of the model's caches, ``CacheList(A, B)`` for a list."""
    return tuple(_class_name(cache) for cache in make_prompt_cache(model))


def _class_name(cache: Any) -> str:
    name = type(cache).__name__
    if isinstance(cache, CacheList):
        return f"{name}({', '.join(_class_name(inner) for inner in cache.caches)})"
    return name
