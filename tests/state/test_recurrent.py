"""Recurrent layers: the whole state or nothing, at the one position where it was taken."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache

from keepwarm.errors import CacheFault
from keepwarm.state.base import Kind, SnapshotState
from keepwarm.state.recurrent import RecurrentState
from keepwarm.state.registry import state_of
from tests.state.feeding import are_same, contents
from tests.state.restoring import CHUNKS, Reading

SHORT = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(size=st.integers(1, 4), chunks=CHUNKS, more=SHORT, data=st.data())
def test_restored_state_goes_on_like_one_that_read_it_all(
    size: int, chunks: list[int], more: list[int], data: st.DataObject
) -> None:
    make, reading = partial(ArraysCache, size), Reading(chunks, seed=size)
    position = data.draw(st.integers(0, reading.total))
    leaf = reading.live(make, position)
    state = state_of(leaf)
    assert isinstance(state, SnapshotState)
    snapshot = state.snapshot(leaf)
    twin, at = state.restore(snapshot), position
    reference = reading.live(make, position)
    for count in more:
        assert are_same(reading.feed(twin, at, count), reading.feed(reference, at, count))
        at += count
    assert are_same(contents([twin]), contents([reference]))


@pytest.mark.parametrize("filled", [(), (0,), (2,), (0, 1, 2)])
def test_entries_that_are_none_stay_none(filled: tuple[int, ...]) -> None:
    leaf = ArraysCache(3)
    for index in filled:
        leaf[index] = mx.full((1, 2), index)
    state = RecurrentState(3)
    twin = state.restore(state.snapshot(leaf))
    assert type(twin) is ArraysCache
    assert [i for i, entry in enumerate(twin.cache) if entry is not None] == list(filled)
    assert (twin.lengths, twin.left_padding) == (None, None)


def test_state_cannot_tell_where_it_stands() -> None:
    state = state_of(ArraysCache(1))
    assert state.kind is Kind.SNAPSHOT
    assert state.position(Reading([4]).live(partial(ArraysCache, 1), 4)) is None


@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=3), size=st.integers(1, 2))
def test_state_taken_out_of_a_batch_is_like_one_that_ran_alone(
    lengths: list[int], size: int
) -> None:
    make = partial(ArraysCache, size)
    readings = [Reading([n], seed=i) for i, n in enumerate(lengths)]
    leaves = [r.live(make, r.total) for r in readings]
    batch = ArraysCache.merge(leaves)
    state = RecurrentState(size)
    for index, alone in enumerate(leaves):
        twin = state.restore(state.snapshot(batch.extract(index)))
        assert are_same(contents([twin]), contents([alone]))


def test_state_of_a_batch_is_refused() -> None:
    leaves = [Reading([3], seed=i).live(partial(ArraysCache, 2), 3) for i in range(2)]
    batch = ArraysCache.merge(leaves)
    with pytest.raises(CacheFault, match="single sequence"):
        RecurrentState(2).snapshot(batch)
    with pytest.raises(CacheFault, match="single sequence"):
        RecurrentState(2).measure(batch)
