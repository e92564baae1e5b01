"""What a system saved over a trace. Plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Request


@dataclass(slots=True)
class Tally:
    """Tokens and seconds over all requests so far."""

    sizes: Sizes
    block_len: int
    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_s: float = 0.0  # without a cache
    saved_s: float = 0.0
    earned: Counter[str] = field(default_factory=Counter)  # cached tokens by kind of checkpoint
    peak_bytes: int = 0
    is_all_held: bool = False  # nothing had to go: with more room all would be the same

    def add(self, request: Request, cached_len: int, kind: str = "") -> None:
        """A request found `cached_len` blocks, through a checkpoint of that kind. Mutates."""
        # A model must read something to say what comes next.
        cached_tokens = min(cached_len * self.block_len, request.num_tokens - 1)
        self.num_requests += 1
        self.prompt_tokens += request.num_tokens
        self.cached_tokens += cached_tokens
        self.prefill_s += self.sizes.prefill_s(0, request.num_tokens)
        self.saved_s += self.sizes.prefill_s(0, cached_tokens)
        if cached_tokens and kind:
            self.earned[kind] += cached_tokens

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that needed no prefill."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
