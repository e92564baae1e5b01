"""How much memory there is on this machine, and in the container that this may be. Any thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx

# The rest is for activations, the tokenizer and whatever else runs here.
_SHARE = 0.9
# Freed buffers that are kept for reuse. Less than a chunk of a prompt takes would be given back and
# asked for again with every chunk.
_SPARE_SHARE = 0.125
_MIN_SPARE_BYTES = 1 << 30
# Of these, what stays behind a prompt on CUDA.
_LASTING_SHARE = 0.25


def free_bytes() -> int:
    """What the cache and the running sequences may take together: a share of the device's
    memory, without what is taken now (the weights, usually). On a CPU no more than that share of
    what others have left."""
    info = mx.device_info()
    total = (
        info.get("max_recommended_working_set_size")
        or info.get("memory_size")
        or info.get("total_memory")
        or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    free = int(_SHARE * int(total)) - mx.get_active_memory()
    if mx.default_device() == mx.cpu:
        free = min([free, *(int(_SHARE * room) for room in rooms())])
    return max(1, free)


def bound_spare_buffers(memory_bytes: int) -> int:
    """Let MLX keep no more freed buffers than a share of `memory_bytes`, and than it was told to
    before; returns how many bytes. By itself it keeps as many as the device holds: sequences of
    many lengths leave buffers of many sizes, and there is none left for others."""
    limit = _spare_bytes(memory_bytes)
    limit = min(limit, mx.set_cache_limit(limit))
    mx.set_cache_limit(limit)
    return limit


def return_spare_buffers(memory_bytes: int) -> None:
    """Give freed buffers back. MLX takes them in turn, the one that rests longest first: with many
    a processor's own caches hold none of them. On CUDA that does not matter, and giving back holds
    all threads up for tens of milliseconds: there only when many are kept."""
    is_cuda = mx.cuda.is_available() and mx.default_device() == mx.gpu
    if not is_cuda or mx.get_cache_memory() > _LASTING_SHARE * _spare_bytes(memory_bytes):
        mx.clear_cache()


def _spare_bytes(memory_bytes: int) -> int:
    return max(_MIN_SPARE_BYTES, int(_SPARE_SHARE * memory_bytes))


def rooms(root: Path = Path("/")) -> list[int]:
    """The bytes that Linux would still give to this process: what is left in the machine, and in
    each group of processes with a limit that it is in (a container is one; who passes its limit is
    killed). What the kernel keeps of files that were read is as good as free. Empty elsewhere."""
    left = _field(root / "proc/meminfo", "MemAvailable:")  # in units of 1024 bytes
    found = [] if left is None else [1024 * left]
    for group, names in _groups(root):
        limit, used = (_number(group / name) for name in names[:2])
        if limit is not None and used is not None:
            found.append(max(0, limit - used + (_field(group / "memory.stat", names[2]) or 0)))
    return found


# The limit, what is used, and of that what was read from files and not lately.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's own group, those around it, and what their files are called. A container may
    see its group as the outermost one, whatever the name."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):
            names = _V1 if kinds else _V2
            top = root / "sys/fs/cgroup" / kinds
            path = Path(name.lstrip("/"))
            yield from ((top / group, names) for group in (path, *path.parents))


def _field(file: Path, name: str) -> int | None:
    words = [line.split() for line in _text(file).splitlines()]
    return next((int(line[1]) for line in words if line[:1] == [name]), None)


def _number(file: Path) -> int | None:
    """None where there is no such file, or "max" in it."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
