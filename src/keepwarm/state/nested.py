"""Caches of caches: `CacheList`, to any depth, flattened to leaves and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.models.cache import CacheList


@dataclass(frozen=True, slots=True)
class Branch:
    """The shape of a `CacheList`: for each part a deeper shape, or None for a leaf."""

    parts: tuple[Shape, ...]


Shape = Branch | None


def shape_of(caches: Sequence[Any]) -> tuple[Shape, ...]:
    """The nesting of a model's caches."""
    # The class itself only: a subclass may mean something else by its parts.
    return tuple(
        Branch(shape_of(cache.caches)) if type(cache) is CacheList else None for cache in caches
    )


def flattened(caches: Sequence[Any]) -> list[Any]:
    """The leaves, in order."""
    leaves: list[Any] = []
    for cache in caches:
        leaves.extend(flattened(cache.caches) if type(cache) is CacheList else [cache])
    return leaves


def nested(shapes: Sequence[Shape], leaves: Iterator[Any]) -> list[Any]:
    """The caches of that nesting; takes its leaves from the iterator in order."""
    return [
        CacheList(*nested(shape.parts, leaves)) if shape is not None else next(leaves)
        for shape in shapes
    ]
