"""Full attention: rows are cut and restored anywhere."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, ConcatenateKVCache, KVCache, QuantizedKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.attention import PlainKV, make_room
from keepwarm.state.base import NO_ROWS, Kind
from tests.state.restoring import (
    CHUNKS,
    MakeLeaf,
    Reading,
    Restored,
    assert_goes_on_alike,
    restored,
    row_state,
)

LEAVES: dict[str, MakeLeaf] = {
    "kv": KVCache,
    "concatenate": ConcatenateKVCache,
    "quantized_8": partial(QuantizedKVCache, 32, 8),
    "quantized_4": partial(QuantizedKVCache, 32, 4),
}


@pytest.mark.parametrize("name", LEAVES)
@given(data=st.data(), chunks=CHUNKS, more=CHUNKS)
def test_any_position_already_read_can_be_restored_and_no_other(
    name: str, data: st.DataObject, chunks: list[int], more: list[int]
) -> None:
    make, reading = LEAVES[name], Reading(chunks, seed=data.draw(st.integers(0, 9)))
    position = data.draw(st.integers(0, reading.total + 3))
    leaf = reading.live(make, reading.total)
    pair = restored(
        leaf, make, reading, position, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 300))
    )
    assert (pair is not None) == (position <= reading.total)
    if pair is not None:
        assert_goes_on_alike(pair, more)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", LEAVES)
def test_rows_keep_their_dtype(name: str, dtype: mx.Dtype) -> None:
    reading = Reading([7, 1, 5], dtype=dtype)
    pair = restored(reading.live(LEAVES[name], 13), LEAVES[name], reading, 9, 2, 0)
    assert pair is not None
    assert_goes_on_alike(pair, [1, 4])


def test_room_is_made_once_and_changes_no_row() -> None:
    reading = Reading([7, 1, 5])
    leaf, other = reading.live(KVCache, 13), reading.live(KVCache, 13)
    make_room([leaf, CacheList(KVCache(), QuantizedKVCache(32, 8))], 700)
    assert leaf.keys.shape[2] == leaf.values.shape[2] == 768
    keys = leaf.keys
    make_room([leaf], 600)
    assert leaf.keys is keys
    assert_goes_on_alike(Restored(leaf, other, 13, reading), [1, 4])


@pytest.mark.parametrize("name", LEAVES)
def test_leaf_that_saw_nothing_has_no_rows(name: str) -> None:
    leaf = LEAVES[name]()
    state = row_state(leaf)
    assert state.kind is Kind.ROWS
    assert state.rows(leaf) is NO_ROWS
    assert state.position(leaf) == 0
    assert state.can_restore(0, [])
    assert not state.can_restore(1, [])


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    num_steps=st.integers(0, 4),
    data=st.data(),
)
def test_leaf_taken_out_of_a_batch_is_restored_like_one_that_ran_alone(
    lengths: list[int], num_steps: int, data: st.DataObject
) -> None:
    readings = [Reading([n, *[1] * num_steps], seed=i) for i, n in enumerate(lengths)]
    batch = KVCache.merge([r.live(KVCache, n) for r, n in zip(readings, lengths)])
    for step in range(num_steps):
        batched_step(batch, readings, [n + step for n in lengths])
    index = data.draw(st.integers(0, len(lengths) - 1))
    total = readings[index].total
    position = data.draw(st.integers(0, total + 1))
    pair = restored(batch.extract(index), KVCache, readings[index], position, 2, 0)
    assert (pair is not None) == (position <= total)
    if pair is not None:
        assert_goes_on_alike(pair, [1, 3])


def batched_step(batch: Any, readings: list[Reading], positions: list[int]) -> None:
    """One token for each sequence of a batch. Mutates the batch's cache."""
    rows = [r.feed(KVCache(), at, 1) for r, at in zip(readings, positions)]
    batch.update_and_fetch(
        mx.concatenate([keys for keys, _ in rows]), mx.concatenate([values for _, values in rows])
    )


@pytest.mark.parametrize("make", [KVCache, ConcatenateKVCache])
def test_cache_of_a_batch_is_refused(make: type) -> None:
    leaf = make()
    leaf.update_and_fetch(mx.zeros((2, 1, 3, 4)), mx.zeros((2, 1, 3, 4)))
    with pytest.raises(CacheFault, match="single sequence"):
        row_state(leaf).rows(leaf)


def test_leaf_with_fewer_rows_than_it_says_is_refused() -> None:
    leaf = Reading([5]).live(ConcatenateKVCache, 5)
    leaf.offset = 6
    with pytest.raises(CacheFault, match="too few rows"):
        row_state(leaf).rows(leaf)


def test_restored_cache_has_room_for_what_comes_next() -> None:
    """Without it the first write copies everything that was just restored."""
    reading = Reading([300])
    rows = PlainKV().rows(reading.live(KVCache, 300))
    leaf = PlainKV().rebuild(300, [rows.cut(0, 300)], reserve=500)
    assert leaf.keys.shape[2] >= 800
    before = leaf.keys.shape
    reading.feed(leaf, 300, 500)
    assert leaf.keys.shape == before
