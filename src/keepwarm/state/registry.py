"""Which class of cache is of which kind, and the layout of a whole model.

The class must be one of mlx-lm's own, exactly: a subclass may remember something more, so it
is kept whole like any other class we do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from keepwarm.errors import CacheFault
from keepwarm.state.attention import ConcatenatedKV, PlainKV, QuantizedKV
from keepwarm.state.base import Kind, LayerState, Rows, RowState, SnapshotState
from keepwarm.state.nested import Shape, flattened, nested, shape_of
from keepwarm.state.opaque import WholeState
from keepwarm.state.recurrent import RecurrentState
from keepwarm.state.window import ChunkedKV, RotatingKV

_STATES: dict[type, Callable[[Any], LayerState]] = {
    KVCache: lambda c: PlainKV(),
    ConcatenateKVCache: lambda c: ConcatenatedKV(),
    QuantizedKVCache: lambda c: QuantizedKV(c.group_size, c.bits),
    RotatingKVCache: lambda c: RotatingKV(c.max_size, c.keep),
    ChunkedKVCache: lambda c: ChunkedKV(c.chunk_size),
    ArraysCache: lambda c: RecurrentState(len(c.cache)),
}


def state_of(leaf: Any) -> LayerState:
    """The layer state for one live leaf. Raises CacheFault when it cannot be stored at all."""
    known = _STATES.get(type(leaf))
    if known is not None:
        return known(leaf)
    if isinstance(leaf, BatchKVCache | BatchRotatingKVCache):
        raise CacheFault("only the cache of a single sequence can be stored")
    state = WholeState()
    state.measure(leaf)  # the proof that it can be copied
    return state


def settings_of(leaf: Any) -> tuple[Any, ...]:
    """What must be equal before one leaf can stand for another."""
    kind = type(leaf)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind not in _STATES:
        return (name,)
    state = _STATES[kind](leaf)
    plain = {k: v for k, v in vars(state).items() if isinstance(v, int)}
    return (name, *sorted(plain.items()))


@dataclass(frozen=True, slots=True)
class Group:
    """Row leaves that always need the same rows, so that they are cut and kept together."""

    leaves: tuple[int, ...]
    state: RowState

    @property
    def is_window(self) -> bool:
        return self.state.kind is Kind.WINDOW


@dataclass(frozen=True, slots=True)
class Layout:
    """All leaves of one model: their nesting, kinds and groups."""

    shapes: tuple[Shape, ...]
    settings: tuple[tuple[Any, ...], ...]
    states: tuple[LayerState, ...]
    groups: tuple[Group, ...]  # full attention first, when there is any
    whole: tuple[int, ...]  # the leaves that are kept by snapshot

    @classmethod
    def of(cls, caches: Sequence[Any]) -> Layout:
        """The layout of a model's live caches. Raises CacheFault when one cannot be stored."""
        leaves = flattened(caches)
        if not leaves:
            raise CacheFault("there are no caches that could be stored")
        states = tuple(state_of(leaf) for leaf in leaves)
        return cls(
            shapes=shape_of(caches),
            settings=tuple(settings_of(leaf) for leaf in leaves),
            states=states,
            groups=_groups(states),
            whole=tuple(i for i, s in enumerate(states) if isinstance(s, SnapshotState)),
        )

    @property
    def can_cut(self) -> bool:
        """Whether a position between checkpoints can be restored."""
        return not self.whole

    @property
    def has_costly_checkpoints(self) -> bool:
        """Whether a checkpoint holds something of its own: a snapshot or window rows."""
        return bool(self.whole) or any(group.is_window for group in self.groups)

    def leaves(self, caches: Sequence[Any]) -> list[Any]:
        """The leaves of live caches. Raises CacheFault when they are of another layout."""
        leaves = flattened(caches)
        if shape_of(caches) != self.shapes:
            raise CacheFault("the caches are nested in another way than this model's")
        for i, (leaf, wanted) in enumerate(zip(leaves, self.settings, strict=True)):
            if settings_of(leaf) != wanted:
                raise CacheFault(f"layer {i}: {settings_of(leaf)} where {wanted} is known")
        return leaves

    def assemble(self, leaves: Iterable[Any]) -> list[Any]:
        """Live caches, nested as the model expects them."""
        return nested(self.shapes, iter(leaves))

    def row_state(self, leaf: int) -> RowState:
        state = self.states[leaf]
        assert isinstance(state, RowState)
        return state

    def snapshot_state(self, leaf: int) -> SnapshotState:
        state = self.states[leaf]
        assert isinstance(state, SnapshotState)
        return state

    def check_position(self, leaves: Sequence[Any], position: int) -> None:
        """Raises CacheFault when a leaf that can tell says it stands somewhere else."""
        for i, (state, leaf) in enumerate(zip(self.states, leaves, strict=True)):
            found = state.position(leaf)
            # A row leaf that never saw a row is one that the model does not use.
            if found is not None and found != position and not _is_unused(state, leaf):
                raise CacheFault(f"layer {i} stands at {found}, not at {position}")

    def summary(self) -> str:
        """One line for people, such as '8 rows, 24 snapshot'."""
        counts: dict[str, int] = {}
        for state in self.states:
            counts[state.kind] = counts.get(state.kind, 0) + 1
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _is_unused(state: LayerState, leaf: Any) -> bool:
    return isinstance(state, RowState) and leaf.keys is None


def _groups(states: Sequence[LayerState]) -> tuple[Group, ...]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, state in enumerate(states):
        if isinstance(state, RowState):
            found.setdefault(_needs_key(state), []).append(i)
    groups = [
        Group(tuple(leaves), state)
        for leaves in found.values()
        if isinstance(state := states[leaves[0]], RowState)
    ]
    return tuple(sorted(groups, key=lambda group: group.is_window))


def _needs_key(state: RowState) -> tuple[Any, ...]:
    """Equal for states that need the same rows at every position."""
    if isinstance(state, RotatingKV):
        return ("rotating", state.max_size, state.keep)
    if isinstance(state, ChunkedKV):
        return ("chunked", state.chunk_size)
    return ("all",)


def rows_of(layout: Layout, leaves: Sequence[Any]) -> dict[int, Rows]:
    """The rows that live leaves hold, by leaf."""
    return {i: layout.row_state(i).rows(leaves[i]) for g in layout.groups for i in g.leaves}
