"""Marconi's order of eviction (MLSys 2025), for comparison. Pure, no mlx."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keepwarm.cache.policy import Candidate, CostModel


@dataclass(frozen=True, slots=True)
class Marconi:
    """Recency + weight x efficiency, both scaled to 0 ... 1 over what could go.

    Recency is one over the time since the last use, efficiency the computation saved (against
    the checkpoint before) for each byte.
    """

    cost: CostModel
    weight: float = 1.0
    refuses: ClassVar[bool] = False

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        # What was stored a moment ago is not a thousand times as recent as what was used a
        # second ago: that would make all the rest equally old.
        recency = scaled([1 / max(now - c.last_used, 1.0) for c in candidates])
        efficiency = scaled(
            [self.cost.prefill_s(c.fallback, c.position) / max(1, c.nbytes) for c in candidates]
        )
        scores = {
            id(c): r + self.weight * e
            for c, r, e in zip(candidates, recency, efficiency, strict=True)
        }
        return sorted(candidates, key=lambda c: (scores[id(c)], c.last_used))


def is_marconi(name: str) -> bool:
    """Whether that is `marconi`, or `marconi:2` with a weight."""
    return re.fullmatch(r"marconi(:\d+(\.\d+)?)?", name) is not None


def marconi_named(name: str, cost: CostModel) -> Marconi:
    """The policy of a name that `is_marconi`."""
    return Marconi(cost, float(name.partition(":")[2] or 1))


def scaled(values: Sequence[float]) -> list[float]:
    """The least becomes 0, the greatest 1; all of one value become 1."""
    if not values:
        return []
    lo, hi = min(values), max(values)
    return [(value - lo) / (hi - lo) if hi > lo else 1.0 for value in values]
