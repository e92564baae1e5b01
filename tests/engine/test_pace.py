"""Pace: chunks as long as others may be held up."""

from __future__ import annotations

import pytest

from keepwarm.engine.pace import Pace


@pytest.mark.parametrize("token_s", [1e-6, 1e-4, 4e-4, 1e-3])
def test_settles_at_the_longest_chunk_within_the_target(token_s: float) -> None:
    pace = Pace(0.05, 2048)
    for _ in range(20):
        pace.observe(pace.chunk_len, token_s * pace.chunk_len)
    assert token_s * pace.chunk_len <= 0.05
    assert pace.chunk_len == 2048 or token_s * pace.chunk_len > 0.0225


def test_never_below_the_least_chunk() -> None:
    pace = Pace(0.05, 2048)
    for _ in range(20):
        pace.observe(pace.chunk_len, 10.0)
    assert pace.chunk_len == Pace.MIN_LEN


def test_short_chunk_that_was_fast_says_nothing() -> None:
    pace = Pace(0.05, 2048)
    before = pace.chunk_len
    pace.observe(3, 0.001)
    assert pace.chunk_len == before
