"""What lies in the folder of all models, looked at from outside: for commands, while a server may be
running. Reading needs no lock, since files never change; deleting leaves models alone that are
served. No mlx."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keepwarm.cache.disk.files import Files
from keepwarm.cache.disk.format import BadFile, FileKind, Header, is_file_name, is_folder_name
from keepwarm.cache.disk.root import LOCK, Other, Root, taken
from keepwarm.cache.disk.store import BAD, Folder

ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Held:
    """One model's files."""

    identity: str
    name: str  # as it was served
    mode: str
    num_files: int
    nbytes: int
    num_tokens: int  # of all prompts together; what they share counts once
    used: float  # the last time
    is_served: bool


def models_in(root: Path) -> list[Held]:
    """The one used last first."""
    found = [_held(folder) for folder in _folders(root)]
    return sorted((held for held in found if held.num_files), key=lambda held: -held.used)


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if is_folder_name(path.name) and path.is_dir())


def _held(folder: Path) -> Held:
    about = about_of(folder)
    files = list(_files(folder))
    with taken(folder) as is_free:
        is_served = not is_free
    return Held(
        identity=folder.name,
        name=about.get("name") or about.get("class", "unknown"),
        mode=about.get("mode", ""),
        num_files=len(files),
        nbytes=sum(file.nbytes for file in files),
        num_tokens=sum(_num_tokens(file.path) for file in files),
        used=max((file.used for file in files), default=0.0),
        is_served=is_served,
    )


def about_of(folder: Path) -> dict[str, str]:
    """What the model is known by; nothing where that cannot be read."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in found.items()}
    return {}


def _files(folder: Path) -> Iterator[Other]:
    for entry in os.scandir(folder):
        if entry.name.endswith(tuple(f".{kind}" for kind in FileKind)):
            with suppress(FileNotFoundError):  # a server deletes some now and then
                stat = entry.stat()
                yield Other(Path(entry.path), stat.st_size, stat.st_mtime)


def _num_tokens(path: Path) -> int:
    """From the name: the tokens whose rows a file holds."""
    parts = path.stem.split("-")
    with suppress(ValueError, IndexError):
        return int(parts[2]) - int(parts[1])
    return 0


def prompts_in(folder: Path) -> list[tuple[Header, Other]]:
    """The files that nothing follows, with their headers: the ends of what can be found again. The
    one used last first."""
    store = Folder(folder, folder.name)
    found: list[tuple[Header, Other]] = []
    for file in _files(folder):
        with suppress(BadFile, FileNotFoundError):
            found.append((store.header(file.path), file))
    parents = {header.parent for header, _ in found if header.kind is FileKind.ROWS}
    states = {header.parent for header, _ in found if header.kind is FileKind.STATE}
    ends = [
        (header, file)
        for header, file in found
        if header.name not in parents
        and (header.kind is FileKind.STATE or header.name not in states)
    ]
    return sorted(ends, key=lambda end: -end[1].used)


def verify(root: Path, on_file: Callable[[int], None]) -> list[tuple[Path, str]]:
    """Read every byte of every file; returns those that do not hold, and why. `on_file` is told the
    bytes of each."""
    faults: list[tuple[Path, str]] = []
    for folder in _folders(root):
        store = Folder(folder, folder.name)
        for file in _files(folder):
            try:
                store.check(file.path)
            except BadFile as fault:
                faults.append((file.path, str(fault)))
            except FileNotFoundError:
                pass
            except OSError as error:
                faults.append((file.path, error.strerror or str(error)))
            on_file(file.nbytes)
    return faults


@dataclass(frozen=True, slots=True)
class Deleted:
    num_files: int
    nbytes: int
    num_served: int  # models that were left alone


def prune(root: Path, *, max_bytes: int | None, before: float) -> Deleted:
    """Delete what was not used since `before`, and more, the oldest first, until at most `max_bytes`
    are left. Models that are served keep theirs."""
    files, num_served = _of_others(root)
    total = sum(_size(folder) for folder in _folders(root))
    going: list[Other] = []
    for file in files:
        is_over = max_bytes is not None and total > max_bytes
        if file.used < before or is_over or file.path.name.endswith(BAD):
            going.append(file)
            total -= file.nbytes
    return _delete(root, going, num_served)


def clear(root: Path, identities: set[str] | None) -> Deleted:
    """Delete all of these models, or of all; those that are served keep theirs."""
    files, num_served = _of_others(root, identities)
    deleted = _delete(root, files, num_served)
    for folder in _folders(root):
        if identities is None or folder.name in identities:
            with taken(folder) as is_free:
                if is_free and not list(_files(folder)):
                    for name in (ABOUT, LOCK):
                        (folder / name).unlink(missing_ok=True)
                    with suppress(OSError):  # something else lies there
                        folder.rmdir()
    return deleted


def _of_others(root: Path, identities: set[str] | None = None) -> tuple[list[Other], int]:
    """The files of models that nobody serves, the oldest first, and how many are served."""
    files: list[Other] = []
    num_served = 0
    for folder in _folders(root):
        if identities is None or folder.name in identities:
            with taken(folder) as is_free:
                num_served += not is_free
                if is_free:
                    files += _all_files(folder)
    return sorted(files, key=lambda file: file.used), num_served


def _all_files(folder: Path) -> Iterator[Other]:
    for path in filter(lambda path: is_file_name(path.name), folder.iterdir()):
        with suppress(FileNotFoundError):
            stat = path.stat()
            yield Other(path, stat.st_size, stat.st_mtime)


def _size(folder: Path) -> int:
    return sum(file.nbytes for file in _all_files(folder))


def _delete(root: Path, files: list[Other], num_served: int) -> Deleted:
    if files:
        owner = Root(root, root / "none", Files(), max_bytes=0, day_bytes=0)
        with owner.locked():
            owner.delete_others(files)
    return Deleted(len(files), sum(file.nbytes for file in files), num_served)
