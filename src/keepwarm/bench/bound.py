"""The most that any cache could have spared: what a prompt shares with one seen before. Plain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Seen:
    """All that a server has read and said. Its layers do not matter: with a checkpoint at the
    right place every kind could have been restored there."""

    def __init__(self) -> None:
        self._all: list[NDArray[np.int64]] = []

    def add(self, prompt: Sequence[int], reply: Sequence[int] = ()) -> None:
        """A prompt was read, and a reply decoded after it. Mutates."""
        self._all.append(np.array([*prompt, *reply], dtype=np.int64))

    def max_cached_len(self, prompt: Sequence[int]) -> int:
        """All but one token at most: a model must read something to say what comes next."""
        asked = np.array(prompt, dtype=np.int64)
        longest = max((_shared_len(asked, seen) for seen in self._all), default=0)
        return min(longest, len(asked) - 1)


def _shared_len(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    upto = min(len(a), len(b))
    differ = np.flatnonzero(a[:upto] != b[:upto])
    return int(differ[0]) if len(differ) else upto
