"""Batches of caches: who stays keeps what it had."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, BatchKVCache, CacheList, KVCache

from keepwarm.engine import merging

HEADS, DIM = 2, 4


def cache_of(length: int, seed: int) -> KVCache:
    cache = KVCache()
    shape = (1, HEADS, length, DIM)
    cache.update_and_fetch(
        mx.random.normal(shape, key=mx.random.key(seed)),
        mx.random.normal(shape, key=mx.random.key(seed + 100)),
    )
    return cache


def batch_of(lengths: list[int]) -> BatchKVCache:
    (batch,) = merging.merged([[cache_of(n, i)] for i, n in enumerate(lengths)])
    assert type(batch) is BatchKVCache
    return batch


def step(batch: BatchKVCache) -> tuple[mx.array, mx.array]:
    rows = mx.ones((len(batch.offset.tolist()), HEADS, 1, DIM))
    keys, values = batch.update_and_fetch(rows, 2 * rows)
    return keys, values


@pytest.mark.parametrize("rows", [[0], [1], [2, 1], [0, 2], [1, 3], [3, 2, 1, 0]])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_those_that_stay_are_as_mlx_lm_leaves_them(rows: list[int], num_steps: int) -> None:
    ours, theirs = batch_of([5, 9, 3, 260]), batch_of([5, 9, 3, 260])
    for _ in range(num_steps):
        step(ours), step(theirs)
    merging.keep([ours], rows)
    theirs.filter(rows)
    assert ours.left_padding.tolist() == theirs.left_padding.tolist()
    assert ours.offset.tolist() == theirs.offset.tolist()
    assert ours._idx == theirs._idx
    for mine, other in zip(step(ours), step(theirs), strict=True):
        assert mx.array_equal(mine, other).item()
    for place in range(len(rows)):
        assert mx.array_equal(ours.extract(place).keys, theirs.extract(place).keys).item()


def test_layers_inside_of_layers_are_filtered_too() -> None:
    def caches(length: int, seed: int) -> list[CacheList]:
        state = ArraysCache(1)
        state[0] = mx.full((1, 3), float(seed))
        return [CacheList(cache_of(length, seed), state)]

    batch = merging.merged([caches(4, 0), caches(7, 1), caches(6, 2)])
    merging.keep(batch, [0, 2])
    rows, state = batch[0].caches
    assert rows.left_padding.tolist() == [2, 0]
    assert rows._idx == 6
    assert state[0].tolist() == [[0.0] * 3, [2.0] * 3]
