"""How soon what is held is used again, measured on the cache's own requests. Pure, no mlx.

A place waits until it is used. Uses and seconds of waiting are counted by the role of the place,
by how often it was used before, and by how long it had waited by then (ages that double):

    age        1   2   4   8   16   32 ...        of a tip that was extended twice
    uses       0   0   1   9   30   12
    waited   80s 160s ...                          rate = uses / seconds
"""

from __future__ import annotations

import math
from enum import IntEnum
from itertools import pairwise

_NUM_AGES = 24  # the last one begins after 48 days
_LEVELS = (0, 1, 2, 4)  # uses before, from which on a place counts as another

# What is believed before it was measured, by what recorded sessions of people and of agents have in
# common. All of it is relative: how often anything is used at all is measured at once.
_LASTS_S = 256.0  # so long a chance stays about as it is: people read, tools run
_BELIEF = 2.0  # uses: what was measured counts for more from as many on


class Role(IntEnum):
    """What a checkpoint is on its path."""

    TIP = 0  # the end of a conversation: the next request goes on from here
    PREVIOUS = 1  # the last one before a tip: where an answer is asked for again
    INNER = 2  # any before that
    SHARED = 3  # where conversations part: tools + system, marks, branches


# Beside the end of a conversation, which most requests go on from. A snapshot within it is one of
# many, and what others share is used by all of them.
_OF_ROLE = {Role.TIP: 1.0, Role.PREVIOUS: 0.03, Role.INNER: 0.001, Role.SHARED: 10.0}


def _edge(age: int) -> float:
    """Where an age begins, in seconds."""
    return 0.0 if age == 0 else 2.0 ** (age - 1)


_EDGES = [_edge(age) for age in range(_NUM_AGES + 1)]
_MIDDLES = [math.sqrt(max(lo, 0.5) * hi) for lo, hi in pairwise(_EDGES)]


class Returns:
    """Counts of uses and of waiting, and the chance that follows from them."""

    def __init__(self) -> None:
        num_classes = len(Role) * len(_LEVELS)
        self._uses = [[0.0] * _NUM_AGES for _ in range(num_classes)]
        self._waited_s = [[0.0] * _NUM_AGES for _ in range(num_classes)]
        self._log_chance: list[list[float]] = []  # at the middle of each age
        self.settle()

    def used(self, role: Role, num_uses: int, age_s: float) -> None:
        """A place that was used that often before was used again. Mutates."""
        self._uses[_class_of(role, num_uses)][_age_of(age_s)] += 1

    def waited(self, role: Role, num_uses: int, from_s: float, to_s: float) -> None:
        """A place waited from one age to another and was not used. Mutates."""
        if to_s <= from_s:
            return
        counts = self._waited_s[_class_of(role, num_uses)]
        for age in range(_age_of(from_s), _NUM_AGES):
            lo, hi = max(from_s, _EDGES[age]), min(to_s, _EDGES[age + 1])
            if hi > lo:
                counts[age] += hi - lo
            if to_s <= _EDGES[age + 1]:
                return

    def chance(self, role: Role, num_uses: int, age_s: float) -> float:
        """Uses to be expected for a second of holding it, if it is held as long as that pays
        best. As of when it was last settled."""
        logs = self._log_chance[_class_of(role, num_uses)]
        if age_s <= _MIDDLES[0]:
            return math.exp(logs[0])
        at = math.log2(age_s) + 1.5  # the middle of age a (from 1 on) is 2 ** (a - 1 / 2)
        age = min(int(at - 1.0), _NUM_AGES - 2)
        part = min(at - 1.0 - age, 1.0)
        return math.exp((1 - part) * logs[age] + part * logs[age + 1])

    def settle(self) -> None:
        """Take what was counted into account. Mutates."""
        num_uses = sum(map(sum, self._uses[: len(_LEVELS)]))  # of tips, which come first
        per_s = (num_uses + _BELIEF) / (self._expected(Role.TIP) + _BELIEF * _LASTS_S)
        self._log_chance = [
            [math.log(value) for value in _best_rates(rates)]
            for role in Role
            for rates in self._rates(role, per_s)
        ]

    def _expected(self, role: Role) -> float:
        """The uses of a role if all were as it is believed, at one use a second."""
        return sum(
            rate * waited_s
            for k in _classes(role)
            for rate, waited_s in zip(_BELIEVED[k], self._waited_s[k], strict=True)
        )

    def _rates(self, role: Role, per_s: float) -> list[list[float]]:
        """Uses a second of each class of a role, at each age.

        What is believed is corrected by what was measured: of the role, of its ages, of how often
        a place was used before, and of both together. So little is said by few uses, and what was
        measured of one class is believed of the next one until that has its own.
        """
        classes = _classes(role)
        uses = [self._uses[k] for k in classes]
        waited_s = [self._waited_s[k] for k in classes]
        per_s *= _correction(sum(map(sum, uses)), per_s * self._expected(role))
        rates = [[per_s * rate for rate in _BELIEVED[k]] for k in classes]
        for age in range(_NUM_AGES):
            expected = sum(of[age] * by[age] for of, by in zip(waited_s, rates, strict=True))
            by_age = _correction(sum(of[age] for of in uses), expected)
            for of in rates:
                of[age] *= by_age
        for of, used, waited in zip(rates, uses, waited_s, strict=True):
            expected = sum(rate * wait_s for rate, wait_s in zip(of, waited, strict=True))
            by_level = _correction(sum(used), expected)
            for age in range(_NUM_AGES):
                of[age] *= by_level
                of[age] *= _correction(used[age], of[age] * waited[age])
        return rates


