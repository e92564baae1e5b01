"""How soon what is held is used again, measured on the cache's own requests. Pure, no mlx.

A place waits until it is used. Uses and seconds of waiting are counted by the role of the place,
by how often it was used before, by the length of the conversation, and by how long it had waited by
then (ages that double):

    age        1   2   4   8   16   32 ...        of a tip that was extended twice
    uses       0   0   1   9   30   12
    waited   80s 160s ...                          rate = uses / seconds
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NUM_AGES = 24  # the last one begins after 48 days
_LEVELS = (0, 1, 2, 4)  # uses before, from which on a place counts as another
NUM_SIZES = 8  # of conversations

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


_EDGES = np.array([_edge(age) for age in range(_NUM_AGES + 1)])
_MIDDLES = np.sqrt(np.maximum(_EDGES[:-1], 0.5) * _EDGES[1:])

# What is believed is corrected by what was measured of all places that have these in common:
_ROLE, _LEVEL, _SIZE, _AGE = range(4)  # the axes of all counts
_IN_COMMON = [
    (_ROLE,),
    (_ROLE, _AGE),
    (_ROLE, _LEVEL),
    (_ROLE, _LEVEL, _AGE),
    (_ROLE, _LEVEL, _SIZE),
]


class Returns:
    """Counts of uses and of waiting, and the chance that follows from them."""

    def __init__(self) -> None:
        shape = len(Role), len(_LEVELS), NUM_SIZES, _NUM_AGES
        self._uses = np.zeros(shape)
        self._waited_s = np.zeros(shape)
        self._log_chance: list[list[list[list[float]]]] = []  # at the middle of each age
        self.settle()

    def used(self, role: Role, num_uses: int, age_s: float, size: int = 0) -> None:
        """A place that was used that often before was used again. Mutates."""
        self._uses[role, _level_of(num_uses), size, _age_of(age_s)] += 1

    def waited(self, role: Role, num_uses: int, from_s: float, to_s: float, size: int = 0) -> None:
        """A place waited from one age to another and was not used. Mutates."""
        ages = slice(_age_of(from_s), _age_of(to_s) + 1)
        upto = np.minimum(to_s, _EDGES[1:][ages])
        waited_s = upto - np.maximum(from_s, _EDGES[:-1][ages])
        self._waited_s[role, _level_of(num_uses), size, ages] += np.maximum(waited_s, 0.0)

    def chance(self, role: Role, num_uses: int, age_s: float, size: int = 0) -> float:
        """Uses to be expected for a second of holding it, if it is held as long as that pays
        best. As of when it was last settled."""
        logs = self._log_chance[role][_level_of(num_uses)][size]
        if age_s <= _FIRST_S:
            return math.exp(logs[0])
        at = math.log2(age_s) + 1.5  # the middle of age a (from 1 on) is 2 ** (a - 1 / 2)
        age = min(int(at - 1.0), _NUM_AGES - 2)
        part = min(at - 1.0 - age, 1.0)
        return math.exp((1 - part) * logs[age] + part * logs[age + 1])

    def settle(self) -> None:
        """Take what was counted into account. Mutates."""
        expected = (_BELIEVED * self._waited_s)[Role.TIP].sum()  # at one use a second
        per_s = (self._uses[Role.TIP].sum() + _BELIEF) / (expected + _BELIEF * _LASTS_S)
        self._log_chance = np.log(_best_rates(self._rates(per_s))).tolist()

    def _rates(self, per_s: float) -> Floats:
        """Uses a second of each class, at each age: what is believed, and what was measured of the
        role, of its ages, of how often a place was used before, and so on. So little is said by few
        uses, and what was measured of one class is believed of the next one until that has its own.
        """
        rates = np.broadcast_to(per_s * _BELIEVED, self._uses.shape).copy()
        for axes in _IN_COMMON:
            others = tuple(axis for axis in range(4) if axis not in axes)
            num_uses = self._uses.sum(axis=others, keepdims=True)
            expected = (rates * self._waited_s).sum(axis=others, keepdims=True)
            # Of a few as if that many more were as expected.
            rates *= (num_uses + _BELIEF) / (expected + _BELIEF)
        return rates


def _level_of(num_uses: int) -> int:
    return sum(num_uses >= least for least in _LEVELS) - 1


def _age_of(age_s: float) -> int:
    if age_s < 1.0:
        return 0
    return min(1 + int(math.log2(age_s)), _NUM_AGES - 1)


def _believed(role: Role, least_uses: int) -> Floats:
    """Uses beside those of a tip that was not used yet, at each age.

    What went on once will go on as often again, by the rule of succession. Of two the one used
    last is a little better. When all who read and think have come, chances fall like 1 / age²;
    what many share is come back to by others, and falls like 1 / age.
    """
    falls = 1 if role is Role.SHARED else 2
    most = _OF_ROLE[role] * (1 + least_uses)
    rates: Floats = most / _MIDDLES**0.25 / (1 + _MIDDLES / _LASTS_S) ** falls
    return rates


_FIRST_S = float(_MIDDLES[0])
# The length of a conversation says nothing before it was measured.
_BELIEVED = np.array([[[_believed(role, least)] for least in _LEVELS] for role in Role])


def _best_rates(rates: Floats) -> Floats:
    """For each age (the last axis) the most uses a second that holding on from there can give: over
    all ages at which one could give up, chance of a use until then / seconds held until then.

    Where the rate falls, that is the rate itself. Where it rises first, as while a reply is being
    read, a place is worth what will come.
    """
    # By expm1: a rate may be so low that one less it is one.
    parts = -np.expm1(-rates * np.diff(_EDGES))
    mean_s = parts / rates
    best = np.broadcast_to(rates[..., -1:], rates.shape).copy()
    used, held_s = np.zeros_like(rates), np.zeros_like(rates)  # from each age on, until the next
    for age in range(_NUM_AGES - 1):
        of = np.s_[..., : age + 1]
        held_s[of] += (1 - used[of]) * mean_s[..., age, None]
        used[of] += (1 - used[of]) * parts[..., age, None]
        # Nothing is held for no time unless it was used for certain before this age.
        best[of] = np.maximum(best[of], used[of] / np.maximum(held_s[of], 1e-300))
    return best
