"""What the disk tier asks of the operating system, in one place, so that tests can record it, lose
it or let it fail. No mlx; any thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Buffers that one call takes: what Linux and macOS allow.
_MAX_BUFFERS = 1024
_MODE = 0o600
_F_FULLFSYNC = 51  # macOS: write the drive's own cache out, too; fcntl names it there only
_F_NOCACHE = 48


class Files:
    """The real ones."""

    def create(self, path: Path) -> int:
        """A descriptor of a new file."""
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        self._uncached(fd)
        return fd

    def write(self, fd: int, buffers: Sequence[memoryview]) -> None:
        """All of the buffers, one after the other."""
        for at in range(0, len(buffers), _MAX_BUFFERS):
            self._write_some(fd, [b for b in buffers[at : at + _MAX_BUFFERS] if len(b)])

    def _write_some(self, fd: int, left: list[memoryview]) -> None:
        while left:
            left = _behind(left, os.writev(fd, left))

    def sync(self, fd: int) -> None:
        """What was written survives a power cut; on macOS once `settle` was called, too."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        self._forget_pages(fd)
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def settle(self, folder: Path) -> None:
        """Names in the folder, and what `sync` was called for, survive a power cut."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if sys.platform == "darwin":
                import fcntl

                fcntl.fcntl(fd, _F_FULLFSYNC)
            else:
                os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    # Reading

    def open(self, path: Path) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._uncached(fd)
        return fd

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fills the buffers, one after the other; returns how many bytes there were."""
        total = 0
        for at in range(0, len(buffers), _MAX_BUFFERS):
            left = [b for b in buffers[at : at + _MAX_BUFFERS] if len(b)]
            while left:
                count = os.preadv(fd, left, offset + total)
                if not count:
                    return total
                total += count
                left = _behind(left, count)
        return total

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    @staticmethod
    def _forget_pages(fd: int) -> None:
        """What was written is in memory already, and what was read is now."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    @staticmethod
    def _uncached(fd: int) -> None:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, _F_NOCACHE, 1)


def _behind(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of them behind the first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []
