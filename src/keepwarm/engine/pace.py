"""How much is read at a time while others wait for their next token. Pure, no mlx."""

from __future__ import annotations

from collections import deque


class Pace:
    """Chunks that take about as long as others may be held up, in powers of two.

    What a chunk of n tokens takes is seen as a + b * n. Some devices pay for every new shape, so
    that a alone may pass the target: then a chunk is as long as makes b * n equal to a, since
    smaller pieces would only hold everyone up more often.
    """

    MIN_LEN = 32

    # Chunks after which what a length took is forgotten: it is another place in another prompt.
    _MEMORY = 64
    # Of the last times of a length the least counts: a machine busy with something else is no
    # measure.
    _NUM_TIMES = 3

    def __init__(self, target_s: float, max_len: int) -> None:
        self._target_s = target_s
        self._max_len = max(self.MIN_LEN, max_len)
        self._seen: deque[tuple[int, float]] = deque(maxlen=self._MEMORY)
        self.chunk_len = min(256, self._max_len)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A chunk of that many tokens took so long. Mutates."""
        if num_tokens != self.chunk_len:
            return  # cut short by a stop: it says little about whole ones
        self._seen.append((num_tokens, seconds))
        times = self._times()
        if len(times) == 1 and num_tokens > self.MIN_LEN:
            self.chunk_len = max(self.MIN_LEN, num_tokens // 2)  # to tell a from b
        else:
            self.chunk_len = self._best(times)

    def _times(self) -> dict[int, float]:
        """The least recent time of each length."""
        recent: dict[int, list[float]] = {}
        for length, seconds in reversed(self._seen):
            if len(recent.setdefault(length, [])) < self._NUM_TIMES:
                recent[length].append(seconds)
        return {length: min(times) for length, times in recent.items()}

    def _best(self, times: dict[int, float]) -> int:
        fixed_s, token_s = _line(times)
        wanted = max(self._target_s - fixed_s, fixed_s) / token_s
        limit = min(wanted, 2 * max(times), self._max_len)  # never far beyond what is known
        length = self.MIN_LEN
        while 2 * length <= limit:
            length *= 2
        return self._max_len if limit == self._max_len else length


def _line(times: dict[int, float]) -> tuple[float, float]:
    """(a, b) of the straight line through what was measured; neither is negative."""
    mean_n, mean_s = sum(times) / len(times), sum(times.values()) / len(times)
    spread = sum((n - mean_n) ** 2 for n in times)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in times.items()) / spread if spread else 0.0
    token_s = max(slope if spread else mean_s / mean_n, 1e-12)
    return max(0.0, mean_s - token_s * mean_n), token_s
