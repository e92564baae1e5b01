"""Caches of caches: flattened to leaves and put together again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from keepwarm.state.base import Kind, RowState, SnapshotState
from keepwarm.state.nested import flattened, nested, shape_of
from keepwarm.state.registry import Layout, rows_of, state_of
from tests.state.feeding import are_same, contents
from tests.state.restoring import Reading

LEAVES = st.sampled_from(
    [KVCache, lambda: RotatingKVCache(4), lambda: ArraysCache(2), lambda: RotatingKVCache(5, 1)]
)
# Makers, nested: a list stands for a CacheList.
CACHES = st.lists(
    st.recursive(LEAVES, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6),
    min_size=1,
    max_size=4,
)


class OwnList(CacheList):
    pass


def made(maker: Any) -> Any:
    return CacheList(*map(made, maker)) if isinstance(maker, list) else maker()


@given(makers=CACHES)
def test_caches_are_taken_apart_and_put_together_again(makers: list[Any]) -> None:
    caches = [made(maker) for maker in makers]
    leaves = flattened(caches)
    assert not any(isinstance(leaf, CacheList) for leaf in leaves)
    again = nested(shape_of(caches), iter(leaves))
    assert shape_of(again) == shape_of(caches)
    assert [id(leaf) for leaf in flattened(again)] == [id(leaf) for leaf in leaves]


@given(makers=CACHES, chunks=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_nested_caches_are_restored_leaf_by_leaf(makers: list[Any], chunks: list[int]) -> None:
    reading, position = Reading(chunks), sum(chunks)
    caches = [reading.live(lambda maker=maker: made(maker), position) for maker in makers]
    layout = Layout.of([made(maker) for maker in makers])
    leaves = layout.leaves(caches)
    rows = rows_of(layout, leaves)
    rebuilt = []
    for i, (state, leaf) in enumerate(zip(layout.states, leaves)):
        if isinstance(state, RowState):
            pieces = [rows[i].cut(lo, hi) for lo, hi in state.needs(position)]
            rebuilt.append(state.rebuild(position, pieces, 0))
        elif isinstance(state, SnapshotState):
            rebuilt.append(state.restore(state.snapshot(leaf)))
    again = layout.assemble(rebuilt)
    assert are_same(contents(again), contents(caches))
    for a, b in zip(again, caches):
        reading.feed(a, position, 3)
        reading.feed(b, position, 3)
    assert are_same(contents(again), contents(caches))


def test_subclass_of_a_list_of_caches_is_kept_whole() -> None:
    caches = [OwnList(KVCache(), KVCache()), CacheList(KVCache())]
    assert [type(leaf) for leaf in flattened(caches)] == [OwnList, KVCache]
    assert state_of(caches[0]).kind is Kind.SNAPSHOT
