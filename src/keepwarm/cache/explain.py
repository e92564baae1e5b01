"""What a match found, and why not more. Plain data, but for states that it leads to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from keepwarm.cache.tree import Node
from keepwarm.prompt.boundaries import Prompt

if TYPE_CHECKING:
    from keepwarm.cache.ends import End


class Reason(StrEnum):
    """Why a match is as long as it is."""

    EXACT = "exact"  # the whole prompt is stored, at least up to its generation prompt
    EXTENDED = "extended"  # the prompt goes on where a stored one ends
    BRANCHED = "branched"  # the prompt parts from a stored one
    COLD = "cold"  # nothing stored begins with its first message
    NO_CHECKPOINT = "no_checkpoint"  # something does, but no checkpoint lies before the parting
    EVICTED = "evicted"  # a longer match was there, and had to go
    NOT_STORED = "not_stored"  # it could have been there, but was worth less than all that is held
    OTHER_NAMESPACE = "other_namespace"  # stored, but not for this caller
    DISABLED = "disabled"  # this model's caches cannot be stored
    FAULT = "fault"  # a state was not what its place says; served cold

    @property
    def words(self) -> str:
        """The same for people."""
        return _WORDS[self]


_WORDS = {
    Reason.EXACT: "the whole prompt is stored",
    Reason.EXTENDED: "the prompt goes on where a stored one ends",
    Reason.BRANCHED: "the prompt parts from a stored one",
    Reason.COLD: "nothing stored begins with the first message of this prompt",
    Reason.NO_CHECKPOINT: "no checkpoint lies before the place where the prompts part",
    Reason.EVICTED: "a longer match was evicted to make room",
    Reason.NOT_STORED: "a longer match was not stored: what would have had to go is worth more",
    Reason.OTHER_NAMESPACE: "the prompt is stored in another namespace only",
    Reason.DISABLED: "the caches of this model cannot be stored",
    Reason.FAULT: "a stored state was not what its place says",
}


@dataclass(frozen=True, slots=True)
class Match:
    """The deepest usable position for a prompt. A match is a finding, not a hold: `pin` it."""

    prompt: Prompt
    namespace: str
    cached_len: int  # tokens that need no prefill
    parted_at: int  # tokens shared with the nearest stored prompt
    reason: Reason
    is_branch: bool = False  # a stored prompt goes on differently at `parted_at`
    node: Node | None = None  # the edge that `tree_len` lies on
    version: int = 0  # of the store when this was found
    end: End | None = None  # the state at the end of the prompt, beside the tree

    @property
    def tree_len(self) -> int:
        """As far as it lies in the tree."""
        return self.cached_len if self.end is None else self.end.anchor

    def __str__(self) -> str:
        total = len(self.prompt)
        return (
            f"{self.cached_len} of {total} tokens cached: {self.reason.words}"
            f" (shared with the nearest stored prompt: {self.parted_at})"
        )


class Refusal(StrEnum):
    """Why an insert stored nothing."""

    OVER_BUDGET = "over_budget"  # it cannot fit, whatever is evicted
    WORTH_LESS = "worth_less"  # than what would have to be evicted for it
    MISMATCH = "mismatch"  # the caches do not stand where the prompt says
    OFF_SCHEDULE = "off_schedule"  # exact mode: computed along other stops
    DISABLED = "disabled"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insert did."""

    position: int
    num_rows: int = 0  # new rows of the path
    nbytes: int = 0  # new bytes held
    wait_s: float = 0.0  # of the insert, waiting for the model to compute what was stored
    refusal: Refusal | None = None
    detail: str = ""

    @property
    def is_stored(self) -> bool:
        return self.refusal is None
