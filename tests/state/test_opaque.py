"""Classes nobody has told us of: copied whole and exactly, or not stored at all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache, RotatingKVCache

from keepwarm.errors import CacheFault
from keepwarm.state.base import Kind, SnapshotState
from keepwarm.state.registry import state_of
from tests.state.feeding import Tape, are_same, contents
from tests.state.restoring import CHUNKS, Reading


class TwoBuffers(KVCache):
    """Remembers something that its base class does not."""

    def __init__(self) -> None:
        super().__init__()
        self.extra: mx.array | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.extra = keys[..., -1:, :]
        return super().update_and_fetch(keys, values)


class Slotted:
    __slots__ = ("__private", "rows")

    def __init__(self, value: int) -> None:
        self.rows = mx.array([value])
        self.__private = mx.array([value + 1])

    def values(self) -> list[Any]:
        return [self.rows.tolist(), self.__private.tolist()]


class SlottedBelow(Slotted):
    __slots__ = ("more",)


@dataclass
class Plain:
    numbers: dict[str, Any] = field(default_factory=dict)


def snapshot_state(leaf: Any) -> SnapshotState:
    state = state_of(leaf)
    assert isinstance(state, SnapshotState)
    return state


def copied(leaf: Any) -> Any:
    state = snapshot_state(leaf)
    return state.restore(state.snapshot(leaf))


@given(chunks=CHUNKS, more=st.lists(st.integers(1, 5), max_size=3))
def test_unknown_class_goes_on_from_its_checkpoint(chunks: list[int], more: list[int]) -> None:
    reading = Reading(chunks)
    leaf = reading.live(Tape, reading.total)
    twin, at = copied(leaf), reading.total
    assert type(twin) is Tape
    for count in more:
        assert are_same(reading.feed(twin, at, count), reading.feed(leaf, at, count))
        at += count
    assert are_same(contents([twin]), contents([leaf]))


def test_old_protocol_of_trim_is_never_believed() -> None:
    state = state_of(Tape())
    assert Tape().is_trimmable()
    assert state.kind is Kind.SNAPSHOT
    assert state.position(Reading([5]).live(Tape, 5)) is None


@pytest.mark.parametrize("base", [KVCache, partial(RotatingKVCache, 8)], ids=["kv", "rotating"])
def test_class_itself_is_known_but_a_subclass_is_not(base: Callable[[], Any]) -> None:
    known = base()
    unknown = type("Derived", (type(known),), {})
    leaf = unknown.__new__(unknown)
    leaf.__dict__.update(vars(known))
    assert state_of(known).kind is not Kind.SNAPSHOT
    assert state_of(leaf).kind is Kind.SNAPSHOT


def test_subclass_keeps_what_it_remembers_beyond_its_base() -> None:
    reading = Reading([7])
    leaf = reading.live(TwoBuffers, 7)
    twin = copied(leaf)
    assert type(twin) is TwoBuffers
    assert are_same([twin.extra, *contents([twin])], [leaf.extra, *contents([leaf])])


def test_slots_are_copied_private_ones_too() -> None:
    leaf = SlottedBelow(3)
    twin = copied(leaf)
    assert twin.values() == leaf.values()
    assert not hasattr(twin, "more")


def test_copies_share_no_container() -> None:
    leaf = Plain({"list": [1, [2]], "set": {3}, "tuple": ([4],)})
    twin = copied(leaf)
    twin.numbers["list"][1].append(9)
    twin.numbers["set"].add(9)
    twin.numbers["tuple"][0].append(9)
    twin.numbers["new"] = 9
    assert leaf.numbers["list"] == [1, [2]]
    assert leaf.numbers["set"] == {3}
    assert leaf.numbers["tuple"] == ([4],)
    assert "new" not in leaf.numbers


def test_numpy_array_is_refused_because_no_ledger_counts_it() -> None:
    with pytest.raises(CacheFault, match="ndarray"):
        state_of(Plain({"numpy": np.zeros(2)}))


def test_two_names_for_one_thing_stay_two_names_for_one_thing() -> None:
    """A class may write through one name and read through the other."""
    rows, items = mx.zeros((4,)), [1]
    leaf = Plain({"rows": rows, "view": rows, "items": items, "same": items})
    state = snapshot_state(leaf)
    assert state.measure(leaf) == state.snapshot(leaf).nbytes == rows.nbytes
    twin = copied(leaf)
    twin.numbers["rows"][1] = 5
    twin.numbers["items"].append(2)
    assert twin.numbers["view"].tolist() == [0, 5, 0, 0]
    assert twin.numbers["same"] == [1, 2]
    assert leaf.numbers["view"].tolist() == [0, 0, 0, 0]


def _generator() -> Iterator[int]:
    yield 1


class Caller:
    def __call__(self) -> None:
        pass


UNCOPIABLE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "generator": _generator,
    "function": lambda: _generator,
    "lambda": lambda: lambda: None,
    "bound method": lambda: Tape().trim,
    "partial": lambda: partial(max, 1),
    "iterator": lambda: iter([1]),
    "deque": deque,
    "event": threading.Event,
    "module": lambda: threading,
    "path": lambda: Path("x"),
    "callable object": Caller,
}


@pytest.mark.parametrize("name", UNCOPIABLE)
def test_what_is_not_data_cannot_be_stored(name: str) -> None:
    leaf = Plain({"deep": [{"down": UNCOPIABLE[name]()}]})
    with pytest.raises(CacheFault, match="cannot be copied"):
        state_of(leaf)


def test_what_is_nested_without_end_cannot_be_stored() -> None:
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(CacheFault, match="too deeply"):
        state_of(Plain({"deep": deep}))


@given(chunks=CHUNKS)
def test_measure_says_what_a_snapshot_will_hold(chunks: list[int]) -> None:
    reading = Reading(chunks)
    leaf = reading.live(Tape, reading.total)
    state = snapshot_state(leaf)
    snapshot = state.snapshot(leaf)
    assert state.measure(leaf) == snapshot.nbytes == sum(a.nbytes for a in snapshot.arrays)
    assert state.measure(leaf) == (reading.total + 1) * 4 * 4  # all rows and the last, 4 floats