def _classes(role: Role) -> range:
    return range(role * len(_LEVELS), (role + 1) * len(_LEVELS))


def _class_of(role: Role, num_uses: int) -> int:
    level = sum(num_uses >= least for least in _LEVELS) - 1
    return role * len(_LEVELS) + level


def _age_of(age_s: float) -> int:
    if age_s < 1.0:
        return 0
    return min(1 + int(math.log2(age_s)), _NUM_AGES - 1)


def _believed(role: Role, least_uses: int) -> list[float]:
    """Uses beside those of a tip that was not used yet, at each age.

    What went on once will go on as often again, by the rule of succession. Of two the one used
    last is a little better. When all who read and think have come, chances fall like 1 / age²;
    what many share is come back to by others, and falls like 1 / age.
    """
    falls = 1 if role is Role.SHARED else 2
    most = _OF_ROLE[role] * (1 + least_uses)
    return [most / age_s**0.25 / (1 + age_s / _LASTS_S) ** falls for age_s in _MIDDLES]


_BELIEVED = [_believed(role, least_uses) for role in Role for least_uses in _LEVELS]


def _correction(num_uses: float, expected: float) -> float:
    """By how much there are more uses than expected, of a few as if that many more were as
    expected."""
    return (num_uses + _BELIEF) / (expected + _BELIEF)


def _best_rates(rates: list[float]) -> list[float]:
    """For each age the most uses a second that holding on from there can give: over all ages at
    which one could give up, chance of a use until then / seconds held until then.

    Where the rate falls, that is the rate itself. Where it rises first, as while a reply is being
    read, a place is worth what will come.
    """
    best: list[float] = []
    for start in range(_NUM_AGES):
        used, held_s, most = 0.0, 0.0, rates[-1]
        for age in range(start, _NUM_AGES - 1):
            # By expm1: a rate may be so low that one less it is one.
            part = -math.expm1(-rates[age] * (_EDGES[age + 1] - _EDGES[age]))
            held_s += (1 - used) * part / rates[age]
            used += (1 - used) * part
            if not held_s:  # used for certain before this age
                break
            most = max(most, used / held_s)
        best.append(most)
    return best
