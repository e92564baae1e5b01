"""Which class is of which kind, and what must agree before caches may stand for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from keepwarm.errors import CacheFault
from keepwarm.state.base import Kind
from keepwarm.state.registry import Layout, rows_of, state_of
from tests.state.feeding import Tape
from tests.state.memory import active_bytes
from tests.state.restoring import Reading


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (KVCache(), Kind.ROWS),
        (ConcatenateKVCache(), Kind.ROWS),
        (QuantizedKVCache(), Kind.ROWS),
        (RotatingKVCache(8), Kind.WINDOW),
        (ChunkedKVCache(8), Kind.WINDOW),
        (ArraysCache(2), Kind.SNAPSHOT),
        (Tape(), Kind.SNAPSHOT),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Kind) else str(value),
)
def test_every_class_of_mlx_lm_has_its_kind(leaf: Any, kind: Kind) -> None:
    assert state_of(leaf).kind is kind


@pytest.mark.parametrize("batch", [BatchKVCache([0, 1]), BatchRotatingKVCache(8, [0, 1])])
def test_cache_of_a_batch_is_never_stored(batch: Any) -> None:
    """Its padding would pass for rows of the prompt."""
    with pytest.raises(CacheFault, match="single sequence"):
        Layout.of([KVCache(), batch])


def caches() -> list[Any]:
    return [
        CacheList(ArraysCache(2), KVCache()),
        RotatingKVCache(8),
        QuantizedKVCache(64, 8),
        RotatingKVCache(8, keep=2),
        ChunkedKVCache(8),
        RotatingKVCache(8),
        Tape(),
    ]


def test_leaves_that_need_the_same_rows_are_grouped_full_attention_first() -> None:
    layout = Layout.of(caches())
    assert [group.leaves for group in layout.groups] == [(1, 3), (2, 6), (4,), (5,)]
    assert [group.is_window for group in layout.groups] == [False, True, True, True]
    assert layout.whole == (0, 7)
    assert layout.summary() == "2 snapshot, 2 rows, 4 window"
    assert not layout.can_cut
    assert Layout.of([KVCache(), RotatingKVCache(4)]).can_cut


OTHERS: dict[str, Callable[[], list[Any]]] = {
    "window size": lambda: [*caches()[:1], RotatingKVCache(9), *caches()[2:]],
    "keep": lambda: [*caches()[:1], RotatingKVCache(8, keep=1), *caches()[2:]],
    "bits": lambda: [*caches()[:2], QuantizedKVCache(64, 4), *caches()[3:]],
    "group size": lambda: [*caches()[:2], QuantizedKVCache(32, 8), *caches()[3:]],
    "not quantized": lambda: [*caches()[:2], KVCache(), *caches()[3:]],
    "chunk size": lambda: [*caches()[:4], ChunkedKVCache(4), *caches()[5:]],
    "entries": lambda: [CacheList(ArraysCache(3), KVCache()), *caches()[1:]],
    "class": lambda: [*caches()[:6], KVCache()],
    "order": lambda: [CacheList(KVCache(), ArraysCache(2)), *caches()[1:]],
    "nesting": lambda: [ArraysCache(2), KVCache(), *caches()[1:]],
    "one more": lambda: [*caches(), KVCache()],
    "one less": lambda: caches()[:-1],
    "none": list,
}


@pytest.mark.parametrize("what", OTHERS)
def test_caches_of_another_layout_are_refused(what: str) -> None:
    layout = Layout.of(caches())
    layout.leaves(caches())
    with pytest.raises(CacheFault):
        layout.leaves(OTHERS[what]())


def test_leaf_that_stands_elsewhere_is_refused_and_an_unused_one_is_not() -> None:
    layout = Layout.of([KVCache(), KVCache(), RotatingKVCache(4), ArraysCache(1)])
    reading = Reading([5, 1])
    leaves = [reading.live(KVCache, 6), KVCache(), RotatingKVCache(4), ArraysCache(1)]
    layout.check_position(leaves, 6)
    leaves[2] = reading.live(lambda: RotatingKVCache(4), 5)
    with pytest.raises(CacheFault, match="layer 2 stands at 5, not at 6"):
        layout.check_position(leaves, 6)


def test_rows_are_listed_by_leaf() -> None:
    layout = Layout.of([ArraysCache(1), KVCache(), RotatingKVCache(4)])
    reading = Reading([6])
    live = [
        reading.live(lambda: ArraysCache(1), 6),
        reading.live(KVCache, 6),
        reading.live(lambda: RotatingKVCache(4), 6),
    ]
    rows = rows_of(layout, live)
    assert {leaf: found.held for leaf, found in rows.items()} == {1: [(0, 6)], 2: [(0, 6)]}


def test_layout_learned_from_live_caches_holds_none_of_their_arrays() -> None:
    tape = Tape()
    tape.record(mx.zeros((1, 1, 1000, 64)))
    mx.eval(tape.parts)
    layout = Layout.of([tape])
    del tape
    with_layout = active_bytes()
    del layout
    assert active_bytes() == with_layout
