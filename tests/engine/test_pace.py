"""Pace: chunks as long as others may be held up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from keepwarm.engine.pace import CRUMB, Pace


def settled(cost: Callable[[int], float], target_s: float = 0.05, max_len: int = 2048) -> list[int]:
    """The lengths it takes after some time."""
    pace = Pace(target_s, max_len)
    lengths = []
    for _ in range(200):
        lengths.append(pace.chunk_len)
        pace.observe(pace.chunk_len, cost(pace.chunk_len))
    return lengths[20:]


def mostly(lengths: list[int]) -> int:
    return max(set(lengths), key=lengths.count)


@pytest.mark.parametrize("token_s", [1e-6, 1e-4, 4e-4, 1e-3])
def test_takes_the_longest_chunk_within_the_target(token_s: float) -> None:
    length = mostly(settled(lambda n: token_s * n))
    assert token_s * length <= 0.05
    assert length == 2048 or 2 * token_s * length > 0.05


def test_never_below_the_least_chunk() -> None:
    assert mostly(settled(lambda n: n * 1.0)) == Pace.MIN_LEN


@pytest.mark.parametrize("fixed_s", [0.04, 0.075, 1.0])
def test_where_every_chunk_costs_the_same_it_takes_the_longest(fixed_s: float) -> None:
    assert mostly(settled(lambda n: fixed_s + n * 1e-6)) == 2048


def test_where_a_fixed_cost_passes_the_target_it_reads_as_much_as_that_is_worth() -> None:
    length = mostly(settled(lambda n: 0.075 + n * 1e-4))  # 0.28 s for 2048
    assert length in (512, 1024)


def test_tries_longer_chunks_again_when_reading_got_faster() -> None:
    pace = Pace(0.05, 2048)
    for _ in range(50):
        pace.observe(pace.chunk_len, pace.chunk_len * 1e-3)
    assert pace.chunk_len == 32
    for _ in range(200):
        pace.observe(pace.chunk_len, pace.chunk_len * 1e-5)
    assert pace.chunk_len == 2048


def test_chunk_cut_short_by_a_stop_says_nothing() -> None:
    pace = Pace(0.05, 2048)
    before = pace.chunk_len
    pace.observe(3, 5.0)
    assert pace.chunk_len == before


def test_longest_chunk_need_not_be_a_power_of_two() -> None:
    assert mostly(settled(lambda n: n * 1e-9, max_len=700)) == 700


def test_one_slow_chunk_does_not_make_longer_ones_look_free() -> None:
    pace = Pace(0.05, 2048)
    lengths = []
    for i in range(300):
        lengths.append(pace.chunk_len)
        slow = 5.0 if i % 40 == 39 else 1.0  # the machine was busy for a moment
        pace.observe(pace.chunk_len, slow * pace.chunk_len * 1.1e-3)
        pace.observe(8, 0.009)  # a chunk that a stop cut short
    assert max(lengths[20:]) <= 64


def test_noise_keeps_it_near_the_target() -> None:
    rng = random.Random(1)
    lengths = settled(lambda n: n * 2e-4 * rng.uniform(1, 3))
    assert mostly(lengths) in (64, 128, 256)
    assert max(lengths) <= 512


def test_reading_that_gets_slower_deep_in_a_prompt_never_passes_twice_the_target() -> None:
    pace, position, taken = Pace(0.05, 2048), 0, []
    while position < 8000:
        length = pace.chunk_len
        seconds = 0.002 + length * (5e-5 + 1.5e-7 * position)
        pace.observe(length, seconds)
        taken.append((length, seconds))
        position += length
    assert max(seconds for _, seconds in taken) <= 0.1
    assert min(length for length, _ in taken) == 32


def test_learns_from_chunks_that_took_their_crumbs_along() -> None:
    """Of turns of 300 tokens, each read whole where 256 are allowed."""
    pace = Pace(0.05, 2048)
    for _ in range(10):
        length = 300 if pace.chunk_len * CRUMB >= 300 else pace.chunk_len
        pace.observe(length, length * 0.01)
    assert pace.chunk_len == Pace.MIN_LEN


def test_learns_nothing_from_what_nobody_waited_for() -> None:
    pace = Pace(0.05, 2048)
    for length in (2048, 700, 31):
        pace.observe(length, 1.0)
    assert pace.chunk_len == 256


def test_crumbs_do_not_hide_what_every_chunk_costs() -> None:
    """Of 256 and 260 tokens a little noise decides: no line is drawn through them."""
    pace = Pace(0.05, 2048)
    for _ in range(10):
        pace.observe(pace.chunk_len, 0.1 + 2e-4 * pace.chunk_len)
    settled_len = pace.chunk_len
    assert settled_len > Pace.MIN_LEN
    for noise in (0.97, 1.03):
        length = settled_len + 4
        pace.observe(length, noise * (0.1 + 2e-4 * length))
        for _ in range(5):
            pace.observe(pace.chunk_len, 0.1 + 2e-4 * pace.chunk_len)
        assert pace.chunk_len >= settled_len // 2
