"""One load: buffers that are filled by the reading thread, and what is made of them. The thread that
owns the arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import mlx.core as mx

from keepwarm.cache.disk.format import ArraySpec, Part
from keepwarm.cache.disk.index import File, Found, Use
from keepwarm.cache.disk.spill import bytes_of
from keepwarm.cache.disk.store import Get
from keepwarm.cache.intervals import Interval
from keepwarm.cache.loaded import Loaded
from keepwarm.cache.pin import Pin
from keepwarm.errors import CacheFault
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.base import Arrays, owned
from keepwarm.state.registry import Layout

# At once: what is allocated and cleared holds up running streams.
SLICE_BYTES = 16 << 20


@dataclass(eq=False)
class Load:
    """What a prompt waits for."""

    prompt: Prompt
    namespace: str
    found: Found
    path_keys: bytes  # up to the position that is wanted
    pin: Pin  # of what the RAM tree has of it
    staged_bytes: int
    began: float = field(default_factory=perf_counter)
    ended: float = 0.0
    is_over: bool = False
    position: int = 0  # as far as it is in RAM now, if it went well
    num_read: int = 0  # files
    num_bytes_read: int = 0
    arrays: dict[File, list[mx.array]] = field(default_factory=dict)
    _making: Iterator[Use | None] | None = None

    @property
    def names(self) -> set[str]:
        return self.found.names

    @property
    def seconds(self) -> float:
        return (self.ended or perf_counter()) - self.began

    @property
    def is_making(self) -> bool:
        """Whether some buffers are still to be made."""
        return len(self.arrays) < len(self.found.uses)

    def make_some(self) -> list[Use]:
        """Make buffers for one slice; returns the files that have all of theirs now. Mutates."""
        if self._making is None:
            self._making = self._make()
        ready = []
        for use in self._making:
            if use is None:
                break
            ready.append(use)
        return ready

    def _make(self) -> Iterator[Use | None]:
        room = SLICE_BYTES
        for use in self.found.uses:
            made = self.arrays.setdefault(use.file, [])
            for spec in use.file.header.specs:
                if room <= 0:
                    mx.eval(made)
                    room = SLICE_BYTES
                    yield None
                made.append(mx.zeros(spec.shape, dtype_of(spec)))
                room -= spec.nbytes
            mx.eval(made)
            yield use

    def get(self, use: Use) -> Get:
        views = tuple(bytes_of(array) for array in self.arrays[use.file])
        return Get(use.file.header, use.hi, self.path_keys, views)

    def loaded(self, layout: Layout, like: Sequence[Any]) -> Loaded:
        """All of it, once it was read. `like` are live leaves of the model. Raises CacheFault."""
        rows: dict[int, list[tuple[Interval, Arrays]]] = {}
        snapshots = {}
        for use in self.found.uses:
            arrays = iter(self.arrays[use.file])
            for part in use.file.header.parts:
                own = tuple(next(arrays) for _ in part.arrays)
                _check_leaf(part, layout)
                if part.is_snapshot:
                    state = layout.snapshot_state(part.leaf)
                    snapshots[part.leaf] = state.unpacked(part.plain, own, like[part.leaf])
                else:
                    hi = min(part.hi, use.hi)
                    if hi < part.hi:  # a copy, or what is not wanted would be held too
                        own = tuple(owned(array[..., : hi - part.lo, :]) for array in own)
                        mx.eval(own)
                    rows.setdefault(part.leaf, []).append(((part.lo, hi), own))
        return Loaded(layout, self.found.position, rows, snapshots)


def _check_leaf(part: Part, layout: Layout) -> None:
    """Raises CacheFault."""
    is_known = 0 <= part.leaf < len(layout.states)
    if not is_known or part.is_snapshot != (part.leaf in layout.whole):
        raise CacheFault(f"a file speaks of a layer {part.leaf} that is not such a one")


def dtype_of(spec: ArraySpec) -> mx.Dtype:
    found: mx.Dtype = getattr(mx, "bool_" if spec.dtype == "bool" else spec.dtype)
    return found
