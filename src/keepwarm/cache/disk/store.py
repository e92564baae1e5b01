"""One model's folder: its lock, its files, each verified whenever it is read. No mlx.

A write: x.tmp.<pid> → written → synced → renamed → the folder synced → acknowledged.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import numpy as np

from keepwarm.cache.disk.files import Files
from keepwarm.cache.disk.format import (
    PREFIX_LEN,
    BadFile,
    FileKind,
    Header,
    check_payload,
    decode,
    digest_of,
    encode,
    rest_len,
    sums_of,
)
from keepwarm.cache.disk.index import File
from keepwarm.cache.disk.root import LOCK
from keepwarm.errors import KeepwarmError

_FIRST_READ = 64 << 10  # of a header: most are shorter
TMP = ".tmp."
BAD = ".bad"


class Taken(KeepwarmError):
    """Another process owns the folder."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Positions `lo ... hi - 1` of the token axis of an array, the last but one; all of it where
    `lo` is None. `view` is of bytes."""

    view: memoryview
    shape: tuple[int, ...]
    item_bytes: int
    lo: int | None = None
    hi: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """A file to be written: a header, and for each of its arrays what it is made of."""

    header: Header
    arrays: tuple[tuple[Slice, ...], ...]


@dataclass(frozen=True, slots=True)
class Get:
    """A file to be read into `buffers`, if it is the one that the index knows and its keys before
    `hi` are those of the path."""

    header: Header  # as in the index, without keys
    hi: int
    path_keys: bytes  # of the prompt, from its start
    buffers: tuple[memoryview, ...]


class Folder:
    """The files of one model. Used by the threads that do the reading and writing; only one of
    them writes."""

    def __init__(self, path: Path, identity: str, files: Files | None = None) -> None:
        self.path = path
        self.identity = identity
        self.counts: Counter[str] = Counter()
        self._files = files or Files()
        self._lock: int | None = None

    def take(self) -> None:
        """Own the folder until this process ends. Raises Taken, or OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise Taken(f"another process uses {self.path}") from error
        self._lock = fd

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # What is there

    def scan(self) -> list[File]:
        """The files whose headers hold; deletes what no one will use again."""
        found: list[File] = []
        with os.scandir(self.path) as entries:
            listed = [entry for entry in entries if entry.name.endswith(_OURS) or _is_junk(entry)]
        for entry in listed:
            path = Path(entry.path)
            try:
                if _is_junk(entry):
                    self.counts["collected"] += 1
                    self._files.unlink(path)
                    continue
                header = self.header(path)
                stat = entry.stat()
                found.append(File(header, stat.st_size, min(stat.st_mtime, time())))
            except BadFile as fault:
                self.counts[f"bad_{fault.kind}"] += 1
                self._files.unlink(path)
        return found

    def header(self, path: Path) -> Header:
        """Read and verified. Raises BadFile, or OSError."""
        fd = self._files.open(path)
        try:
            data, size = self._read_header(fd)
        finally:
            self._files.close(fd)
        header, _ = decode(data, size)
        self._check_own(header, path.name)
        return header

    def _check_own(self, header: Header, name: str) -> None:
        if header.identity != self.identity:
            raise BadFile("identity", "a file of another model")
        if header.name != name:
            raise BadFile("place", "a file under another one's name")

    def _read_header(self, fd: int) -> tuple[bytes, int]:
        size = self._files.size(fd)
        data = bytearray(min(size, _FIRST_READ))
        self._read_all(fd, [memoryview(data)], 0)
        total = PREFIX_LEN + rest_len(bytes(data[:PREFIX_LEN]))
        if total > size:
            raise BadFile("length", f"{size} bytes, and a header of {total}")
        if total > len(data):
            more = bytearray(total - len(data))
            self._read_all(fd, [memoryview(more)], len(data))
            data += more
        return bytes(data[:total]), size

    def _read_all(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        if self._files.read(fd, buffers, offset) != wanted:
            raise BadFile("length", "the file is cut short")

    # Reading and writing

    def get(self, get: Get) -> int:
        """Fills the buffers and verifies them; returns the bytes read. Raises BadFile, or OSError.
        Until it has returned, nothing in the buffers may be believed."""
        known = get.header
        try:
            fd = self._files.open(self.path / known.name)
        except FileNotFoundError as error:
            raise BadFile("missing", f"{known.name} is gone") from error
        try:
            data, size = self._read_header(fd)
            header, sums = decode(data, size)
            self._check_own(header, known.name)
            if header.digest != known.digest:
                raise BadFile("place", "another file than the one that was found here")
            _check_keys(header, get.hi, get.path_keys)
            self._read_all(fd, get.buffers, len(data))
            check_payload(get.buffers, sums)
            return size
        finally:
            self._files.close(fd)

    def check(self, path: Path) -> None:
        """Read all of a file. Raises BadFile, or OSError."""
        fd = self._files.open(path)
        try:
            data, size = self._read_header(fd)
            header, sums = decode(data, size)
            self._check_own(header, path.name)
            payload = memoryview(bytearray(header.payload_bytes))
            self._read_all(fd, [payload], len(data))
            check_payload([payload], sums)
        finally:
            self._files.close(fd)

    def put(self, put: Put) -> File:
        """Writes a file, synced and under its name; the name itself is safe once `settle` was
        called. Raises OSError, and leaves nothing behind if it can."""
        buffers = [gathered(array) for array in put.arrays]
        head, header = encode(put.header, sums_of(buffers))
        target = self.path / header.name
        temporary = self.path / f"{header.name}{TMP}{os.getpid()}"
        try:
            self._write(temporary, [memoryview(head), *buffers])
            self._files.rename(temporary, target)
        except OSError:
            self._discard(temporary)
            raise
        return File(header, len(head) + header.payload_bytes, header.created)

    def _write(self, path: Path, buffers: Sequence[memoryview]) -> None:
        fd = self._files.create(path)
        try:
            self._files.write(fd, buffers)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _discard(self, path: Path) -> None:
        try:
            self._files.unlink(path)
        except OSError:
            self.counts["left_behind"] += 1

    def settle(self) -> None:
        """What was put is safe once this has returned."""
        self._files.settle(self.path)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._files.unlink(self.path / name)

    def set_aside(self, name: str) -> None:
        """A bad file is kept until the next start, to be looked at."""
        path = self.path / name
        if path.exists():
            self._files.rename(path, path.with_name(path.name + BAD))

    def touch(self, names: Sequence[str], now: float) -> None:
        """They were used."""
        for name in names:
            try:
                os.utime(self.path / name, (now, now))
            except FileNotFoundError:
                self.counts["bad_missing"] += 1


_OURS = tuple(f".{kind}" for kind in FileKind)


def _is_junk(entry: os.DirEntry[str]) -> bool:
    return TMP in entry.name or entry.name.endswith(BAD)


def _check_keys(header: Header, hi: int, path_keys: bytes) -> None:
    """Raises BadFile unless the file belongs to a path with these keys, as far as `hi`."""
    start, end = header.lo * header.width, hi * header.width
    # Of rows a part may do, but not none; of a state all.
    is_part = header.lo < hi <= header.hi if header.kind is FileKind.ROWS else hi == header.hi
    if not is_part or len(path_keys) < end:
        raise BadFile("place", f"tokens {header.lo}..{header.hi}, not those before {hi}")
    path = memoryview(path_keys)
    if digest_of(path[:start]) != header.before:
        raise BadFile("place", "the file follows other tokens")
    if header.keys[: end - start] != path[start:end]:
        raise BadFile("place", "the file holds other tokens")


def gathered(pieces: Sequence[Slice]) -> memoryview:
    """The bytes of an array that is made of these pieces, end to end on the token axis."""
    if len(pieces) == 1 and _is_whole(pieces[0]):
        return pieces[0].view
    parts = [_rows(piece) for piece in pieces]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-2)
    flat: Any = np.ascontiguousarray(joined).reshape(-1)
    return memoryview(flat)


def _is_whole(piece: Slice) -> bool:
    return piece.lo is None or (piece.lo == 0 and piece.hi == piece.shape[-2])


def _rows(piece: Slice) -> Any:
    *before, last = piece.shape
    flat = np.frombuffer(piece.view, dtype=np.uint8)
    return flat.reshape(*before, last * piece.item_bytes)[..., piece.lo : piece.hi, :]
