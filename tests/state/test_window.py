"""Sliding windows: a restore happens exactly where the rows of the window are still there."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import ChunkedKVCache, KVCache, RotatingKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.base import NO_ROWS, Kind
from keepwarm.state.window import ChunkedKV, RotatingKV
from tests.state.restoring import (
    CHUNKS,
    MakeLeaf,
    Reading,
    assert_goes_on_alike,
    restored,
    row_state,
)

WINDOWS = st.builds(
    lambda keep, more: (keep + more, keep), st.integers(0, 4), st.integers(2, 12)
)  # max_size, keep
MORE = st.lists(st.sampled_from([1, 1, 2, 5]), min_size=1, max_size=3)


def positions_in(intervals: list[tuple[int, int]]) -> set[int]:
    return {position for lo, hi in intervals for position in range(lo, hi)}


def prove(make: MakeLeaf, reading: Reading, num_pieces: int, more: list[int]) -> None:
    """Every position near the end of a reading is restored or rightly refused."""
    leaf = reading.live(make, reading.total)
    state = row_state(leaf)
    held = positions_in(state.rows(leaf).held)
    for position in range(max(0, reading.total - 16), reading.total + 3):
        pair = restored(leaf, make, reading, position, num_pieces, reserve=0)
        assert (pair is not None) == (positions_in(state.needs(position)) <= held)
        if pair is not None:
            assert_goes_on_alike(pair, more)


@given(window=WINDOWS, chunks=CHUNKS, more=MORE, num_pieces=st.integers(1, 3))
def test_rotating_window_is_restored_where_its_rows_are_there(
    window: tuple[int, int], chunks: list[int], more: list[int], num_pieces: int
) -> None:
    prove(partial(RotatingKVCache, *window), Reading(chunks), num_pieces, more)


@given(keep=st.sampled_from([0, 4]), chunks=CHUNKS, more=MORE)
def test_window_wider_than_a_step_of_its_buffer_is_restored(
    keep: int, chunks: list[int], more: list[int]
) -> None:
    prove(partial(RotatingKVCache, 300, keep), Reading(chunks), 1, more)


@given(chunk_size=st.integers(1, 12), chunks=CHUNKS, more=MORE, num_pieces=st.integers(1, 3))
def test_chunked_window_is_restored_where_its_rows_are_there(
    chunk_size: int, chunks: list[int], more: list[int], num_pieces: int
) -> None:
    prove(partial(ChunkedKVCache, chunk_size), Reading(chunks), num_pieces, more)


@given(window=WINDOWS, chunks=CHUNKS)
def test_rotating_window_can_always_be_restored_where_it_stands(
    window: tuple[int, int], chunks: list[int]
) -> None:
    make, reading = partial(RotatingKVCache, *window), Reading(chunks)
    assert restored(reading.live(make, reading.total), make, reading, reading.total, 1, 0)


@given(chunk_size=st.integers(1, 12), chunks=CHUNKS)
def test_chunked_window_can_always_be_restored_where_it_stands(
    chunk_size: int, chunks: list[int]
) -> None:
    make, reading = partial(ChunkedKVCache, chunk_size), Reading(chunks)
    assert restored(reading.live(make, reading.total), make, reading, reading.total, 1, 0)


@pytest.mark.parametrize("keep", [0, 1, 3])
@pytest.mark.parametrize("max_size", [4, 5, 9])
def test_window_needs_its_last_rows_and_those_it_keeps(max_size: int, keep: int) -> None:
    for position in range(30):
        recent = range(max(0, position - (max_size - keep)), position)
        wanted = set(range(position)) if position <= max_size else {*range(keep), *recent}
        needs = RotatingKV(max_size, keep).needs(position)
        assert positions_in(needs) == wanted
        assert all(hi < lo for (_, hi), (lo, _) in pairwise(needs))


@pytest.mark.parametrize("chunk_size", [1, 4, 9])
def test_chunked_window_needs_the_last_chunk_size_rows(chunk_size: int) -> None:
    for position in range(30):
        needs = ChunkedKV(chunk_size).needs(position)
        assert positions_in(needs) == set(range(max(0, position - chunk_size), position))


def test_saturated_window_says_no_behind_its_rows() -> None:
    """mlx-lm's own caches were trimmed there and went on with rows of the wrong positions."""
    make, reading = partial(RotatingKVCache, 6), Reading([9, 1, 1, 1, 1])
    leaf = reading.live(make, 13)
    assert [p for p in range(15) if restored(leaf, make, reading, p, 1, 0)] == [0, 13]


