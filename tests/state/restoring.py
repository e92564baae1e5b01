"""What every leaf has to prove: `can_restore` says yes exactly where cutting and rebuilding give a
cache that goes on like one that read the same tokens, and where it says no the cut is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import strategies as st
from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.base import Arrays, Interval, Rows, RowState
from keepwarm.state.registry import state_of
from tests.state.feeding import Hashes, are_same, feed, prefix_hashes

MakeLeaf = Callable[[], Any]

# Steps of one token as in decoding, chunks as in prefill, and sometimes one that makes the
# buffers of mlx-lm grow, which they do by 256 rows.
CHUNKS = st.lists(
    st.one_of(st.just(1), st.integers(1, 9), st.integers(1, 9), st.sampled_from([30, 250, 257])),
    min_size=1,
    max_size=8,
)


@dataclass(frozen=True)
class Reading:
    """A sequence of tokens, read in chunks of these lengths."""

    chunks: Sequence[int]
    seed: int = 0
    dtype: mx.Dtype = field(default=mx.float32)

    @property
    def total(self) -> int:
        return sum(self.chunks)

    def upto(self, position: int) -> list[int]:
        """The chunks of a reading that ends at `position`."""
        ends, found = 0, []
        for chunk in self.chunks:
            found.append(min(chunk, position - ends))
            ends += found[-1]
            if ends == position:
                break
        return found if position else []

    def feed(self, leaf: Any, start: int, count: int) -> list[mx.array]:
        """Let `leaf`, which stands at `start`, read `count` tokens at once. Mutates."""
        return feed(leaf, _hashes(self.seed)[start : start + count], dtype=self.dtype)

    def live(self, make: MakeLeaf, position: int) -> Any:
        """A leaf that has read the first `position` tokens."""
        leaf, at = make(), 0
        for count in self.upto(position):
            self.feed(leaf, at, count)
            at += count
        return leaf


@cache
def _hashes(seed: int) -> Hashes:
    """Those of some 5,000 tokens, more than any reading has."""
    return prefix_hashes([(seed * 31 + i * i) % 97 for i in range(5000)])


@dataclass(frozen=True)
class Restored:
    """A rebuilt leaf beside one that read the same tokens itself."""

    leaf: Any
    reference: Any
    position: int
    reading: Reading


def row_state(leaf: Any) -> RowState:
    state = state_of(leaf)
    assert isinstance(state, RowState)
    return state


def restored(
    leaf: Any, make: MakeLeaf, reading: Reading, position: int, num_pieces: int, reserve: int
) -> Restored | None:
    """`leaf` cut and rebuilt at `position`; None when it says that this cannot be.

    Proves that a no is a no, too.
    """
    state = row_state(leaf)
    rows = state.rows(leaf)
    if not state.can_restore(position, rows.held):
        with pytest.raises(CacheFault):
            _cut(rows, state.needs(position), num_pieces)
        return None
    pieces = _cut(rows, state.needs(position), num_pieces)
    rebuilt = state.rebuild(position, pieces, reserve) if position else state.fresh()
    assert state.position(rebuilt) == position
    return Restored(rebuilt, reading.live(make, position), position, reading)


def _cut(rows: Rows, wanted: Sequence[Interval], num_pieces: int) -> list[Arrays]:
    pieces = []
    for lo, hi in wanted:
        size = max(1, (hi - lo) // num_pieces)
        pieces += [rows.cut(at, min(at + size, hi)) for at in range(lo, hi, size)]
    return pieces


def assert_goes_on_alike(pair: Restored, chunks: Sequence[int]) -> None:
    """Both leaves read `chunks`; all that they show on the way is the same, bit for bit."""
    at = pair.position
    for count in chunks:
        if isinstance(pair.leaf, ChunkedKVCache):
            pair.leaf.maybe_trim_front()
            pair.reference.maybe_trim_front()
            assert pair.leaf.start_position == pair.reference.start_position
        in_step = not _is_rotated(pair.reference)
        assert pair.leaf.offset == pair.reference.offset == at
        assert are_same(_masks(pair.leaf, count, in_step), _masks(pair.reference, count, in_step))
        got = pair.reading.feed(pair.leaf, at, count)
        expected = pair.reading.feed(pair.reference, at, count)
        if not in_step:
            got = _oldest_first(pair.leaf, got)
            expected = _oldest_first(pair.reference, expected)
        assert are_same(got, expected)
        at += count


def _is_rotated(leaf: Any) -> bool:
    """Whether a window holds its rows in the order of a ring, as single steps leave it.

    A rebuilt one always begins with the oldest row: the same rows in another order.
    """
    return (
        isinstance(leaf, RotatingKVCache)
        and leaf.keys is not None
        and leaf.offset > leaf.max_size
        and leaf._idx < leaf.keys.shape[2]
    )


def _oldest_first(leaf: Any, fetched: Sequence[mx.array]) -> list[mx.array]:
    return [leaf._temporal_order(array) for array in fetched]


def _masks(leaf: Any, count: int, in_step: bool) -> list[Any]:
    if not hasattr(leaf, "make_mask"):
        return []
    window_sizes = [None, 3] if in_step else [None]  # a narrower mask follows the ring's order
    return [
        leaf.make_mask(count, window_size=size, return_array=as_array)
        for size in window_sizes
        for as_array in (False, True)
    ]
