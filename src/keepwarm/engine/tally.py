"""What the engine counts. Engine thread; read by others as `Counters`."""

from __future__ import annotations

from collections import Counter

from keepwarm.engine.idle import Idle
from keepwarm.engine.sequence import Sequence
from keepwarm.engine.status import Counters
from keepwarm.events import Source


class Tally:
    """Totals since the start. Mutated by the engine as things happen."""

    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.inflight_tokens = 0
        self.prefilled_tokens = self.generated_tokens = self.preemptions = 0
        self._requests: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def matched(self, sequence: Sequence) -> None:
        """A request begins with what the cache had of it."""
        self.prompt_tokens += len(sequence.prompt)
        self.cached_tokens += sequence.cached_len
        if sequence.source is Source.INFLIGHT:
            self.inflight_tokens += sequence.cached_len
        self._reasons[sequence.reason] += 1

    def ended(self, how: str, num_tokens: int) -> None:
        self._requests[how] += 1
        self.generated_tokens += num_tokens

    def counters(self, idle: Idle) -> Counters:
        return Counters(
            requests=dict(self._requests),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            prefilled_tokens=self.prefilled_tokens,
            generated_tokens=self.generated_tokens,
            inflight_tokens=self.inflight_tokens,
            preemptions=self.preemptions,
            idle_tokens=idle.num_tokens,
            idle_s=idle.seconds,
            idle_saved_tokens=idle.num_saved,
            cached_by_reason=dict(self._reasons),
        )
