"""From the engine's thread into an event loop. `post` is called on any thread, the rest happens in
the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Mailbox:
    """Wakes the loop once for all that came since it last looked.

    A wake-up is a write to a socket, for which Python's lock is given away: not once for each token
    of each stream, in the midst of the engine's step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._letters: deque[Callable[[], None]] = deque()
        self._is_rung = False

    def post(self, letter: Callable[[], None]) -> None:
        """`letter` is called in the loop, in the order of posting. Nothing happens when the loop
        has ended: nobody is left to tell."""
        self._letters.append(letter)
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._is_rung = False  # first: whoever posts from now on rings again
        while self._letters:
            self._letters.popleft()()
