"""What the cache has done and what it holds, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keepwarm.cache.ledger import Ledger
from keepwarm.cache.space import Space


@dataclass(frozen=True, slots=True)
class Stats:
    """A reading of the counters. `events` has one entry for each kind of event seen so far."""

    prompt_tokens: int
    cached_tokens: int
    num_checkpoints: int
    num_nodes: int
    num_tokens: int  # of all prompts together, what they share counted once
    num_namespaces: int
    rows_bytes: int
    snapshot_bytes: int
    peak_bytes: int
    budget_bytes: int
    events: dict[str, int]

    @classmethod
    def of(
        cls, counts: Counter[str], ledger: Ledger, spaces: Sequence[Space], num_ends: int
    ) -> Stats:
        """`num_ends` checkpoints lie beside the trees."""
        nodes = [node for space in spaces for node in space.tree.nodes()]
        events = {k: v for k, v in sorted(counts.items()) if not k.endswith("_tokens")}
        return cls(
            prompt_tokens=counts["prompt_tokens"],
            cached_tokens=counts["cached_tokens"],
            num_checkpoints=num_ends + sum(node.checkpoint is not None for node in nodes),
            num_nodes=len(nodes),
            num_tokens=sum(node.end - node.start for node in nodes),
            num_namespaces=len(spaces),
            rows_bytes=ledger.rows_bytes,
            snapshot_bytes=ledger.snapshot_bytes,
            peak_bytes=ledger.peak_bytes,
            budget_bytes=ledger.budget_bytes,
            events=events,
        )

    @property
    def held_bytes(self) -> int:
        return self.rows_bytes + self.snapshot_bytes

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that needed no prefill."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
