"""Match, restore and pin: what is found is right, and what is held stays."""

from __future__ import annotations

import pytest

from keepwarm.cache.explain import Refusal
from keepwarm.cache.live import Live
from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import cache_for, checkpoints
from tests.cache.toy import TOYS, Toy, live_at, messages, prefill, store_at
from tests.state.feeding import are_same, contents

TOKENS = list(range(24))
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


def assert_stands_at(toy: Toy, live: Live, tokens: list[int]) -> None:
    """`live` is what it would be after reading `tokens` with no cache at all."""
    assert live.position == len(tokens)
    assert are_same(contents(live.caches), contents(toy.cold(tokens)))


@EVERY_TOY
def test_next_turn_reads_only_what_is_new(toy: Toy) -> None:
    cache = cache_for(toy.name)
    prefill(cache, toy, messages(TOKENS[:14], 6, 12))
    match = cache.match(messages(TOKENS, 6, 12, 20))
    live = cache.restore(match)
    assert match.cached_len >= 12
    assert_stands_at(toy, live, TOKENS[: match.cached_len])
    toy.read(live, match.prompt, 24)
    assert_stands_at(toy, live, TOKENS)
    cache.check()


@EVERY_TOY
def test_exact_hit_leaves_at_least_one_token_to_read(toy: Toy) -> None:
    cache = cache_for(toy.name)
    for _ in range(3):
        live = prefill(cache, toy, Prompt(TOKENS[:13]))
        assert_stands_at(toy, live, TOKENS[:13])
    for length in (13, 12, 6, 2, 1):
        match = cache.match(Prompt(TOKENS[:length]))
        assert match.cached_len < length
        assert_stands_at(toy, cache.restore(match), TOKENS[: match.cached_len])
    cache.check()


@EVERY_TOY
def test_prompts_of_one_token_are_served(toy: Toy) -> None:
    cache = cache_for(toy.name)
    for token in (1, 1, 2):
        assert_stands_at(toy, prefill(cache, toy, Prompt([token])), [token])
    cache.check()


@EVERY_TOY
def test_budget_of_nothing_stores_nothing_and_serves_all(toy: Toy) -> None:
    cache = cache_for(toy.name, budget_bytes=0)
    for _ in range(2):
        assert_stands_at(toy, prefill(cache, toy, messages(TOKENS, 6, 12)), TOKENS)
    assert cache.ledger.peak_bytes == 0
    assert cache.stats().events["refused_over_budget"] > 0
    cache.check()


@EVERY_TOY
def test_two_restores_of_one_checkpoint_never_see_each_other(toy: Toy) -> None:
    cache = cache_for(toy.name)
    store_at(cache, toy, TOKENS, [12])
    one, two = Prompt([*TOKENS[:12], 98, 98, 98]), Prompt([*TOKENS[:12], 99, 99, 99])
    first, second = cache.restore(cache.match(one)), cache.restore(cache.match(two))
    for end in (13, 15):
        toy.read(first, one, end)
        toy.read(second, two, end)
    assert_stands_at(toy, first, one.tokens.tolist())
    assert_stands_at(toy, second, two.tokens.tolist())
    assert_stands_at(toy, cache.restore(cache.match(one)), TOKENS[:12])
    cache.check()


@EVERY_TOY
def test_match_that_went_stale_restores_what_is_still_there(toy: Toy) -> None:
    cache = cache_for(toy.name)
    store_at(cache, toy, TOKENS, [8, 16])
    match = cache.match(Prompt(TOKENS))
    assert match.cached_len == 16
    cache.evict_to(0)
    store_at(cache, toy, TOKENS, [8])
    assert_stands_at(toy, cache.restore(match), TOKENS[:8])
    cache.clear()
    assert_stands_at(toy, cache.restore(match), [])
    cache.check()


def test_match_before_a_split_restores_the_same_place() -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [16])
    match = cache.match(Prompt([*TOKENS[:10], 99]))
    store_at(cache, TOYS["rows"], [*TOKENS[:5], 98], [6])
    assert_stands_at(TOYS["rows"], cache.restore(match), TOKENS[:10])


def test_match_never_goes_beyond_its_limit() -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [16])
    prompt = Prompt(TOKENS[:16])
    assert [cache.match(prompt, limit=n).cached_len for n in (0, 7, 15, 16, 99)] == [
        0, 7, 15, 16, 16
    ]  # fmt: skip


def test_restore_makes_room_for_the_rest_of_the_prompt() -> None:
    """Without it the first write copies everything again."""
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [16])
    live = cache.restore(cache.match(Prompt([*TOKENS[:16], *range(600)])))
    assert live.caches[0].keys.shape[2] >= 616
    live = cache.restore(cache.match(Prompt(TOKENS)), reserve=2000)
    assert live.caches[0].keys.shape[2] >= 2016


