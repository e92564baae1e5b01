"""Making room: what goes, what stays, and that the bytes are really freed."""

from __future__ import annotations

import pytest

from keepwarm.cache.explain import Refusal
from keepwarm.cache.placement import Placement, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import ROW_BYTES, cache_for, checkpoints, node_at
from tests.cache.toy import SMALL, TOYS, Toy, live_at, messages, prefill, store_at
from tests.state.memory import active_bytes

TOKENS = list(range(40))
KEEPING = TOYS["window_keep"]  # one window of 6 rows, of which the first 2 are kept
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


def hit(cache: PrefixCache, tokens: list[int], namespace: str = "") -> int:
    """Restore what is stored of `tokens`; returns how much that was."""
    return cache.restore(cache.match(Prompt(tokens), namespace=namespace)).position


def held_rows(cache: PrefixCache, group: int = 0) -> list[tuple[int, int]]:
    """The blocks of a group, by the positions they really hold."""
    nodes = cache._spaces[""].tree.nodes()
    return sorted({(s.block.lo, s.block.hi) for node in nodes for s in node.spans[group]})


# What goes first


@pytest.mark.parametrize("name", ["rows", "rows_snapshot", "window_keep"])
@pytest.mark.parametrize("policy", ["worth", "lru", "fifo"])
def test_entry_hit_fifty_times_is_not_evicted_next_but_by_fifo(name: str, policy: str) -> None:
    toy, cache = TOYS[name], cache_for(name, policy=policy)
    store_at(cache, toy, [1] * 13, [12])
    store_at(cache, toy, [2] * 13, [12])
    for _ in range(50):
        assert hit(cache, [1] * 13) == 12
    cache.evict_to(cache.ledger.held_bytes - 1)
    cache.check()
    assert (hit(cache, [1] * 13), hit(cache, [2] * 13)) == (
        (0, 12) if policy == "fifo" else (12, 0)
    )


def test_hit_between_checkpoints_refreshes_the_rows_it_took() -> None:
    cache = cache_for("rows", policy="lru")
    store_at(cache, TOYS["rows"], [1] * 13, [12])
    store_at(cache, TOYS["rows"], [2] * 13, [12])
    assert hit(cache, [1] * 8) == 7
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert (hit(cache, [1] * 13), hit(cache, [2] * 13)) == (12, 0)


def test_restore_refreshes_only_the_checkpoint_it_took() -> None:
    """The one before it on the same path lent its rows, not its snapshot."""
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", policy="lru")
    store_at(cache, toy, TOKENS, [10, 20])
    store_at(cache, toy, [99] * 11, [10])
    for _ in range(5):
        assert hit(cache, TOKENS[:21]) == 20
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert [hit(cache, t) for t in (TOKENS[:11], [99] * 11, TOKENS[:21])] == [0, 10, 20]
    cache.check()


def test_hit_counts_for_the_place_it_took_and_no_other() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    store_at(cache, toy, TOKENS, [10, 20])
    stored = [node_at(cache, end).checkpoint for end in (10, 20)]
    used = [(c.hits, c.last_used) for c in stored if c]
    hit(cache, TOKENS[:15])
    assert [(c.hits, c.last_used) for c in stored if c][1] == used[1]
    assert stored[0] is not None
    assert (stored[0].hits, stored[0].last_used > used[0][1]) == (1, True)


def test_look_alone_refreshes_nothing() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    store_at(cache, toy, TOKENS, [10])
    before = [(n.last_used, n.hits, n.checkpoint.last_used) for n in cache._spaces[""].tree.nodes()
              if n.checkpoint]  # fmt: skip
    cache.match(Prompt(TOKENS))
    after = [(n.last_used, n.hits, n.checkpoint.last_used) for n in cache._spaces[""].tree.nodes()
             if n.checkpoint]  # fmt: skip
    assert after == before


# Room


