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


def test_ages_that_nobody_has_waited_for_yet_are_believed_to_fall_on_from_those_before() -> None:
    returns = Returns()
    for _ in range(10_000):
        returns.waited(Role.TIP, 0, 0.0, 64.0)
    for _ in range(100):
        returns.used(Role.TIP, 0, 50.0)
    returns.settle()
    seen = returns.chance(Role.TIP, 0, 40.0)
    assert seen / 20 < returns.chance(Role.TIP, 0, 200.0) < seen
    assert returns.chance(Role.TIP, 0, 1e6) < seen / 100


@pytest.mark.parametrize("num_places", [100, 200, 500])
def test_few_uses_do_not_make_the_youngest_the_best(num_places: int) -> None:
    """As likely at any age, and the young ages are short: that hardly anybody was seen to come so
    soon says nothing for them."""
    returns = Returns()
    for _ in range(num_places):
        returns.waited(Role.TIP, 0, 0.0, 64.0)
    for age_s, num_uses in ((10.0, 2), (20.0, 3), (40.0, 6)):
        for _ in range(num_uses):
            returns.used(Role.TIP, 0, age_s)
    returns.settle()
    assert returns.chance(Role.TIP, 0, 40.0) > returns.chance(Role.TIP, 0, 0.5) / 2.5


def test_ends_of_conversations_and_what_is_shared_are_believed_to_be_used_most() -> None:
    returns = Returns()
    chances = [returns.chance(role, 0, 10.0) for role in (Role.INNER, Role.PREVIOUS, Role.TIP)]
    assert chances == sorted(chances)
    assert chances[0] < chances[-1] / 100
    assert returns.chance(Role.SHARED, 0, 10.0) > chances[-1]


@given(role=ROLES, age_s=AGES)
def test_what_went_on_more_often_is_believed_to_go_on_more_often(role: Role, age_s: float) -> None:
    chances = [Returns().chance(role, num_uses, age_s) for num_uses in (0, 1, 2, 4)]
    assert chances == sorted(set(chances))


@given(num_places=st.integers(1, 10_000), wait_s=st.floats(1, 1e6), num_uses=st.integers(0, 10))
def test_that_nobody_came_says_no_more_than_less_than_one_use_in_all_that_waiting(
    num_places: int, wait_s: float, num_uses: int
) -> None:
    returns = Returns()
    for _ in range(num_places):
        returns.waited(Role.TIP, num_uses, 0.0, wait_s)
    returns.settle()
    least = 0.05 / (1 + (1 + num_uses) * num_places * wait_s / 256)
    for age_s in (0.1 * wait_s, 0.9 * wait_s):
        believed = Returns().chance(Role.TIP, num_uses, age_s)
        assert returns.chance(Role.TIP, num_uses, age_s) > least * believed


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


def test_how_often_ends_are_used_says_nothing_of_other_roles_beside_them() -> None:
    """Where all is used ten times as often, nothing is worth more beside the rest."""
    returns = measured(Role.TIP, 0, [10.0 + i % 50 for i in range(500)])
    before = Returns()
    for role in (Role.PREVIOUS, Role.INNER, Role.SHARED):
        raised = returns.chance(role, 0, 5.0) / before.chance(role, 0, 5.0)
        assert returns.chance(role, 1, 900.0) / before.chance(role, 1, 900.0) == pytest.approx(
            raised
        )
        assert raised > 2


@pytest.mark.parametrize("num_uses", [1, 5])
def test_what_was_measured_of_one_history_is_believed_of_another_until_that_has_its_own(
    num_uses: int,
) -> None:
    returns = measured(Role.TIP, 0, [10.0] * 100)
    believed = returns.chance(Role.TIP, num_uses, 5.0)
    assert believed > 10 * Returns().chance(Role.TIP, num_uses, 5.0)
    for _ in range(100):
        returns.waited(Role.TIP, num_uses, 0.0, 64.0)
    returns.settle()
    assert returns.chance(Role.TIP, num_uses, 5.0) < believed / 10
    assert returns.chance(Role.TIP, 0, 5.0) > 3 * returns.chance(Role.TIP, num_uses, 5.0)


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


def test_conversations_of_a_length_that_never_go_on_have_less_of_a_chance() -> None:
    returns = Returns()
    for _ in range(200):
        returns.waited(Role.TIP, 0, 0.0, 64.0, size=0)
        returns.waited(Role.TIP, 0, 0.0, 30.0, size=3)
        returns.used(Role.TIP, 0, 30.0, size=3)
    returns.settle()
    short, long, unseen = (returns.chance(Role.TIP, 0, 5.0, size) for size in (0, 3, 5))
    assert short < unseen / 10
    assert short < long / 50