def test_layer_that_the_model_never_fills_comes_back_empty() -> None:
    cache = cache_for("unused")
    store_at(cache, TOYS["unused"], TOKENS, [12])
    live = cache.restore(cache.match(Prompt(TOKENS)))
    assert live.position == 12
    assert live.caches[1].empty()


def test_layout_is_learned_from_the_first_caches_when_no_model_is_given() -> None:
    toy, cache = TOYS["nested"], PrefixCache(None, budget_bytes=1 << 20)
    assert cache.fresh().caches == []
    store_at(cache, toy, TOKENS, [12])
    assert_stands_at(toy, cache.restore(cache.match(Prompt(TOKENS))), TOKENS[:12])
    other = TOYS["rows"]
    store_at(cache, other, TOKENS, [12], namespace="other model")
    live = cache.restore(cache.match(Prompt(TOKENS), namespace="other model"))
    assert_stands_at(other, live, TOKENS[:12])
    cache.check()


def test_caches_without_a_layer_are_not_stored() -> None:
    """They would pass for caches that have read the prompt."""
    cache = PrefixCache(None, budget_bytes=1 << 20)
    live = cache.fresh()
    live.advance(TOKENS[:12])
    assert cache.insert(Prompt(TOKENS), live).refusal is Refusal.MISMATCH
    assert cache.match(Prompt(TOKENS)).cached_len == 0


@EVERY_TOY
def test_exact_mode_matches_only_on_the_prompts_own_schedule(toy: Toy) -> None:
    cache = cache_for(toy.name, exact=True)
    tokens = TOKENS[:20]
    prefill(cache, toy, messages(tokens, 5, 11, 17))
    assert cache.match(messages(tokens, 5, 11, 17)).cached_len == 17
    assert cache.match(messages([*tokens[:14], 99, 99], 5, 11)).cached_len == 11
    assert cache.match(messages(tokens, 6, 11, 17)).cached_len == 0
    cache.check()


def test_exact_mode_refuses_what_was_read_along_other_stops() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", exact=True)
    prompt = messages(TOKENS, 5, 11, 17)
    live = live_at(toy, prompt, 11)  # at once, not by way of 5
    assert cache.insert(prompt, live).refusal is Refusal.OFF_SCHEDULE
    live = prefill(cache, toy, prompt)
    longer = prompt.extended([7])
    toy.read(live, longer, 25)
    assert cache.insert(longer, live, kind=StopKind.REPLY).refusal is Refusal.OFF_SCHEDULE
    cache.check()


@EVERY_TOY
def test_what_is_pinned_stays_until_it_is_released(toy: Toy) -> None:
    cache = cache_for(toy.name)
    store_at(cache, toy, TOKENS, [6, 12, 18])
    store_at(cache, toy, [99] * 12, [6, 12])
    match = cache.match(Prompt(TOKENS), limit=12)
    with cache.pin(match):
        cache.evict_to(0)
        cache.check()
        assert_stands_at(toy, cache.restore(match), TOKENS[:12])
        assert cache.match(Prompt([99] * 12)).cached_len == 0
    cache.evict_to(0)
    assert cache.ledger.held_bytes == 0
    cache.check()


def test_pin_moves_along_with_insert() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    prompt = Prompt(TOKENS)
    live = live_at(toy, prompt, 6)
    with cache.pin(cache.match(prompt)) as pin:
        for end in (12, 18):
            cache.insert(prompt, live, pin=pin)
            toy.read(live, prompt, end)
        cache.insert(prompt, live, pin=pin)
        cache.evict_to(0)
        assert checkpoints(cache) == [18]
        pin.release()
        cache.evict_to(0)
        assert cache.ledger.held_bytes == 0
        pin.release()  # once more does no harm
    cache.check()


def test_pin_of_something_cleared_is_released_in_peace() -> None:
    toy, cache = TOYS["rows"], cache_for("rows")
    store_at(cache, toy, TOKENS, [12])
    pin = cache.pin(cache.match(Prompt(TOKENS)))
    cache.clear()
    store_at(cache, toy, TOKENS, [12])
    pin.release()
    cache.check()
    cache.evict_to(0)
    assert cache.ledger.held_bytes == 0


def test_pin_of_a_stale_match_holds_what_is_still_there() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    store_at(cache, toy, TOKENS, [6, 12])
    match = cache.match(Prompt(TOKENS))
    cache.clear()
    store_at(cache, toy, TOKENS, [6])
    with cache.pin(match):
        cache.evict_to(0)
        assert checkpoints(cache) == [6]
    cache.check()


def test_clear_of_one_namespace_leaves_the_others() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    for name in ("a", "b"):
        store_at(cache, toy, TOKENS, [12], namespace=name)
    half = cache.ledger.held_bytes // 2
    cache.clear("a")
    cache.clear("never seen")
    cache.check()
    assert cache.ledger.held_bytes == half
    assert cache.match(Prompt(TOKENS), namespace="b").cached_len == 12