@EVERY_TOY
def test_entry_larger_than_the_budget_is_refused_and_nothing_is_lost(toy: Toy) -> None:
    roomy = cache_for(toy.name)
    store_at(roomy, toy, TOKENS[:12], [12])
    cache = cache_for(toy.name, budget_bytes=3 * roomy.ledger.held_bytes)
    store_at(cache, toy, TOKENS[:12], [12])
    held, large = cache.ledger.held_bytes, Toy("large", toy.make, toy.unused)
    prompt = Prompt([77] * 600)
    live = live_at(large, prompt, 600)
    done = cache.insert(prompt, live)
    if done.is_stored:  # a window or a snapshot does not grow with the prompt
        assert not any(group.state.kind == "rows" for group in cache.layout.groups)
    else:
        assert done.refusal is Refusal.OVER_BUDGET
        assert cache.ledger.held_bytes == held
        assert cache.match(Prompt(TOKENS[:13])).cached_len == 12
    cache.check()


@EVERY_TOY
def test_budget_is_never_passed_and_used_well(toy: Toy) -> None:
    roomy = cache_for(toy.name)
    prefill(roomy, toy, messages(TOKENS[:20], 6, 12))
    budget_bytes = 3 * roomy.ledger.held_bytes
    cache = cache_for(toy.name, budget_bytes=budget_bytes)
    for chat in range(12):
        prefill(cache, toy, messages([100 + chat] * 20, 6, 12))
        cache.check()
    assert budget_bytes // 2 < cache.ledger.held_bytes <= cache.ledger.peak_bytes <= budget_bytes
    assert cache.match(messages([111] * 20, 6, 12)).cached_len >= 12


def test_place_that_is_stored_already_needs_no_room() -> None:
    """However full the cache is, and whatever cutting a block could need for a moment."""
    toy, cache = TOYS["rows"], cache_for("rows", budget_bytes=8 * 3 * ROW_BYTES)
    prompt = Prompt(TOKENS[:8])
    live = live_at(toy, prompt, 8)
    assert cache.insert(prompt, live).is_stored
    with cache.pin(cache.match(prompt)):
        assert cache.insert(prompt, live).is_stored
    assert cache.insert(prompt, live).is_stored
    assert checkpoints(cache) == [8]


def test_pinned_places_are_not_evicted_for_a_newcomer() -> None:
    toy = TOYS["rows_snapshot"]
    roomy = cache_for("rows_snapshot")
    store_at(roomy, toy, [1] * 12, [12])
    cache = cache_for("rows_snapshot", budget_bytes=2 * roomy.ledger.held_bytes)
    store_at(cache, toy, [1] * 12, [12])
    with cache.pin(cache.match(Prompt([1] * 13))):
        for other in (2, 3, 4):
            prompt = Prompt([other] * 24)
            cache.insert(prompt, live_at(toy, prompt, 24))
            assert hit(cache, [1] * 13) == 12
    cache.check()


@EVERY_TOY
def test_evict_to_nothing_leaves_nothing(toy: Toy) -> None:
    cache = cache_for(toy.name)
    for tokens in (TOKENS[:30], [*TOKENS[:15], *[99] * 10], [*TOKENS[:15], 98], [97] * 9):
        prefill(cache, toy, messages(tokens, 4, 8))
    while held := cache.ledger.held_bytes:
        cache.evict_to(held - 1)
        cache.check()
        assert cache.ledger.held_bytes < held
    assert list(cache._spaces[""].tree.nodes()) == []


def test_snapshot_can_go_while_the_rows_stay() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", policy="fifo")
    store_at(cache, toy, TOKENS, [10, 20])
    rows = cache.ledger.rows_bytes
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert checkpoints(cache) == [20]
    assert cache.ledger.rows_bytes == rows
    assert hit(cache, TOKENS[:21]) == 20
    assert cache.stats().events["evicted_checkpoints"] == 1
    cache.check()


def test_rows_that_lead_to_no_checkpoint_go_with_the_last_one() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", policy="fifo")
    store_at(cache, toy, TOKENS, [10, 20])
    cache._evictor._drop_checkpoint(cache._spaces[""], node_at(cache, 10))
    cache._evictor._cut_loose()
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert cache.ledger.held_bytes == 0
    cache.check()


