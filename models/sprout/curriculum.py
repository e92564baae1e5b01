"""When training lengthens its rows, and how fast it learns when. Pure: the clock is an argument.

Recall forms at short lengths first and carries over to longer ones only once it is there, so a
length is left when recall passes the mark, and by the clock only when the time left demands it.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

LENGTHS = (192, 384, 768, 1536, 2560, 4096)


@dataclass(frozen=True)
class Plan:
    """Everything is driven by training seconds, summed over resumed runs."""

    total_s: float
    lengths: tuple[int, ...] = LENGTHS
    pass_mark: float = 0.9
    shorter_share: float = 0.25  # of the batches, once there are shorter lengths
    last_shorter_share: float = 0.6  # at the last stage: short rows hold many more dialogues
    num_warmup_steps: int = 100
    decay_share: float = 0.2  # of the time, at the end: the learning rate falls to nothing
    last_share: float = 0.1  # of the time, before the decay: kept free for the longest rows
    min_stage_share: float = 0.03  # of the time: what every stage gets even when late

    @property
    def decay_from_s(self) -> float:
        return self.total_s * (1 - self.decay_share)

    def deadline_s(self, stage: int) -> float:
        """When `stage` must end for the later ones, the last included, to have their least."""
        num_between = len(self.lengths) - 2 - stage
        kept = self.last_share + num_between * self.min_stage_share
        return self.decay_from_s - self.total_s * kept


@dataclass
class Move:
    """One step to longer rows, for the log."""

    at_s: float
    to_len: int
    recall: float
    is_forced: bool  # by the clock, with recall still below the mark


@dataclass
class Curriculum:
    plan: Plan
    stage: int = 0
    moves: list[Move] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.plan.lengths[self.stage]

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.plan.lengths) - 1

    def observe(self, elapsed_s: float, recall: float) -> Move | None:
        """Take a measured recall at the present length; moves on at most one stage."""
        is_passed = recall > self.plan.pass_mark
        if self.is_last or not (is_passed or elapsed_s >= self.plan.deadline_s(self.stage)):
            return None
        self.stage += 1
        move = Move(elapsed_s, self.length, recall, is_forced=not is_passed)
        self.moves.append(move)
        return move

    def pick_length(self, rng: random.Random, elapsed_s: float) -> int:
        """The row length of the next batch: mostly the present one; while decaying, any."""
        if elapsed_s >= self.plan.decay_from_s:
            return rng.choice(self.plan.lengths[: self.stage + 1])
        share = self.plan.last_shorter_share if self.is_last else self.plan.shorter_share
        if self.stage and rng.random() < share:
            return rng.choice(self.plan.lengths[: self.stage])
        return self.length

    def rate(self, elapsed_s: float, step: int) -> float:
        """Share of the full learning rate: warm up by steps, hold, fall linearly by the clock."""
        warm = min(1.0, (step + 1) / self.plan.num_warmup_steps)
        left_s = max(0.0, self.plan.total_s - elapsed_s)
        return warm * min(1.0, left_s / (self.plan.total_s - self.plan.decay_from_s))

    def state(self) -> dict[str, Any]:
        return {"stage": self.stage, "moves": [asdict(move) for move in self.moves]}

    def restore(self, state: dict[str, Any]) -> None:
        self.stage = state["stage"]
        self.moves = [Move(**move) for move in state["moves"]]
