"""How much memory a running sequence takes, so that it is known before one is admitted, and how
much there is. Footprints are measured on the engine's thread; the rest is for any."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from keepwarm.state.nested import flattened

# mlx-lm's caches grow by this many rows at a time: as many may be unused.
_STEP = 256

# The rest is for activations, the tokenizer and whatever else runs here.
_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Growth:
    """Layers that take `token_bytes` for each token, up to `max_tokens` of them."""

    token_bytes: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of one sequence's live caches, by the number of tokens they have seen."""

    fixed_bytes: int = 0
    growths: tuple[Growth, ...] = ()

    @property
    def token_bytes(self) -> int:
        """What one more token takes, in the layers that keep every token."""
        return sum(growth.token_bytes for growth in self.growths if growth.max_tokens is None)

    def at(self, num_tokens: int) -> int:
        """What a sequence of that length takes at most, with the slack of its buffers."""
        # In steps: rows are added in steps, and what is lent by the cache should not move
        # with every token.
        rounded = -(-num_tokens // _STEP) * _STEP
        return self.fixed_bytes + sum(
            growth.token_bytes * (min(rounded, growth.max_tokens or rounded) + _STEP)
            for growth in self.growths
        )

    @classmethod
    def of(cls, caches: Sequence[Any]) -> Footprint:
        """Measured from live caches that have seen a few tokens."""
        fixed, growths = 0, []
        for leaf in flattened(caches):
            rows = _row_arrays(leaf)
            if rows:
                token_bytes = sum(array.nbytes // array.shape[2] for array in rows)
                growths.append(Growth(token_bytes, _window_of(leaf)))
            else:
                fixed += _nbytes_of(leaf)
        return cls(fixed, tuple(growths))


def _row_arrays(leaf: Any) -> list[mx.array]:
    keys = getattr(leaf, "keys", None)
    if keys is None or not hasattr(leaf, "offset"):
        return []
    return [array for array in _arrays_in([keys, leaf.values]) if array.ndim == 4]


def _window_of(leaf: Any) -> int | None:
    size = getattr(leaf, "max_size", None)
    if size is None and (chunk := getattr(leaf, "chunk_size", None)) is not None:
        size = 2 * chunk  # the chunk before goes when the next one begins
    return size


def _nbytes_of(leaf: Any) -> int:
    return sum(array.nbytes for array in _arrays_in(leaf.state))


def _arrays_in(tree: Any) -> list[mx.array]:
    flat: list[tuple[str, Any]] = tree_flatten(tree)  # type: ignore[assignment]
    return [value for _, value in flat if isinstance(value, mx.array)]


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
