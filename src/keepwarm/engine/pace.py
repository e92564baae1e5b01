"""How much is read at a time while others wait for their next token. Pure, no mlx."""

from __future__ import annotations


class Pace:
    """Chunks that take about as long as others may be held up, in powers of two.

    Where a longer chunk costs hardly more than a short one (some devices pay for every new
    shape), the longer one is taken: to read in small pieces there would only hold everyone up
    more often.
    """

    MIN_LEN = 32

    # A chunk twice as long is as good as free when it takes less than this much more.
    _FREE = 1.5
    # Chunks after which what a length took is forgotten: it is another place in another prompt.
    _MEMORY = 64

    def __init__(self, target_s: float, max_len: int) -> None:
        self._target_s = target_s
        self._max_len = max(self.MIN_LEN, max_len)
        self._seconds: dict[int, float] = {}  # by chunk length
        self._seen_at: dict[int, int] = {}
        self._num_seen = 0
        self.chunk_len = min(256, self._max_len)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A chunk of that many tokens took so long. Mutates."""
        self._num_seen += 1
        if num_tokens == self.chunk_len:  # one cut short by a stop says little
            before = self._seconds.get(num_tokens, seconds)
            self._seconds[num_tokens] = (before + seconds) / 2
            self._seen_at[num_tokens] = self._num_seen
        for length, seen_at in list(self._seen_at.items()):
            if self._num_seen - seen_at > self._MEMORY:
                del self._seconds[length], self._seen_at[length]
        if self._seconds:
            self.chunk_len = min(self._best(), 2 * self.chunk_len)

    def _best(self) -> int:
        """From the shortest length up, as long as the next one is within the target or free."""
        length = self.MIN_LEN
        while length < self._max_len:
            longer = min(2 * length, self._max_len)
            now, then = self._expected(length), self._expected(longer)
            if then > self._target_s and then >= self._FREE * now:
                break
            length = longer
        return length

    def _expected(self, length: int) -> float:
        """What was seen; else at least what a shorter one took, and at most what a longer one
        did, halved with the length: hopeful, so that it is tried."""
        if length in self._seconds:
            return self._seconds[length]
        shorter = [s for n, s in self._seconds.items() if n < length]
        longer = [s * length / n for n, s in self._seconds.items() if n > length]
        return max([*shorter, min(longer, default=0.0)])