def test_place_that_holds_nothing_any_more_goes_first() -> None:
    """It weighs nothing, which must not make it worth keeping for ever."""
    cache = cache_for("window_keep")
    store_at(cache, KEEPING, [1] * 9, [8])
    store_at(cache, KEEPING, [2] * 9, [8])
    empty = cache._spaces[""].tree.walk(cache.placement.keys(Prompt([1]))).path[0]
    cache._evictor._drop_checkpoint(cache._spaces[""], empty)
    cache._evictor._cut_loose()
    assert not any(empty.spans)
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert cache.stats().num_nodes == 0
    cache.check()


def test_block_that_two_branches_share_is_cut_when_one_goes() -> None:
    toy, cache = TOYS["rows"], cache_for("rows", policy="fifo", placement=Placement(30, 60))
    store_at(cache, toy, TOKENS, [40])
    store_at(cache, toy, [*TOKENS[:10], 99], [11])
    assert held_rows(cache) == [(0, 40), (10, 11)]
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert held_rows(cache) == [(0, 10), (10, 11)]
    assert cache.ledger.rows_bytes == 11 * 2 * ROW_BYTES
    assert hit(cache, [*TOKENS[:10], 99, 99]) == 11
    cache.check()


@pytest.mark.parametrize("act", ["evict", "clear"])
@EVERY_TOY
def test_match_or_pin_that_is_kept_keeps_no_memory_alive(toy: Toy, act: str) -> None:
    cache = cache_for(toy.name, placement=Placement(3, 60))
    before = active_bytes()
    store_at(cache, toy, TOKENS, [10, 20, 30])
    matches = [cache.match(Prompt(TOKENS), limit=end) for end in (10, 20, 30)]
    pins = [cache.pin(match) for match in matches[::2]]
    cache._evictor._drop_checkpoint(cache._spaces[""], node_at(cache, 20))  # joins two edges
    if act == "evict":
        for pin in pins:
            pin.release()
        cache.evict_to(0)
    else:
        cache.clear()
    assert cache.ledger.held_bytes == 0
    assert active_bytes() == before
    assert [cache.restore(match).position for match in matches] == [0, 0, 0]
    for pin in pins:
        pin.release()


# Windows


def test_neighbouring_checkpoints_share_window_rows_until_the_last_one_goes() -> None:
    toy, cache = TOYS["rows_window"], cache_for("rows_window")  # a window of 5 rows
    prompt, live = Prompt(TOKENS), live_at(toy, Prompt(TOKENS), 20)
    store_at(cache, toy, TOKENS, [20])
    assert held_rows(cache, 1) == [(15, 20)]
    toy.read(live, prompt, 22)
    assert cache.insert(prompt, live).nbytes == 2 * 2 * ROW_BYTES  # 20 and 21, in both layers
    assert held_rows(cache, 1) == [(15, 20), (20, 22)]
    space = cache._spaces[""]
    cache._evictor._drop_checkpoint(space, node_at(cache, 20))
    cache._evictor._cut_loose()
    assert held_rows(cache, 1) == [(17, 20), (20, 22)]
    cache.check()
    cache._evictor._drop_checkpoint(space, node_at(cache, 22))
    cache._evictor._cut_loose()
    assert held_rows(cache, 1) == []
    assert cache.ledger.rows_bytes == 22 * ROW_BYTES
    cache.check()


def test_window_rows_of_two_branches_go_one_by_one() -> None:
    toy, cache = TOYS["rows_window"], cache_for("rows_window", policy="fifo")
    store_at(cache, toy, [*TOKENS[:10], 98, 98], [12])
    store_at(cache, toy, [*TOKENS[:10], 99], [11])
    assert held_rows(cache, 1) == [(6, 7), (7, 12), (10, 11)]
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert held_rows(cache, 1) == [(6, 7), (7, 10), (10, 11)]
    assert hit(cache, [*TOKENS[:10], 99, 99]) == 11
    cache.check()


def test_window_rows_before_a_branch_go_with_the_one_that_took_them() -> None:
    toy, cache = TOYS["rows_window"], cache_for("rows_window", policy="fifo")
    store_at(cache, toy, [*TOKENS[:10], 98, 98], [12])
    store_at(cache, toy, [*TOKENS[:10], *[99] * 6], [16])
    assert (7, 12) in held_rows(cache, 1)
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert held_rows(cache, 1) == [(11, 16)]
    cache.check()


