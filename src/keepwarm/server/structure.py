"""How much a JSON text holds, counted in its bytes before any object is made of it. Any thread; it
lets go of the interpreter while it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
# Large enough to be fast, small enough that what is made of it stays in the processor's cache.
_CHUNK_BYTES = 1 << 19

Bytes = NDArray[np.uint8]


def _table(characters: bytes) -> NDArray[np.int8]:
    made = np.zeros(256, dtype=np.int8)
    made[list(characters)] = 1
    return made


# Each value but the first of a container stands behind a comma, the first behind its opening.
_BEGINS = _table(b",[{")
_LEVELS = _table(b"[{") - _table(b"]}")


@dataclass(slots=True)
class Structure:
    """Of the bytes so far: how many values they hold at most, how deep they nest at most."""

    num_values: int = 1
    max_depth: int = 0
    _depth: int = 0
    _is_inside: bool = False  # of a string
    _num_backslashes: int = 0  # that the last bytes end with

    def exceeds(self, body: bytes, *, max_values: int, max_depth: int) -> bool:
        """Whether `body` goes beyond one of these; no further bytes are read then. Mutates."""
        whole = np.frombuffer(body, dtype=np.uint8)
        for start in range(0, len(whole), _CHUNK_BYTES):
            self._add(whole[start : start + _CHUNK_BYTES])
            if self.num_values > max_values or self.max_depth > max_depth:
                return True
        return False

    def _add(self, chunk: Bytes) -> None:
        is_toggled = np.zeros(len(chunk), dtype=bool)
        is_toggled[self._quotes(chunk)] = True
        is_inside = np.logical_xor.accumulate(is_toggled)
        if self._is_inside:
            is_inside = ~is_inside
        self._is_inside = bool(is_inside[-1])
        outside = chunk[~is_inside]
        self.num_values += int(np.count_nonzero(_BEGINS[outside]))
        levels = _LEVELS[outside]
        levels = levels[levels != 0]
        if len(levels):
            depths = self._depth + np.cumsum(levels, dtype=np.int64)
            self.max_depth = max(self.max_depth, int(depths.max()))
            self._depth = int(depths[-1])

    def _quotes(self, chunk: Bytes) -> NDArray[np.integer[Any]]:
        """Where strings begin and end: at quotes behind an even number of backslashes. Mutates."""
        quotes = np.flatnonzero(chunk == _QUOTE)
        backslashes = np.flatnonzero(chunk == _BACKSLASH)
        carried, self._num_backslashes = self._num_backslashes, 0
        if not len(backslashes):
            is_escaped = carried % 2 == 1 and chunk[0] == _QUOTE
            return quotes[1:] if is_escaped else quotes
        begins = backslashes[np.r_[True, np.diff(backslashes) != 1]]  # of each row of them
        # The last row that begins before each quote, and how long it is where it reaches it.
        row = np.searchsorted(begins, quotes) - 1
        reaches = np.r_[False, chunk == _BACKSLASH][quotes]
        lengths = np.where(reaches, quotes - begins[np.maximum(row, 0)], 0)
        lengths += np.where(quotes - lengths == 0, carried, 0)
        if chunk[-1] == _BACKSLASH:
            length = len(chunk) - int(begins[-1])
            self._num_backslashes = length + (carried if length == len(chunk) else 0)
        found: NDArray[np.integer[Any]] = quotes[lengths % 2 == 0]
        return found
