"""What is watched of a real cache: roles, uses, and what went."""

from __future__ import annotations

import pytest

from keepwarm.cache.placement import StopKind
from keepwarm.cache.returns import Role
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.watch import Place
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import cache_for, node_at
from tests.cache.toy import SMALL, TOYS, store_at

TOKENS = list(range(40))
TOY = TOYS["rows_snapshot"]


def places(cache: PrefixCache, tokens: list[int]) -> dict[int, Place]:
    """By position, along one path."""
    path = cache._spaces[""].tree.walk(cache.placement.keys(Prompt(tokens))).path
    watched = cache._evictor._watch._places
    return {n.end: watched["", n.checkpoint.digest] for n in path if n.checkpoint is not None}


def roles(cache: PrefixCache, tokens: list[int]) -> list[Role]:
    return [place.role for place in places(cache, tokens).values()]


def go_on(cache: PrefixCache, tokens: list[int]) -> None:
    """A request that restores what there is and stores its end."""
    prompt = Prompt([*tokens, 99])
    live = cache.restore(cache.match(prompt))
    TOY.read(live, prompt, len(tokens))
    cache.insert(prompt, live)


def test_roles_along_a_path() -> None:
    cache = cache_for("rows_snapshot")
    store_at(cache, TOY, TOKENS, [10, 20, 30])
    assert roles(cache, TOKENS) == [Role.INNER, Role.PREVIOUS, Role.TIP]


def test_place_where_two_paths_part_is_shared() -> None:
    cache = cache_for("rows_snapshot")
    store_at(cache, TOY, TOKENS, [10, 20])
    store_at(cache, TOY, [*TOKENS[:10], 99, 99], [12])
    assert roles(cache, TOKENS) == [Role.SHARED, Role.TIP]


def test_conversation_that_goes_on_counts_its_turns() -> None:
    cache = cache_for("rows_snapshot")
    for end in (10, 20, 30, 40):
        go_on(cache, TOKENS[:end])
    assert [place.turns for place in places(cache, TOKENS).values()][-1] == 3
    assert roles(cache, TOKENS)[-1] is Role.TIP


def test_tip_that_comes_back_after_it_was_evicted_has_its_turns_still() -> None:
    cache = cache_for("rows_snapshot")
    for end in (10, 20):
        go_on(cache, TOKENS[:end])
    cache.evict_to(0)
    assert not cache._evictor._watch._places
    go_on(cache, TOKENS[:20])
    assert places(cache, TOKENS[:20])[20].turns == 2


def test_conversation_whose_tip_went_ends_where_it_still_can() -> None:
    cache = cache_for("rows_snapshot", policy="lru")
    store_at(cache, TOY, TOKENS, [10, 20, 30])
    evictor, space = cache._evictor, cache._spaces[""]
    evictor._watch.evicted("", node_at(cache, 30), 100.0)
    evictor._drop_leaf(space, node_at(cache, 30))
    assert roles(cache, TOKENS) == [Role.PREVIOUS, Role.TIP]
    assert not places(cache, TOKENS)[20].is_counted


def test_what_is_used_more_often_has_a_better_chance_in_time() -> None:
    """Tips are extended at once; what lies within is never asked for."""
    cache = cache_for("rows_snapshot")
    watch = cache._evictor._watch
    for chat in range(30):
        for end in (10, 20, 30):
            go_on(cache, [100 + chat, *TOKENS[: end - 1]])
    last = [130, *TOKENS[:19]]
    for end in (10, 20):
        go_on(cache, last[:end])
    now = cache._clock()
    watch.before_ranking(now)
    inner, tip = cache._spaces[""].tree.walk(cache.placement.keys(Prompt(last))).path
    assert watch.chance("", tip, now) > 3 * watch.chance("", inner, now)


@pytest.mark.parametrize("act", ["clear", "discard", "evict", "thin"])
def test_watch_knows_no_place_that_is_not_held(act: str) -> None:
    cache = cache_for("rows_snapshot", **({"placement": SMALL} if act == "thin" else {}))
    store_at(cache, TOY, TOKENS, list(range(4, 41, 4)))
    if act == "clear":
        cache.clear()
    elif act == "discard":
        cache.discard(Prompt(TOKENS), len(TOKENS) - 1)
    elif act == "evict":
        cache.evict_to(cache.ledger.held_bytes // 2)
    held = {
        ("", node.checkpoint.digest)
        for space in cache._spaces.values()
        for node in space.tree.nodes()
        if node.checkpoint is not None
    }
    assert set(cache._evictor._watch._places) == held
    cache.check()


def test_kind_that_lasts_is_shared_from_the_first_request_beyond_it() -> None:
    cache = cache_for("rows_snapshot")
    prompt, live = Prompt(TOKENS), cache.fresh()
    TOY.read(live, prompt, 5)
    cache.insert(prompt, live, kind=StopKind.SYSTEM)
    TOY.read(live, prompt, 20)
    cache.insert(prompt, live)
    assert roles(cache, TOKENS) == [Role.SHARED, Role.TIP]


@pytest.mark.parametrize("is_short_of_room", [False, True])
def test_where_ends_go_before_they_come_back_the_places_before_them_count_for_more(
    is_short_of_room: bool,
) -> None:
    cache = cache_for("rows_snapshot")
    watch = cache._evictor._watch
    for chat in range(20):
        go_on(cache, [100 + chat] * 5)
        if is_short_of_room:
            cache.evict_to(0)
        go_on(cache, [100 + chat] * 5)
        go_on(cache, [100 + chat] * 7)
    cache.evict_to(0)
    store_at(cache, TOY, TOKENS, [10, 20, 30])
    now = cache._clock()
    chances = [watch.chance("", node_at(cache, end), now) for end in (10, 20, 30)]
    watch._num_missed = 0.0
    of_their_own = [watch.chance("", node_at(cache, end), now) for end in (10, 20, 30)]
    count_for_more = [a > b for a, b in zip(chances, of_their_own, strict=True)]
    assert count_for_more == [is_short_of_room, is_short_of_room, False]


def test_checkpoint_counts_for_those_that_went_behind_it() -> None:
    """Who parts from the conversation anywhere before the next one goes on from it."""
    cache = cache_for("rows_snapshot")
    store_at(cache, TOY, TOKENS, [5, 10, 15, 20, 25, 30])
    evictor, space = cache._evictor, cache._spaces[""]
    evictor._watch._spacing = 5
    first = node_at(cache, 5)
    now = cache._clock()
    alone = evictor._watch.chance("", first, now)
    for num_went, end in enumerate((10, 15, 20), start=1):
        evictor._watch.evicted("", node_at(cache, end), now)
        evictor._drop_checkpoint(space, node_at(cache, end))
        assert evictor._watch.chance("", first, now) == pytest.approx((1 + num_went) * alone)


def test_checkpoints_as_close_as_thinning_leaves_them_count_once_each() -> None:
    cache = cache_for("rows_snapshot")
    watch = cache._evictor._watch
    store_at(cache, TOY, TOKENS, [5, 10, 20])
    assert watch._spacing == 2 * cache.placement.prefill_step
    assert [watch._num_covered(node_at(cache, end)) for end in (5, 10)] == [1.0, 1.0]


@pytest.mark.parametrize(("end", "size"), [(1, 0), (5, 0), (6, 1), (11, 1), (12, 2), (39, 3)])
def test_size_of_a_conversation_is_how_often_it_doubled(end: int, size: int) -> None:
    cache = cache_for("rows_snapshot")
    assert cache.placement.min_span == 3
    go_on(cache, TOKENS[:end])
    assert places(cache, TOKENS[:end])[end].size == size
