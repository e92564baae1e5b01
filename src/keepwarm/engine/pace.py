"""How much is read at a time while others wait for their next token. Pure, no mlx."""

from __future__ import annotations


class Pace:
    """A chunk length that takes about as long as others may be held up.

    Powers of two, so that few shapes are seen; halved when a chunk took too long, doubled when
    it took less than half of what it may.
    """

    MIN_LEN = 32

    def __init__(self, target_s: float, max_len: int) -> None:
        self._target_s = target_s
        self._max_len = max(self.MIN_LEN, max_len)
        self.chunk_len = min(256, self._max_len)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A chunk of that many tokens took so long. Mutates. A chunk cut short by a stop says
        only that a longer one would have taken no less."""
        if seconds > self._target_s and num_tokens <= self.chunk_len:
            self.chunk_len = max(self.MIN_LEN, self.chunk_len // 2)
        elif seconds < 0.45 * self._target_s and num_tokens >= self.chunk_len:
            self.chunk_len = min(self._max_len, self.chunk_len * 2)
