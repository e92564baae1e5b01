"""What to evict first. Policies rank candidates and know nothing of trees or arrays. No mlx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keepwarm.cache.placement import StopKind
from keepwarm.errors import BadInput


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that can be dropped on its own: a leaf of the tree, or a snapshot within it."""

    handle: Any  # the store's own; opaque here
    nbytes: int  # freed by dropping it
    position: int  # where it lets a prefill start
    fallback: int  # where the prefill would start without it
    kind: StopKind | None  # of its checkpoint, when it has one
    created: float
    last_used: float
    hits: int
    chance: float = 0.0  # uses to be expected for a second of holding it, as measured
    is_leaf: bool = True  # its rows go with it; otherwise its snapshots only


class CostModel(Protocol):
    """How long a prefill takes on this model and this machine."""

    def observe(self, start: int, end: int, seconds: float) -> None:
        """A prefill of positions `start ... end - 1` took `seconds`. Mutates."""

    def prefill_s(self, start: int, end: int) -> float:
        """The expected seconds for a prefill of positions `start ... end - 1`."""


class MeasuredCost:
    """Seconds = a * tokens + b * tokens * depth, fitted to what was measured.

    The second term is attention, whose cost for a token grows with what lies before it. The
    fit forgets slowly, so that it follows a machine that gets slower or faster.
    """

    _FORGET = 0.98
    _GUESS_S = 1e-3  # a token, before anything was measured

    def __init__(self) -> None:
        # Normal equations of the two features x = tokens and y = tokens * depth / 1000.
        self._xx = self._xy = self._yy = self._xs = self._ys = 0.0

    def observe(self, start: int, end: int, seconds: float) -> None:
        x, y = _features(start, end)
        if x <= 0 or seconds <= 0:
            return
        # Each observation counts by its share of tokens, so that tiny chunks do not rule.
        keep, weight = self._FORGET, 1.0 / x
        self._xx = keep * self._xx + weight * x * x
        self._xy = keep * self._xy + weight * x * y
        self._yy = keep * self._yy + weight * y * y
        self._xs = keep * self._xs + weight * x * seconds
        self._ys = keep * self._ys + weight * y * seconds

    def prefill_s(self, start: int, end: int) -> float:
        x, y = _features(start, end)
        a, b = self._coefficients()
        return a * x + b * y

    def _coefficients(self) -> tuple[float, float]:
        if not self._xx:
            return self._GUESS_S, 0.0
        det = self._xx * self._yy - self._xy * self._xy
        if det > 1e-9 * self._xx * self._yy:
            a = (self._xs * self._yy - self._ys * self._xy) / det
            b = (self._ys * self._xx - self._xs * self._xy) / det
            if a > 0 and b >= 0:
                return a, b
        return self._xs / self._xx, 0.0


def _features(start: int, end: int) -> tuple[float, float]:
    tokens = float(end - start)
    return tokens, tokens * (start + end) / 2000.0


class Policy(Protocol):
    """Ranks what could be dropped."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        """The candidates, the least worth keeping first."""


# A snapshot within a conversation that spares as many tokens is worth as much as one at its end.
SPAN = 1024


@dataclass(frozen=True, slots=True)
class Worth:
    """Chance of use x (seconds of prefill saved / bytes), both measured; of leaves by the root.

    By the root because one use is one use: by the plain ratio a few very long prompts that may
    never come back outweigh all that is in use, and it loses more than it gains. A snapshot within
    a conversation weighs the same however much it spares, and each that goes leaves more to the
    next one: by the root the last one of a very long conversation went as easily as the first.
    """

    cost: CostModel
    span: int = SPAN  # positions

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        usual = self._usual(candidates)
        return sorted(candidates, key=lambda c: (self._worth(c, usual), c.last_used))

    def _worth(self, candidate: Candidate, usual: float) -> float:
        """What holding it gives."""
        saved_s = self.cost.prefill_s(candidate.fallback, candidate.position)
        ratio = saved_s / max(1, candidate.nbytes)
        return candidate.chance * (math.sqrt(usual * ratio) if candidate.is_leaf else ratio)

    def _usual(self, candidates: Sequence[Candidate]) -> float:
        """Seconds a byte of a snapshot that spares `span` positions; of nothing but leaves one
        is as good as another."""
        weights = [c.nbytes for c in candidates if not c.is_leaf]
        if not sum(weights):
            return 1.0
        return self.cost.prefill_s(0, self.span) * len(weights) / sum(weights)


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    """For comparison: the one that was not used for the longest time goes first."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.last_used, -c.position))


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """For comparison: the oldest goes first, however often it was used."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.created, -c.position))


@dataclass(frozen=True, slots=True)
class TypePriority:
    """For comparison: mlx-lm's order. Replies go before prompts, and those before system
    prompts, unless a later class is more numerous; within a class `within` decides, in mlx-lm
    the oldest goes first."""

    within: Policy = FirstInFirstOut()

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        queues: list[list[Candidate]] = [[], [], []]
        for candidate in self.within.order(candidates, now):
            queues[_mlx_lm_class(candidate.kind)].append(candidate)
        ranked: list[Candidate] = []
        while any(queues):
            assistant, user, system = map(len, queues)
            if assistant and assistant >= user:
                ranked.append(queues[0].pop(0))
            elif user and user >= system:
                ranked.append(queues[1].pop(0))
            elif system:
                ranked.append(queues[2].pop(0))
            else:
                ranked.append((queues[0] or queues[1]).pop(0))
        return ranked


def _mlx_lm_class(kind: StopKind | None) -> int:
    if kind is StopKind.SYSTEM:
        return 2
    return 1 if kind in (StopKind.TAIL, StopKind.MESSAGE, StopKind.MARK) else 0


POLICIES = ("worth", "lru", "fifo", "type")


def policy_named(name: str, cost: CostModel) -> Policy:
    """The policy of that name, one of `POLICIES`."""
    match name:
        case "worth":
            return Worth(cost)
        case "lru":
            return LeastRecentlyUsed()
        case "fifo":
            return FirstInFirstOut()
        case "type":
            return TypePriority()
    raise BadInput(f"no policy is called {name!r}: use one of {', '.join(POLICIES)}")
