"""Half-open intervals do what sets of positions do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.intervals import Interval, clipped, length, merged, subtracted

INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


def positions(intervals: list[Interval]) -> set[int]:
    return {position for lo, hi in intervals for position in range(lo, hi)}


@given(intervals=INTERVALS)
def test_merged_intervals_are_apart_and_cover_the_same(intervals: list[Interval]) -> None:
    found = merged(intervals)
    assert positions(found) == positions(intervals)
    assert all(lo < hi for lo, hi in found)
    assert all(before < after for (_, before), (after, _) in pairwise(found))
    assert length(found) == len(positions(intervals))


@given(wanted=INTERVALS, held=INTERVALS)
def test_subtracted_is_what_is_not_covered(wanted: list[Interval], held: list[Interval]) -> None:
    wanted = merged(wanted)
    found = subtracted(wanted, merged(held))
    assert positions(found) == positions(wanted) - positions(held)
    assert length(found) == len(positions(found))


@given(intervals=INTERVALS, lo=st.integers(0, 20), hi=st.integers(0, 20))
def test_clipped_is_what_lies_within(intervals: list[Interval], lo: int, hi: int) -> None:
    found = clipped(intervals, lo, hi)
    assert positions(found) == positions(intervals) & set(range(lo, hi))
    assert all(a < b for a, b in found)
