"""What was done to a disk, and all that can be left of it when the power goes: of what was not
synced nothing, everything, or anything but one thing; or a write that is torn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keepwarm.cache.disk.files import Files

_BLOCK = 512


@dataclass(frozen=True)
class Op:
    kind: str
    path: Path
    data: bytes = b""
    target: Path | None = None


@dataclass
class Recording(Files):
    """The real operations, and a list of them."""

    ops: list[Op] = field(default_factory=list)
    open_files: dict[int, Path] = field(default_factory=dict)

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.open_files[fd] = path
        self.ops.append(Op("create", path))
        return fd

    def write(self, fd: int, buffers: Sequence[memoryview]) -> None:
        super().write(fd, buffers)
        self.ops.append(Op("write", self.open_files[fd], b"".join(buffers)))

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.ops.append(Op("sync", self.open_files[fd]))

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_files.pop(fd, None)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.ops.append(Op("rename", source, target=target))

    def settle(self, folder: Path) -> None:
        super().settle(folder)
        self.ops.append(Op("settle", folder))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.ops.append(Op("unlink", path))


@dataclass(frozen=True)
class Left:
    """What a crash leaves: the content of each file; and the names that were acknowledged by then,
    and not given up."""

    files: dict[Path, bytes]
    acknowledged: frozenset[str]
    story: str


def crashes(ops: Sequence[Op], every: int = 1) -> Iterator[Left]:
    """What is left when the power goes before each `every`-th operation, and at the end."""
    for count in [*range(0, len(ops), every), len(ops)]:
        done = list(ops[:count])
        loose = [i for i, op in enumerate(done) if not _is_safe(done, i)]
        acknowledged = _acknowledged(done)
        yield Left(_played(done, set(), {}), acknowledged, f"{count}: all")
        yield Left(_played(done, set(loose), {}), acknowledged, f"{count}: nothing unsynced")
        for i in loose:
            yield Left(_played(done, {i}, {}), acknowledged, f"{count}: all but {done[i].kind} {i}")
            yield Left(
                _played(done, set(loose) - {i}, {}),
                acknowledged,
                f"{count}: only {done[i].kind} {i}",
            )
            if done[i].kind == "write":
                keep = len(done[i].data) // 2 // _BLOCK * _BLOCK
                yield Left(_played(done, set(), {i: keep}), acknowledged, f"{count}: torn {i}")


def _is_safe(ops: Sequence[Op], i: int) -> bool:
    """Whether a sync that came later makes it last."""
    op = ops[i]
    if op.kind in ("sync", "settle"):
        return True
    if op.kind == "write":
        return any(later.kind == "sync" and later.path == op.path for later in ops[i:])
    return any(later.kind == "settle" and later.path == op.path.parent for later in ops[i:])


def _played(ops: Sequence[Op], lost: set[int], torn: dict[int, int]) -> dict[Path, bytes]:
    """A file that was created under one name and renamed has its data under the other, whether
    its data came or not."""
    files: dict[Path, bytes] = {}
    where: dict[Path, Path] = {}  # a name that a descriptor was opened under, and what it is now
    for i, op in enumerate(ops):
        if op.kind == "create" and i not in lost:
            files[op.path], where[op.path] = b"", op.path
        elif op.kind == "write" and i not in lost and op.path in where:
            files[where[op.path]] += op.data[: torn.get(i, len(op.data))]
        elif op.kind == "rename" and i not in lost and op.path in files:
            assert op.target is not None
            files[op.target] = files.pop(op.path)
            where[op.path] = op.target
        elif op.kind == "unlink" and i not in lost:
            files.pop(op.path, None)
    return files


def _acknowledged(ops: Sequence[Op]) -> frozenset[str]:
    found: set[str] = set()
    waiting: set[str] = set()
    for op in ops:
        if op.kind == "rename":
            assert op.target is not None
            if op.target.suffix in (".rows", ".state"):
                waiting.add(op.target.name)
            elif op.path.name in found:
                found.remove(op.path.name)  # set aside
        elif op.kind == "settle":
            found |= waiting
            waiting = set()
        elif op.kind == "unlink":
            found.discard(op.path.name)
    return frozenset(found)
