"""Rows as the tree holds them: cut down in place, put together in order."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.blocks import has_rows, held, nbytes_of, pieces_of, shrink
from keepwarm.cache.tree import Block, Span
from keepwarm.errors import CacheFault
from tests.state.memory import active_bytes, is_about


def block_of(lo: int, hi: int, width: int = 2) -> Block:
    """Rows that hold their own position, in two leaves."""
    rows = mx.broadcast_to(mx.arange(lo, hi).reshape(1, 1, -1, 1), (1, 1, hi - lo, width))
    arrays = {0: (mx.array(rows), rows + 0.5), 3: (rows * 2,)}
    mx.eval(list(arrays.values()))
    return Block(lo, hi, arrays, nbytes_of(arrays), b"")


@given(lo=st.integers(0, 9), size=st.integers(1, 12), data=st.data())
def test_shrink_keeps_the_rows_asked_for_and_says_what_was_freed(
    lo: int, size: int, data: st.DataObject
) -> None:
    block = block_of(lo, lo + size)
    first = data.draw(st.integers(lo, lo + size - 1))
    last = data.draw(st.integers(first + 1, lo + size))
    before = block.nbytes
    assert shrink(block, first, last) == before - block.nbytes
    assert (block.lo, block.hi, block.origin) == (first, last, lo)
    assert block.nbytes == nbytes_of(block.arrays) == before * (last - first) // size
    assert has_rows(block)
    assert block.arrays[0][0][0, 0, :, 0].tolist() == list(range(first, last))
    assert block.bytes_of(1) * (last - first) == block.nbytes


def test_shrink_lets_go_of_the_memory() -> None:
    before = active_bytes()
    block = block_of(0, 4000, width=64)
    freed = shrink(block, 100, 110)
    assert freed > 1 << 20
    assert is_about(active_bytes() - before, block.nbytes, 3)


@given(
    cuts=st.lists(st.integers(1, 19), unique=True).map(sorted),
    hole=st.none() | st.integers(0, 19),
    wanted=st.tuples(st.integers(0, 19), st.integers(1, 8)),
)
def test_pieces_are_the_rows_in_order_or_a_fault(
    cuts: list[int], hole: int | None, wanted: tuple[int, int]
) -> None:
    block = block_of(0, 20)
    edges = [0, *cuts, 20]
    spans = [Span(block, lo, hi) for lo, hi in pairwise(edges)]
    spans = [span for span in spans if hole is None or not span.lo <= hole < span.hi]
    lo, hi = wanted[0], wanted[0] + wanted[1]
    missing = [r for r in range(lo, hi) if not any(a <= r < b for a, b in held(spans))]
    if missing:
        with pytest.raises(CacheFault, match="are missing"):
            pieces_of(spans, 0, [(lo, hi)])
    else:
        rows = [p for keys, _ in pieces_of(spans, 0, [(lo, hi)]) for p in keys[0, 0, :, 0].tolist()]
        assert rows == list(range(lo, hi))
