"""How likely the tokens of the last scored prompts were: what another prompt begins with alike need
not be scored again. Plain data; the thread that owns the arrays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from keepwarm.prompt.boundaries import Tokens, shared_len

_MAX_PROMPTS = 64
_MAX_TOKENS = 1 << 18

# (log probability, whether it is the likeliest, the likeliest with theirs), of one token
Scored = tuple[float, bool, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class _Known:
    namespace: str
    tokens: Tokens
    start: int  # the first token that is scored
    num_top: int
    scores: list[Scored]


class ScoredPrompts:
    """Of those prompts that were scored last."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._num_put = 0
        self._num_tokens = 0

    def get(self, namespace: str, tokens: Tokens, start: int, num_top: int) -> list[Scored]:
        """The scores from `start` on, as many as are known. Mutates: they count as used."""
        best, best_len = None, start
        for key, known in self._known.items():
            is_fit = known.namespace == namespace and known.start <= start
            if is_fit and known.num_top == num_top:
                # A token's score depends on all before it, and on itself.
                shared = shared_len(known.tokens, tokens)
                if shared > best_len:
                    best, best_len = key, shared
        if best is None:
            return []
        self._known.move_to_end(best)
        found = self._known[best]
        return found.scores[start - found.start : best_len - found.start]

    def put(
        self, namespace: str, tokens: Tokens, start: int, num_top: int, scores: list[Scored]
    ) -> None:
        """Mutates."""
        self._known[self._num_put] = _Known(namespace, tokens, start, num_top, scores)
        self._num_put += 1
        self._num_tokens += len(tokens)
        while len(self._known) > _MAX_PROMPTS or self._num_tokens > _MAX_TOKENS:
            _, gone = self._known.popitem(last=False)
            self._num_tokens -= len(gone.tokens)

    def clear(self) -> None:
        """Mutates."""
        self._known.clear()
        self._num_tokens = 0
