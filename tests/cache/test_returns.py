"""Chances of use: what was measured, and what is believed before that."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.returns import Returns, Role

ROLES = st.sampled_from(Role)
AGES = st.floats(0, 1e8)


def measured(role: Role, num_uses: int, ages: list[float]) -> Returns:
    """Each use after its age."""
    returns = Returns()
    for age_s in ages:
        returns.waited(role, num_uses, 0.0, age_s)
        returns.used(role, num_uses, age_s)
    returns.settle()
    return returns


@given(role=ROLES, num_uses=st.integers(0, 100), age_s=AGES)
def test_before_anything_was_measured_the_one_used_last_has_the_best_chance(
    role: Role, num_uses: int, age_s: float
) -> None:
    chance = Returns().chance(role, num_uses, age_s)
    assert chance > 0
    assert Returns().chance(role, num_uses, 2 * age_s + 1) < chance or age_s > 2**22


def test_rate_that_was_measured_is_believed() -> None:
    """One use every 100 seconds, whatever the age."""
    returns = measured(Role.TIP, 0, [100.0 * (i % 7 + 1) / 4 for i in range(2000)])
    rate = 2000 / sum(100.0 * (i % 7 + 1) / 4 for i in range(2000))
    assert returns.chance(Role.TIP, 0, 30.0) == pytest.approx(rate, rel=0.5)


def test_what_is_about_to_come_counts() -> None:
    """All come back after 60 seconds, none before: the longer it has waited, the better."""
    returns = measured(Role.TIP, 1, [60.0] * 500)
    chances = [returns.chance(Role.TIP, 1, age_s) for age_s in (1.0, 15.0, 40.0)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(1 / 60, rel=0.3)


def test_what_never_came_back_is_given_up() -> None:
    used = measured(Role.TIP, 0, [10.0] * 50)
    dead = measured(Role.TIP, 0, [10.0] * 50)
    for _ in range(20):
        dead.waited(Role.TIP, 0, 0.0, 1e7)
    dead.settle()
    assert dead.chance(Role.TIP, 0, 1e4) < used.chance(Role.TIP, 0, 1e4) / 5


def test_ages_that_nobody_has_waited_for_yet_are_believed_to_be_like_those_before() -> None:
    returns = Returns()
    for _ in range(10_000):
        returns.waited(Role.TIP, 0, 0.0, 64.0)
    for _ in range(100):
        returns.used(Role.TIP, 0, 50.0)
    returns.settle()
    seen = returns.chance(Role.TIP, 0, 40.0)
    assert returns.chance(Role.TIP, 0, 200.0) == pytest.approx(seen, rel=0.1)
    assert returns.chance(Role.TIP, 0, 1e6) < seen / 100


@given(num_places=st.integers(1, 10_000), wait_s=st.floats(1, 1e6), num_uses=st.integers(0, 10))
def test_that_nobody_came_says_no_more_than_less_than_one_use_in_all_that_waiting(
    num_places: int, wait_s: float, num_uses: int
) -> None:
    returns = Returns()
    for _ in range(num_places):
        returns.waited(Role.INNER, num_uses, 0.0, wait_s)
    returns.settle()
    least = 1 / (num_places * wait_s + 10 * wait_s)
    assert all(returns.chance(Role.INNER, num_uses, part * wait_s) > least for part in (0.1, 0.9))


@given(waits=st.lists(st.floats(0, 1e9), max_size=50), num_uses=st.integers(0, 10))
def test_chance_is_never_nothing_however_long_nobody_came(
    waits: list[float], num_uses: int
) -> None:
    returns = Returns()
    for wait_s in waits:
        for _ in range(10):
            returns.waited(Role.INNER, num_uses, 0.0, wait_s)
    returns.settle()
    assert all(returns.chance(Role.INNER, num_uses, age_s) > 0 for age_s in (0.0, 10.0, 1e5, 1e9))


@pytest.mark.parametrize(("role", "num_uses"), [(Role.INNER, 0), (Role.TIP, 1), (Role.TIP, 5)])
def test_other_roles_and_other_histories_are_measured_apart(role: Role, num_uses: int) -> None:
    returns = measured(Role.TIP, 0, [10.0] * 100)
    assert returns.chance(role, num_uses, 5.0) == Returns().chance(role, num_uses, 5.0)


@given(cuts=st.lists(st.floats(0, 1e7), max_size=8), end_s=st.floats(0, 1e7))
def test_waiting_counts_the_same_in_one_piece_or_in_many(cuts: list[float], end_s: float) -> None:
    whole, pieces = Returns(), Returns()
    whole.waited(Role.SHARED, 3, 0.0, end_s)
    ends = [0.0, *sorted(cut for cut in cuts if cut < end_s), end_s]
    for lo, hi in pairwise(ends):
        pieces.waited(Role.SHARED, 3, lo, hi)
    for returns in (whole, pieces):
        returns.settle()
    for age_s in (0.5, 3.0, 100.0, 1e6):
        expected = whole.chance(Role.SHARED, 3, age_s)
        assert pieces.chance(Role.SHARED, 3, age_s) == pytest.approx(expected)
