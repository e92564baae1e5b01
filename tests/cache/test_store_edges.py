"""Calls at the edge of what makes sense, and what they must not break."""

from __future__ import annotations

import pickle
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from keepwarm.cache.explain import Reason, Refusal
from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.stores import ROW_BYTES, cache_for, checkpoints, node_at
from tests.cache.toy import SMALL, TOYS, live_at, store_at
from tests.state.feeding import are_same, contents

TOKENS = list(range(24))


class Unpicklable:
    """A cache whose class refuses the copy protocol in a way of its own."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise pickle.PicklingError("not this one")


def test_class_that_refuses_to_be_copied_turns_caching_off() -> None:
    cache = PrefixCache(lambda: [Unpicklable()], budget_bytes=1 << 20)
    assert cache.match(Prompt([1, 2])).reason is Reason.DISABLED
    assert "not this one" in str(cache.disabled_because)


def test_insert_that_cannot_even_be_captured_leaves_other_namespaces_alone() -> None:
    cache = PrefixCache(None, budget_bytes=1 << 20)
    prompt = Prompt(TOKENS[:8])
    assert cache.insert(prompt, live_at(TOYS["rows"], prompt, 8), namespace="good").is_stored
    bad = Live([Unpicklable()])
    bad.advance(prompt.tokens)
    assert not cache.insert(prompt, bad, namespace="bad").is_stored
    assert checkpoints(cache, "good") == [8]
    assert cache.stats().num_namespaces == 1


@pytest.mark.parametrize("kind", ["end", "foo"])
def test_kind_that_is_none_of_a_checkpoint_is_bad_input(kind: Any) -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [8])
    prompt = Prompt(TOKENS)
    with pytest.raises(BadInput, match=kind):
        cache.insert(prompt, live_at(TOYS["rows"], prompt, 12), kind=kind)
    assert checkpoints(cache) == [8]


def test_pin_holds_a_place_between_the_checkpoints_of_a_window() -> None:
    cache = cache_for("rows_window")
    store_at(cache, TOYS["rows_window"], TOKENS, [12, 16, 20])
    match = cache.match(Prompt([*TOKENS[:14], 99, 99]))
    assert match.cached_len not in (0, 12)
    with cache.pin(match):
        cache.evict_to(0)
        assert cache.restore(match).position == match.cached_len
        cache.check()
    cache.evict_to(0)
    assert cache.ledger.held_bytes == 0


def test_match_that_breaks_is_a_miss_with_a_reason() -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [8])
    node_at(cache, 8).label = None  # type: ignore[assignment]
    match = cache.match(Prompt(TOKENS))
    assert (match.cached_len, match.reason) == (0, Reason.FAULT)
    assert cache.restore(match).position == 0


def test_refused_insert_teaches_the_cache_nothing() -> None:
    cache = PrefixCache(lambda: [KVCache()], budget_bytes=100)

    def live_of(dtype: mx.Dtype, count: int) -> Live:
        live = Live([KVCache()])
        rows = mx.zeros((1, 1, count, 4), dtype)
        live.caches[0].update_and_fetch(rows, rows)
        live.advance(TOKENS[:count])
        return live

    prompt = Prompt(TOKENS)
    assert cache.insert(prompt, live_of(mx.float32, 20)).refusal is Refusal.OVER_BUDGET
    assert cache.insert(prompt, live_of(mx.bfloat16, 2)).is_stored


def test_emptied_namespaces_are_forgotten() -> None:
    toy = TOYS["rows"]
    cache = cache_for("rows", budget_bytes=8 * 4 * ROW_BYTES)
    for number in range(20):
        prompt = Prompt([number + 1] * 8)
        assert cache.insert(prompt, live_at(toy, prompt, 8), namespace=str(number)).is_stored
    assert cache.stats().num_namespaces < 4
    cache.check()


def test_tokens_of_a_match_that_was_evicted_are_not_counted_as_cached() -> None:
    cache = cache_for("rows_snapshot")
    store_at(cache, TOYS["rows_snapshot"], TOKENS, [12])
    match = cache.match(Prompt(TOKENS))
    before = cache.stats().cached_tokens
    cache.evict_to(0)
    assert cache.restore(match).position == 0
    assert cache.stats().cached_tokens == before - match.cached_len


def test_limit_below_zero_matches_nothing() -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [8])
    assert cache.match(Prompt(TOKENS), limit=-1).cached_len == 0


def test_stops_begin_where_the_caches_stand() -> None:
    cache = cache_for("rows_snapshot", exact=True)
    prompt = Prompt(list(range(30)), [Boundary(10, BoundaryKind.SYSTEM)])
    match = cache.match(prompt)
    whole = [stop.position for stop in cache.stops(match)]
    assert [stop.position for stop in cache.stops(match, start=10)] == [p for p in whole if p > 10]


def test_boundary_kind_may_be_written_as_text() -> None:
    prompt = Prompt(TOKENS, [Boundary(10, "generation")])  # type: ignore[arg-type]
    assert prompt.boundaries[0].kind is BoundaryKind.GENERATION
    with pytest.raises(BadInput, match="foo"):
        Prompt(TOKENS, [Boundary(10, "foo")])  # type: ignore[arg-type]


def test_parting_costs_no_stop_where_every_token_can_be_restored() -> None:
    parted = Prompt([*TOKENS[:20], *[99] * 8])
    for name, is_stop in (("rows", False), ("rows_snapshot", True)):
        cache = cache_for(name, placement=Placement(min_span=4, prefill_step=64, thinning=0.0))
        store_at(cache, TOYS[name], TOKENS, [8, 24])
        kinds = [stop.kind for stop in cache.stops(cache.match(parted))]
        assert (StopKind.BRANCH in kinds) is is_stop


def test_large_tree_makes_room_in_portions() -> None:
    """Or every insert into a full cache would look at every node."""
    toy = TOYS["rows"]
    cache = cache_for("rows", budget_bytes=1000 * 2 * ROW_BYTES)
    rounds = 0
    for number in range(1500):
        prompt = Prompt([number + 1, 7])
        evicted = cache.stats().events.get("evicted_leaves", 0)
        assert cache.insert(prompt, live_at(toy, prompt, 1)).is_stored
        rounds += cache.stats().events.get("evicted_leaves", 0) > evicted
    assert rounds * 8 < cache.stats().events["evicted_leaves"]
    cache.check()


@pytest.mark.parametrize("name", ["rows", "windows", "rows_window"])
def test_what_was_a_few_tokens_ago_is_stored_as_it_was(name: str) -> None:
    toy, cache, prompt = TOYS[name], cache_for(name), Prompt(TOKENS)
    live = live_at(toy, prompt, 24)
    for at in (24, 20, 23):
        done = cache.insert(prompt, live, at=at)
        assert (done.is_stored, done.position) == (True, at)
    for at in (0, -1, 25):
        assert cache.insert(prompt, live, at=at).refusal is Refusal.MISMATCH
    assert set(checkpoints(cache)) == {20, 23, 24}
    for at in (20, 23):
        match = cache.match(Prompt([*TOKENS[:at], 99]))
        assert match.cached_len == at
        assert are_same(contents(cache.restore(match).caches), contents(toy.cold(TOKENS[:at])))
    cache.check()


def test_snapshot_of_a_few_tokens_ago_is_refused() -> None:
    cache, prompt = cache_for("rows_snapshot"), Prompt(TOKENS)
    live = live_at(TOYS["rows_snapshot"], prompt, 24)
    assert cache.insert(prompt, live, at=20).refusal is Refusal.MISMATCH
    assert cache.ledger.held_bytes == 0


def test_exact_mode_stores_nothing_between_its_stops() -> None:
    cache = PrefixCache(TOYS["rows"].make, exact=True, budget_bytes=1 << 20, placement=SMALL)
    prompt = Prompt(TOKENS)
    [first, *_] = [stop.position for stop in SMALL.exact_schedule(prompt)]
    live = live_at(TOYS["rows"], prompt, first)
    assert cache.insert(prompt, live, at=first - 1).refusal is Refusal.OFF_SCHEDULE
    assert cache.insert(prompt, live, at=first).is_stored
