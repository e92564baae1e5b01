"""How much is read at a time while others wait for their next token. Pure, no mlx."""

from __future__ import annotations

from collections import deque

# Rather than leave less than half a chunk, which costs a pass of its own, a chunk is so much longer.
CRUMB = 1.5


class Pace:
    """Chunks that take about as long as others may be held up, in powers of two.

    A chunk of n tokens takes a + b * n. b grows with the place in the prompt, so it is taken from
    the last chunk; a is seen whenever one of two chunks in a row is twice as long. Some devices pay for
    every new shape, so that a alone may pass the target: then a chunk is as long as makes b * n
    equal to a, since smaller pieces would only hold everyone up more often.
    """

    MIN_LEN = 32

    def __init__(self, target_s: float, max_len: int) -> None:
        self._target_s = target_s
        self._max_len = max(self.MIN_LEN, max_len)
        self._last: tuple[int, float] | None = None
        # The least of a few: a machine that was busy for a moment makes a look large.
        self._fixed_s: deque[float] = deque(maxlen=3)
        self.chunk_len = min(256, self._max_len)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A chunk of that many tokens took so long. Mutates."""
        if not self.chunk_len <= num_tokens <= CRUMB * self.chunk_len:
            return  # cut short by a stop, or read while nobody waited: it says little about others
        if self._last is not None and _are_apart(self._last[0], num_tokens):
            self._fixed_s.append(_intercept(self._last, (num_tokens, seconds)))
        self._last = (num_tokens, seconds)
        if not self._fixed_s and num_tokens > self.MIN_LEN:
            self.chunk_len = max(self.MIN_LEN, self.chunk_len // 2)  # to tell a from b
        else:
            self.chunk_len = self._best(num_tokens, seconds)

    def _best(self, num_tokens: int, seconds: float) -> int:
        fixed_s = min(seconds, *self._fixed_s) if self._fixed_s else 0.0
        token_s = max(seconds - fixed_s, 1e-12) / num_tokens
        wanted = max(self._target_s - fixed_s, fixed_s) / token_s
        limit = min(wanted, 2 * num_tokens)  # never far beyond what is known
        if limit >= self._max_len:
            return self._max_len
        length = self.MIN_LEN
        while 2 * length <= limit:
            length *= 2
        return length


def _are_apart(n: int, m: int) -> bool:
    """Whether two lengths tell what does not depend on them: of near ones noise would decide."""
    return max(n, m) >= 2 * min(n, m)


def _intercept(one: tuple[int, float], other: tuple[int, float]) -> float:
    """What a chunk without tokens would take, by two that differ in length."""
    (n, s), (m, t) = one, other
    return min(max(0.0, (s * m - t * n) / (m - n)), s, t)
