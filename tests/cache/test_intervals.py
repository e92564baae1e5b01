"""Half-open intervals do what sets of positions do: all small ones are tried."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, product

from keepwarm.cache.intervals import Interval, clipped, length, merged, subtracted

ALL = list(combinations_with_replacement(range(6), 2))  # empty ones, too
LISTS = [list(some) for count in range(4) for some in product(ALL[::2], repeat=count)]
PAIRS = [list(some) for count in range(3) for some in product(ALL, repeat=count)]


def positions(intervals: list[Interval]) -> set[int]:
    return {position for lo, hi in intervals for position in range(lo, hi)}


def test_merged_intervals_are_apart_and_cover_the_same() -> None:
    for intervals in LISTS + PAIRS:
        found = merged(intervals)
        assert positions(found) == positions(intervals)
        assert all(lo < hi for lo, hi in found)
        assert all(before < after for (_, before), (after, _) in pairwise(found))
        assert length(found) == len(positions(intervals))


def test_subtracted_is_what_is_not_covered() -> None:
    for wanted, held in product(PAIRS[::3], PAIRS[::2]):
        found = subtracted(merged(wanted), merged(held))
        assert positions(found) == positions(wanted) - positions(held)
        assert length(found) == len(positions(found))


def test_clipped_is_what_lies_within() -> None:
    for intervals, (lo, hi) in product(PAIRS, ALL):
        found = clipped(intervals, lo, hi)
        assert positions(found) == positions(intervals) & set(range(lo, hi))
        assert all(a < b for a, b in found)
