"""Live caches of several sequences as one, by mlx-lm's batch caches. Engine thread.

mlx-lm's own fail on layers or entries that a model leaves empty; here they stay empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchKVCache, CacheList, KVCache

from keepwarm.state.nested import flattened

log = logging.getLogger("keepwarm.engine")

Caches = list[Any]

# Models that pick blocks of keys by their place in the cache, which padding shifts.
_COUNTS_PADDING = frozenset({"mlx_lm.models.minimax_m3_vl"})

# Padding that works moves a logit by what another order of the same sums does.
_MAX_DEVIATION = 0.05


def can_batch(model: Any, make_caches: Callable[[], Caches]) -> bool:
    """Whether sequences of a model can decode in one step and say what each says alone.

    Tries it on short ones: with some models mlx-lm's batch caches do not work, or padding
    changes the answer.
    """
    if type(model).__module__ in _COUNTS_PADDING:
        return False
    try:
        noise = _deviation(model, make_caches, [12, 12])
        error = _deviation(model, make_caches, [5, 12, 9])
    except Exception as fault:
        log.info("replies decode in turn: this model's caches cannot be batched (%s)", fault)
        return False
    return error <= max(_MAX_DEVIATION, 4 * noise)


def _deviation(model: Any, make_caches: Callable[[], Caches], lengths: Sequence[int]) -> float:
    """How far the logits of a batch of these lengths are from those of each sequence alone, as
    a share of the largest."""
    token, sequences, apart = mx.array([[1]]), [], []
    for i, length in enumerate(lengths):
        caches = make_caches()
        tokens = mx.arange(i, i + length)[None]
        mx.eval(model(tokens, cache=caches), [cache.state for cache in caches])
        sequences.append(caches)
    batch = merged(sequences[:2])
    if sequences[2:]:
        extend(batch, merged(sequences[2:]))
    together = model(mx.repeat(token, len(lengths), axis=0), cache=batch)[:, -1, :]
    for i, caches in enumerate(sequences):
        single = extracted(batch, i)
        mx.eval(model(token, cache=single))  # rows can be taken apart again
        apart.append(model(token, cache=caches)[:, -1, :])
    difference = mx.abs(together - mx.concatenate(apart)).max()
    return float(difference / mx.abs(together).max())


def merged(sequences: Sequence[Caches]) -> Caches:
    """One list of batch caches for several sequences. The given caches stay as they are."""
    return [_merge(layer) for layer in zip(*sequences, strict=True)]


def extend(batch: Caches, more: Caches) -> None:
    """Append the sequences of `more`. Mutates `batch`."""
    for layer, other in zip(batch, more, strict=True):
        layer.extend(other)


def keep(batch: Caches, rows: Sequence[int]) -> None:
    """Drop all sequences but `rows`. Mutates."""
    _look_at_paddings(batch)
    for layer in batch:
        _keep(layer, list(rows))


def extracted(batch: Caches, row: int) -> Caches:
    """The caches of one sequence, in buffers of their own."""
    _look_at_paddings(batch)
    return [_extract(layer, row) for layer in batch]


def _look_at_paddings(batch: Caches) -> None:
    """All at once: who asks for these numbers layer by layer waits for every layer."""
    paddings = [getattr(layer, "left_padding", None) for layer in flattened(batch)]
    mx.eval([padding for padding in paddings if padding is not None])


def _keep(layer: Any, rows: list[int]) -> None:
    """As `filter`, which has the device count the padding again."""
    if isinstance(layer, CacheList):
        for part in layer.caches:
            _keep(part, rows)
    elif type(layer) is BatchKVCache and layer.keys is not None:
        paddings: list[int] = layer.left_padding.tolist()
        spare = min(paddings[row] for row in rows)
        layer.keys = layer.keys[rows][..., spare:, :]
        layer.values = layer.values[rows][..., spare:, :]
        layer.offset = layer.offset[rows]
        layer.left_padding = mx.array([paddings[row] - spare for row in rows])
        layer._idx -= spare
    else:
        layer.filter(rows)


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
    if type(layer) is BatchKVCache and layer.keys is None:
        return KVCache()
    return layer.extract(row)
