"""Live caches of several sequences as one, by mlx-lm's batch caches. Engine thread.

mlx-lm's `ArraysCache` fails on entries that a model leaves empty; here they stay empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

Caches = list[Any]


def can_merge(caches: Sequence[Any]) -> bool:
    """Whether each layer's cache can be one of a batch."""
    return all(
        can_merge(cache.caches) if isinstance(cache, CacheList) else hasattr(cache, "merge")
        for cache in caches
    )


def merged(sequences: Sequence[Caches]) -> Caches:
    """One list of batch caches for several sequences. The given caches stay as they are."""
    return [_merge(layer) for layer in zip(*sequences, strict=True)]


def extend(batch: Caches, more: Caches) -> None:
    """Append the sequences of `more`. Mutates `batch`."""
    for layer, other in zip(batch, more, strict=True):
        layer.extend(other)


def keep(batch: Caches, rows: Sequence[int]) -> None:
    """Drop all sequences but `rows`. Mutates."""
    for layer in batch:
        layer.filter(list(rows))


def extracted(batch: Caches, row: int) -> Caches:
    """The caches of one sequence, in buffers of their own."""
    return [_extract(layer, row) for layer in batch]


def _merge(layer: Sequence[Any]) -> Any:
    if isinstance(layer[0], CacheList):
        parts = zip(*(cache.caches for cache in layer), strict=True)
        return CacheList(*(_merge(part) for part in parts))
    if type(layer[0]) is ArraysCache:
        return _merge_arrays(layer)
    return layer[0].merge(list(layer))


def _merge_arrays(layer: Sequence[Any]) -> Any:
    merged = ArraysCache(len(layer[0].cache))
    for i, entries in enumerate(zip(*(cache.cache for cache in layer), strict=True)):
        known = next((entry for entry in entries if entry is not None), None)
        if known is not None:
            filled = [mx.zeros_like(known) if entry is None else entry for entry in entries]
            merged[i] = mx.concatenate(filled)
    return merged


def _extract(layer: Any, row: int) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*(_extract(part, row) for part in layer.caches))
    if type(layer) is ArraysCache:
        single = ArraysCache(len(layer.cache))
        single.cache = [
            None if entry is None else mx.contiguous(entry[row : row + 1]) for entry in layer.cache
        ]
        return single
    return layer.extract(row)
