"""A terminal with a program in it, and a person who reads and types."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SRC = Path(__file__).parents[3] / "src"
WAIT_S = 60.0

_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


def environment(state: Path, **more: str) -> dict[str, str]:
    """No history of whoever runs the tests, and no C++ compiler for every new function."""
    return {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "XDG_STATE_HOME": str(state),
        "MLX_DISABLE_COMPILE": "1",
        "TERM": "xterm-256color",
        "COLUMNS": "100",
        **more,
    }


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "keepwarm.cli.main", "chat", *args]


class Terminal:
    """`shown` is all that the program wrote; what was waited for is behind `_seen`."""

    def __init__(self, popen: subprocess.Popen[bytes], file: int) -> None:
        self.popen = popen
        self.shown = ""
        self._file = file
        self._seen = 0

    def wait_for(self, words: str) -> str:
        """What was written up to and with `words`, as it looks, since they were last waited for."""
        until = time.monotonic() + WAIT_S
        while (found := plain(self.shown).find(words, self._seen)) < 0:
            assert time.monotonic() < until, f"{words!r} never came: {plain(self.shown)}"
            assert self._read(), f"it ended without {words!r}: {plain(self.shown)}"
        end = found + len(words)
        since, self._seen = plain(self.shown)[self._seen : end], end
        return since

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C, no sooner than a person can: one that comes between readline's prompt and its
        waiting is only noticed at the next key."""
        time.sleep(1.0)
        self.type("\x03")

    def say(self, text: str) -> str:
        """One turn: what was shown up to the next prompt."""
        self.type(text + "\r")
        return self.wait_for("you> ")

    def status(self) -> int:
        while self._read():
            pass
        return self.popen.wait(WAIT_S)

    def _read(self) -> bool:
        """Whether there is more to come."""
        if not select.select([self._file], [], [], 1.0)[0]:
            return self.popen.poll() is None
        try:
            piece = os.read(self._file, 1 << 16)
        except OSError:  # the program has closed it
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)


def plain(text: str) -> str:
    return _MOVES.sub("", text)


@contextmanager
def terminal(args: list[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    popen = subprocess.Popen(
        args, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - it calls one function of the kernel
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(popen, ours)
    finally:
        popen.kill()
        popen.wait()
        os.close(ours)


def _take_terminal() -> None:
    """So that Ctrl-C typed there reaches the program, and is not ignored: a shell has what it runs
    in the background ignore it, these tests perhaps."""
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