def test_front_of_a_chunked_window_is_never_clamped() -> None:
    """`ChunkedKVCache.trim` stops at its front in silence and leaves the layers apart."""
    make, reading = partial(ChunkedKVCache, 4), Reading([5, 5, 5])
    leaf = reading.live(make, 15)
    assert leaf.start_position == 6
    assert [p for p in range(17) if restored(leaf, make, reading, p, 1, 0)] == [0, *range(10, 16)]


@given(
    lengths=st.lists(st.integers(1, 14), min_size=2, max_size=4),
    num_steps=st.integers(0, 9),
    max_size=st.integers(2, 8),
    data=st.data(),
)
def test_window_taken_out_of_a_batch_is_restored_like_one_that_ran_alone(
    lengths: list[int], num_steps: int, max_size: int, data: st.DataObject
) -> None:
    make = partial(RotatingKVCache, max_size)
    readings = [Reading([n, *[1] * num_steps], seed=i) for i, n in enumerate(lengths)]
    batch = RotatingKVCache.merge([r.live(make, n) for r, n in zip(readings, lengths)])
    for step in range(num_steps):
        rows = [r.feed(KVCache(), n + step, 1) for r, n in zip(readings, lengths)]
        batch.update_and_fetch(*(mx.concatenate(parts) for parts in zip(*rows)))
    index = data.draw(st.integers(0, len(lengths) - 1))
    leaf, total = batch.extract(index), readings[index].total
    assert restored(leaf, make, readings[index], total, 1, 0)
    for position in range(total + 2):
        pair = restored(leaf, make, readings[index], position, 2, 0)
        if pair is not None:
            assert_goes_on_alike(pair, [1, 3, 1])


@pytest.mark.parametrize("make", [partial(RotatingKVCache, 4), partial(ChunkedKVCache, 4)])
def test_window_that_saw_nothing_has_no_rows(make: MakeLeaf) -> None:
    leaf = make()
    state = row_state(leaf)
    assert state.kind is Kind.WINDOW
    assert state.rows(leaf) is NO_ROWS
    assert state.position(leaf) == 0


@pytest.mark.parametrize("make", [partial(RotatingKVCache, 4), partial(ChunkedKVCache, 4)])
def test_window_of_a_batch_is_refused(make: MakeLeaf) -> None:
    leaf = make()
    leaf.update_and_fetch(mx.zeros((2, 1, 3, 4)), mx.zeros((2, 1, 3, 4)))
    with pytest.raises(CacheFault, match="single sequence"):
        row_state(leaf).rows(leaf)


@pytest.mark.parametrize("position", [2, 5])
def test_window_with_rows_from_nowhere_is_refused(position: int) -> None:
    leaf = Reading([7]).live(partial(RotatingKVCache, 4), 7)
    leaf.offset = position
    with pytest.raises(CacheFault, match="holds 7 rows"):
        row_state(leaf).rows(leaf)


def test_chunked_window_with_a_front_behind_its_end_is_refused() -> None:
    leaf = Reading([7]).live(partial(ChunkedKVCache, 4), 7)
    leaf.start_position = 8
    with pytest.raises(CacheFault, match="too few rows"):
        row_state(leaf).rows(leaf)
