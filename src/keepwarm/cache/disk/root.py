"""The folder of all models: how much may lie there, how much may be written in a day, and what
other models have left. Every change is made under a lock of the folder. No mlx; any thread."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, monotonic, sleep, strftime

from keepwarm.cache.disk.files import Files
from keepwarm.cache.disk.format import is_file_name, is_folder_name
from keepwarm.errors import CacheFault, KeepwarmError

LOCK = "lock"  # of the root, and of each model's folder
SALT = "salt"
WRITTEN = "written.json"
# Of the file system, what is never taken: the share, and at most so many bytes.
_FLOOR_SHARE, _FLOOR_BYTES = 0.05, 10 << 30
# By default, of what is free, and at most so many bytes.
_DEFAULT_SHARE, _DEFAULT_BYTES = 0.1, 32 << 30
# So much of a day's bytes is taken at once, before it is written: a crash costs what is left of it.
_GRAINS = 64
_LOCK_S = 30.0


class NoRoom(KeepwarmError):
    """The cap would be passed by `excess` bytes."""

    def __init__(self, excess: int, others_bytes: int) -> None:
        super().__init__(f"{excess} bytes too many")
        self.excess = excess
        self.others_bytes = others_bytes


class DayOver(KeepwarmError):
    """No more may be written today."""


@dataclass(frozen=True, slots=True)
class Other:
    """A file of a model that is not served now."""

    path: Path
    nbytes: int
    used: float


class Root:
    """Where all models' folders lie."""

    def __init__(
        self, path: Path, own: Path, files: Files, *, max_bytes: int | None, day_bytes: int
    ) -> None:
        """`own` is the folder of the model at hand. Raises OSError."""
        if not path.exists():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        self.path = path
        self._own = own
        self._files = files
        self._day_bytes = day_bytes
        self._left = 0  # of the bytes that were taken for today
        self._day = ""
        self.max_bytes = max_bytes if max_bytes is not None else self._default_bytes()

    def _default_bytes(self) -> int:
        usage = shutil.disk_usage(self.path)
        held = self.others_bytes() + _size_of(self._own)
        return min(_DEFAULT_BYTES, int(_DEFAULT_SHARE * (usage.free + held)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile."""
        fd = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        """Raises TimeoutError: whoever holds it may have been stopped."""
        until = monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() > until:
                    raise TimeoutError(f"another process holds the lock of {self.path}") from None
                sleep(0.01)
            else:
                return

    # How much may lie here

    def take_room(self, own_bytes: int, nbytes: int) -> int:
        """Have room for `nbytes` beside the `own_bytes` of this model; returns what others hold.
        Under the lock. Raises NoRoom."""
        others = self.others_bytes()
        excess = own_bytes + others + nbytes - self.cap(own_bytes + others)
        if excess > 0:
            raise NoRoom(excess, others)
        return others

    def cap(self, held_bytes: int) -> int:
        """What may lie here: less than was asked for where the disk fills with other things."""
        usage = shutil.disk_usage(self.path)
        floor = min(_FLOOR_BYTES, int(_FLOOR_SHARE * usage.total))
        return max(0, min(self.max_bytes, held_bytes + usage.free - floor))

    def others_bytes(self) -> int:
        return sum(_size_of(folder) for folder in self._folders())

    def _folders(self) -> list[Path]:
        return [
            path
            for path in self.path.iterdir()
            if is_folder_name(path.name) and path.is_dir() and path.name != self._own.name
        ]

    def others(self) -> list[Other]:
        """The files of models that nobody serves now, the one used last at the end."""
        found: list[Other] = []
        for folder in self._folders():
            with taken(folder) as is_taken:
                if is_taken:
                    found += _files_in(folder)
        return sorted(found, key=lambda other: other.used)

    def delete_others(self, others: Sequence[Other]) -> None:
        """Unless their models are served meanwhile."""
        for other in others:
            with taken(other.path.parent) as is_taken:
                if is_taken:
                    self._files.unlink(other.path)

    # How much may be written

    def take_bytes(self, nbytes: int) -> None:
        """Count `nbytes` as written today, before they are. Under the lock. Raises DayOver."""
        day, written = self._written()
        if day != self._day:
            self._day, self._left = day, 0
        if nbytes > self._left:
            wanted = max(nbytes - self._left, self._day_bytes // _GRAINS)
            wanted = min(wanted, self._day_bytes - written)
            if self._left + wanted < nbytes:
                raise DayOver(f"{self._day_bytes} bytes were written today")
            self._save(day, written + wanted)
            self._left += wanted
        self._left -= nbytes

    def _written(self) -> tuple[str, int]:
        """The day and its bytes. A clock that goes back does not give them a second time."""
        today = strftime("%Y-%m-%d", gmtime())
        try:
            found = json.loads((self.path / WRITTEN).read_text(encoding="utf-8"))
            day, nbytes = str(found["day"]), int(found["bytes"])
        except FileNotFoundError:
            return today, 0
        except (ValueError, KeyError, TypeError):
            return today, self._day_bytes  # nobody knows: nothing more today
        return (today, 0) if today > day else (day, nbytes)

    def _save(self, day: str, nbytes: int) -> None:
        path = self.path / WRITTEN
        temporary = path.with_name(f"{WRITTEN}.tmp.{os.getpid()}")
        text = json.dumps({"day": day, "bytes": nbytes}).encode()
        self._files.unlink(temporary)
        fd = self._files.create(temporary)
        try:
            self._files.write(fd, [memoryview(text)])
            self._files.sync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, path)
        self._files.settle(self.path)

    @property
    def written_today(self) -> int:
        """As counted: what was taken and not written yet included."""
        return self._written()[1]

    # Names

    def salt(self) -> bytes:
        """Of this folder, so that namespaces cannot be guessed from the names in files. Raises
        CacheFault."""
        path = self.path / SALT
        with self.locked():
            if not path.exists():
                temporary = path.with_name(f"{SALT}.tmp.{os.getpid()}")
                self._files.unlink(temporary)
                fd = self._files.create(temporary)
                try:
                    self._files.write(fd, [memoryview(os.urandom(16))])
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
                self._files.rename(temporary, path)
                self._files.settle(self.path)
            salt = path.read_bytes()
        if len(salt) != 16:
            raise CacheFault(f"{path} is damaged: delete the folder {self.path}")
        return salt


@contextmanager
def taken(folder: Path) -> Iterator[bool]:
    """Whether nobody uses that model's folder; nobody does meanwhile."""
    fd = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _files_in(folder: Path) -> list[Other]:
    found = []
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_file() and is_file_name(entry.name):
                with suppress(FileNotFoundError):  # its owner has deleted it meanwhile
                    stat = entry.stat()
                    found.append(Other(Path(entry.path), stat.st_size, stat.st_mtime))
    return found


def _size_of(folder: Path) -> int:
    return sum(other.nbytes for other in _files_in(folder))
