"""What to evict first. Policies rank candidates and know nothing of trees or arrays. No mlx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

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

    @property
    def refuses(self) -> bool:
        """Whether what is to be stored is ranked with what is held, and not stored when its turn
        comes before there is room for it. Otherwise it is always stored."""

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        """The candidates, the least worth keeping first."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Chance of use x seconds of prefill saved / bytes, all of them measured."""

    cost: CostModel
    refuses: bool = True

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (self.worth_of(c), c.last_used))

    def worth_of(self, candidate: Candidate) -> float:
        """What holding a byte of it for a second gives."""
        saved_s = self.cost.prefill_s(candidate.fallback, candidate.position)
        return candidate.chance * saved_s / max(1, candidate.nbytes)


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    """For comparison: the one that was not used for the longest time goes first."""

    refuses: ClassVar[bool] = False

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.last_used, -c.position))


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """For comparison: the oldest goes first, however often it was used."""

    refuses: ClassVar[bool] = False

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.created, -c.position))


@dataclass(frozen=True, slots=True)
class TypePriority:
    """For comparison: mlx-lm's order. Replies go before prompts, and those before system
    prompts, unless a later class is more numerous; within a class `within` decides, in mlx-lm
    the oldest goes first."""

    within: Policy = FirstInFirstOut()
    refuses: ClassVar[bool] = False

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


_PROMPTS = (StopKind.TAIL, StopKind.MESSAGE, StopKind.USER, StopKind.MARK)


def _mlx_lm_class(kind: StopKind | None) -> int:
    if kind is StopKind.SYSTEM:
        return 2
    return 1 if kind in _PROMPTS else 0


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
    raise BadInput(f"there is no policy {name!r}; use one of {', '.join(POLICIES)}")
