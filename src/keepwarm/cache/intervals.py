"""Arithmetic on half-open intervals of token positions. Pure functions, no mlx."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same positions as sorted intervals that neither touch nor overlap."""
    result: list[Interval] = []
    for lo, hi in sorted(intervals):
        if lo >= hi:
            continue
        if result and lo <= result[-1][1]:
            result[-1] = (result[-1][0], max(hi, result[-1][1]))
        else:
            result.append((lo, hi))
    return result


def subtracted(wanted: Sequence[Interval], held: Sequence[Interval]) -> list[Interval]:
    """The parts of `wanted` that `held` (sorted, merged) does not cover."""
    missing: list[Interval] = []
    for lo, hi in wanted:
        for held_lo, held_hi in held:
            if held_hi <= lo or held_lo >= hi:
                continue
            if lo < held_lo:
                missing.append((lo, held_lo))
            lo = max(lo, held_hi)
        if lo < hi:
            missing.append((lo, hi))
    return missing


def clipped(intervals: Iterable[Interval], lo: int, hi: int) -> list[Interval]:
    """The parts that lie within `lo ... hi - 1`."""
    return [(max(a, lo), min(b, hi)) for a, b in intervals if max(a, lo) < min(b, hi)]


def length(intervals: Iterable[Interval]) -> int:
    return sum(hi - lo for lo, hi in intervals)
