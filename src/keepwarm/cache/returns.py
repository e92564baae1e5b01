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
# A rate that was not measured is taken for one use in the time waited so far; from this age on for no
# more than the rate before. Sooner nobody has read a reply, which says nothing of what comes later.
_FIRST_CHAINED = 4
_LEVELS = (0, 1, 2, 4)  # uses before, from which on a place counts as another


class Role(IntEnum):
    """What a checkpoint is on its path."""

    TIP = 0  # the end of a conversation: the next request goes on from here
    PREVIOUS = 1  # the last one before a tip: where an answer is asked for again
    INNER = 2  # any before that
    SHARED = 3  # where conversations part: tools + system, marks, branches


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
        self._log_chance = [
            [math.log(value) for value in _best_rates(_rates(uses, waited_s))]
            for uses, waited_s in zip(self._uses, self._waited_s, strict=True)
        ]


def _class_of(role: Role, num_uses: int) -> int:
    level = sum(num_uses >= least for least in _LEVELS) - 1
    return role * len(_LEVELS) + level


def _age_of(age_s: float) -> int:
    if age_s < 1.0:
        return 0
    return min(1 + int(math.log2(age_s)), _NUM_AGES - 1)


def _rates(uses: list[float], waited_s: list[float]) -> list[float]:
    """Uses a second at each age. What is believed unmeasured counts like one place that waited
    there."""
    rates: list[float] = []
    for age in range(_NUM_AGES):
        wait_s = _MIDDLES[age]
        believed = min(1 / wait_s, rates[-1]) if age >= _FIRST_CHAINED else 1 / wait_s
        seen = (uses[age] + believed * wait_s) / (waited_s[age] + wait_s)
        # That nobody came says no more than that it is less than one use in all that waiting.
        rates.append(max(seen, 1 / (waited_s[age] + 1 / believed)))
    return rates


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