# Thinning


def test_thinning_drops_snapshots_in_the_middle_while_rows_stay() -> None:
    placement = Placement(min_span=3, prefill_step=20, keep_recent=2, thinning=0.5)
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", placement=placement)
    ends = list(range(4, 41, 4))
    store_at(cache, toy, TOKENS, ends)
    kept = checkpoints(cache)
    assert kept[-1] == 40
    assert len(kept) < len(ends)
    assert cache.stats().events["thinned"] == len(ends) - len(kept)
    assert cache.ledger.rows_bytes == 40 * ROW_BYTES
    assert cache.stats().num_nodes < len(ends)  # edges that nothing parts any more are joined
    for end in kept:
        assert hit(cache, [*TOKENS[:end], 99]) == end
    cache.check()


def test_thinning_frees_the_window_rows_of_what_it_drops() -> None:
    toy, cache = TOYS["window_keep"], cache_for("window_keep", placement=SMALL)
    store_at(cache, toy, TOKENS, list(range(4, 41, 4)))
    rows = {row for end in checkpoints(cache) for lo, hi in cache.layout.groups[0].state.needs(end)
            for row in range(lo, hi)}  # fmt: skip
    found = {row for n in cache._spaces[""].tree.nodes() for s in n.spans[0]
             for row in range(s.lo, s.hi)}  # fmt: skip
    assert found == rows
    cache.check()


@pytest.mark.parametrize("kind", [StopKind.SYSTEM, StopKind.MARK, StopKind.BRANCH])
def test_thinning_never_drops_what_other_conversations_start_from(kind: StopKind) -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", placement=SMALL)
    prompt, live = Prompt(TOKENS), live_at(toy, Prompt(TOKENS), 5)
    cache.insert(prompt, live, kind=kind)
    for end in range(6, 41):
        toy.read(live, prompt, end)
        cache.insert(prompt, live, kind=StopKind.MESSAGE)
    assert checkpoints(cache)[0] == 5
    assert len(checkpoints(cache)) < 12


def test_thinning_spares_what_is_pinned_and_what_two_paths_hang_on() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", placement=SMALL)
    store_at(cache, toy, TOKENS, [6])
    store_at(cache, toy, [*TOKENS[:6], 99, 99], [8])
    store_at(cache, toy, TOKENS, [9])
    with cache.pin(cache.match(Prompt(TOKENS[:10]))):
        store_at(cache, toy, TOKENS, range(10, 41))
        assert {6, 9} <= set(checkpoints(cache))
    cache.check()


def test_layout_of_rows_only_is_never_thinned() -> None:
    """Its checkpoints hold nothing."""
    cache = cache_for("rows", placement=SMALL)
    store_at(cache, TOYS["rows"], TOKENS, list(range(4, 41, 4)))
    assert checkpoints(cache) == list(range(4, 41, 4))


# Holes


def test_block_used_on_both_sides_of_a_hole_is_freed_at_once() -> None:
    """The rows that are kept and the last ones of a window may lie in one block."""
    cache = cache_for("window_keep")
    store_at(cache, KEEPING, TOKENS, [6, 8])
    cache._evictor._drop_checkpoint(cache._spaces[""], node_at(cache, 6))
    cache._evictor._cut_loose()
    cache.check()
    cache.clear()
    cache.check()
    assert cache.ledger.held_bytes == 0


def test_insert_makes_room_again_when_it_lost_rows_of_its_own_path() -> None:
    tokens = TOKENS[:20]
    cache = cache_for("window_keep", budget_bytes=20 * ROW_BYTES, policy="fifo")
    store_at(cache, KEEPING, tokens, [8, 20])
    store_at(cache, KEEPING, [50] * 6, [6])
    # Its window begins with rows that only the checkpoint at 8 holds, and that one goes first.
    prompt = Prompt([*tokens[:9], 99])
    assert cache.insert(prompt, live_at(KEEPING, prompt, 10)).is_stored
    cache.check()
    assert 10 in checkpoints(cache)
