"""What all layer states rest on: copies that hold what they say, and no write that shows twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from keepwarm.errors import CacheFault
from keepwarm.state.base import Arrays, Rows, RowState, Run, SnapshotState, handle, joined, owned
from keepwarm.state.registry import state_of
from tests.state.feeding import Tape, are_same, contents
from tests.state.memory import active_bytes, is_about
from tests.state.restoring import MakeLeaf, Reading, row_state

LEAVES: dict[str, MakeLeaf] = {
    "kv": KVCache,
    "concatenate": ConcatenateKVCache,
    "quantized": partial(QuantizedKVCache, 32, 8),
    "rotating": partial(RotatingKVCache, 6),
    "rotating_keep": partial(RotatingKVCache, 6, 2),
    "chunked": partial(ChunkedKVCache, 4),
    "arrays": partial(ArraysCache, 2),
    "third_party": Tape,
}


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, :, 10:20],
        lambda a: a[:1],
        lambda a: a[0, 0, 5],
        lambda a: a[:, :, ::100],
        lambda a: a[0, 0, 0, 0],
        lambda a: a.swapaxes(1, 2)[:, 10:20],
        lambda a: a[:, :, :0],
    ],
    ids=["rows", "batch", "one row", "stride", "scalar", "axes", "nothing"],
)
def test_owned_copy_never_pins_the_buffer_it_was_cut_from(
    view: Callable[[mx.array], mx.array],
) -> None:
    before = active_bytes()
    large = mx.arange(4 * 2000 * 64, dtype=mx.float32).reshape(4, 1, 2000, 64)
    mx.eval(large)
    copy = owned(view(large))
    mx.eval(copy)
    assert bool(mx.array_equal(copy, view(large)).item())
    assert copy.shape == view(large).shape
    del large
    assert is_about(active_bytes() - before, copy.nbytes, 1)


def stored(leaf: Any, position: int) -> tuple[Any, list[mx.array]]:
    """A leaf as a cache would hold it, and all the arrays in it."""
    state = state_of(leaf)
    if isinstance(state, SnapshotState):
        snapshot = state.snapshot(leaf)
        mx.eval(snapshot.arrays)
        return snapshot, list(snapshot.arrays)
    assert isinstance(state, RowState)
    rows = state.rows(leaf)
    pieces: list[Arrays] = [rows.cut(lo, hi) for lo, hi in state.needs(position)]
    mx.eval(pieces)
    return pieces, [array for piece in pieces for array in piece]


def brought_back(leaf: Any, kept: Any, position: int) -> Any:
    state = state_of(leaf)
    if isinstance(state, SnapshotState):
        return state.restore(kept)
    assert isinstance(state, RowState)
    return state.rebuild(position, kept, 0)


@pytest.mark.parametrize("name", LEAVES)
def test_bytes_reported_are_bytes_held(name: str) -> None:
    reading = Reading([9, 1, 200, 1])
    leaf = reading.live(LEAVES[name], 211)
    mx.eval(leaf.state)
    kept, arrays = stored(leaf, 211)
    reported = sum(array.nbytes for array in arrays)
    del kept, leaf
    with_arrays = active_bytes()
    num_buffers = len(arrays)
    arrays.clear()
    assert is_about(with_arrays - active_bytes(), reported, num_buffers)


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_stored_never_sees_what_the_live_leaf_does_later(name: str) -> None:
    reading = Reading([9, 1, 5])
    leaf = reading.live(LEAVES[name], 15)
    kept, arrays = stored(leaf, 15)
    before = [mx.array(array.tolist(), array.dtype) for array in arrays]
    reading.feed(leaf, 15, 1)
    reading.feed(leaf, 16, 7)
    mx.eval(leaf.state)
    assert are_same(arrays, before)
    assert are_same(
        contents([brought_back(LEAVES[name](), kept, 15)]),
        contents([reading.live(LEAVES[name], 15)]),
    )


@pytest.mark.parametrize("name", LEAVES)
def test_two_restored_leaves_never_see_each_other_or_change_what_is_stored(name: str) -> None:
    reading, other = Reading([9, 1, 5]), Reading([9, 1, 5], seed=3)
    leaf = reading.live(LEAVES[name], 15)
    kept, arrays = stored(leaf, 15)
    before = [mx.array(array.tolist(), array.dtype) for array in arrays]
    one, two = brought_back(leaf, kept, 15), brought_back(leaf, kept, 15)
    for count in (1, 7, 1):
        reading.feed(one, 15, count)
        other.feed(two, 15, count)
        mx.eval(one.state, two.state)
    assert are_same(arrays, before)
    assert are_same(
        contents([brought_back(leaf, kept, 15)]), contents([reading.live(LEAVES[name], 15)])
    )


@pytest.mark.parametrize("name", LEAVES)
def test_write_into_an_array_of_a_restored_leaf_reaches_nothing_else(name: str) -> None:
    """As `cache[0][...] = x` does, in place."""
    leaf = Reading([9]).live(LEAVES[name], 9)
    kept, arrays = stored(leaf, 9)
    before = [mx.array(array.tolist(), array.dtype) for array in arrays]
    twin = brought_back(leaf, kept, 9)
    for array in _arrays_in(twin.state):
        array[...] = mx.zeros_like(array)
        mx.eval(array)
    assert are_same(arrays, before)


def _arrays_in(value: Any) -> list[mx.array]:
    if isinstance(value, mx.array):
        return [value]
    if isinstance(value, dict):
        return _arrays_in(list(value.values()))
    return (
        [a for item in value for a in _arrays_in(item)] if isinstance(value, list | tuple) else []
    )


@given(
    runs=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=3),
    lo=st.integers(0, 30),
    count=st.integers(1, 8),
)
def test_cut_gives_the_rows_of_those_positions_or_refuses(
    runs: list[tuple[int, int]], lo: int, count: int
) -> None:
    found, at, index = [], 0, 0
    for gap, length in runs:
        at += gap + bool(found)  # apart from the one before
        found.append(Run(at, at + length, index))
        at, index = at + length, index + length
    positions = [p for run in found for p in range(run.lo, run.hi)]
    rows = Rows((mx.array(positions).reshape(1, 1, -1, 1),), tuple(found))
    wanted = list(range(lo, lo + count))
    if any(run.lo <= lo and lo + count <= run.hi for run in found):
        assert rows.cut(lo, lo + count)[0].flatten().tolist() == wanted
    else:
        with pytest.raises(CacheFault, match="asked of a leaf that holds"):
            rows.cut(lo, lo + count)


def test_row_bytes_are_those_of_one_row_over_all_arrays() -> None:
    leaf = Reading([7]).live(LEAVES["quantized"], 7)
    rows = row_state(leaf).rows(leaf)
    assert rows.row_bytes * 7 == sum(array.nbytes for array in rows.cut(0, 7))


def test_signature_tells_shapes_and_dtypes_apart_but_not_lengths() -> None:
    def signature(length: int, width: int, dtype: mx.Dtype) -> Any:
        return Rows((mx.zeros((1, 2, length, width), dtype),), ()).signature

    assert signature(3, 4, mx.float32) == signature(9, 4, mx.float32)
    assert signature(3, 4, mx.float32) != signature(3, 5, mx.float32)
    assert signature(3, 4, mx.float32) != signature(3, 4, mx.bfloat16)


def test_second_name_for_an_array_does_not_see_writes() -> None:
    array = mx.zeros((4,))
    name = handle(array)
    name[0] = 1
    assert array.tolist() == [0, 0, 0, 0]
    array[1] = 2
    assert name.tolist() == [1, 0, 0, 0]


def test_joined_pieces_have_room_behind_them() -> None:
    array = joined([mx.ones((1, 1, 2, 3)), mx.ones((1, 1, 1, 3))], 4)
    assert array.shape == (1, 1, 7, 3)
    assert array[0, 0, :, 0].tolist() == [1, 1, 1, 0, 0, 0, 0]
