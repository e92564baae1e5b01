"""What is worth less than all that is held is not stored, and is learned about all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keepwarm.cache.candidates import Newcomer
from keepwarm.cache.explain import Inserted, Reason, Refusal
from keepwarm.cache.placement import StopKind
from keepwarm.cache.policy import MeasuredCost, Worth
from keepwarm.cache.returns import Role
from keepwarm.cache.space import Space
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Tree
from keepwarm.cache.watch import Place
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.stores import Clock, cache_for, checkpoints, node_at
from tests.cache.toy import TOYS, UNTHINNED, live_at, messages, store_at

TOY = TOYS["rows_snapshot"]
TURNS = (6, 9, 12, 15, 18, 21)


def go_on(cache: PrefixCache, token: int, end: int) -> Inserted:
    """A conversation of one token asks again, with `end` tokens before its generation prompt."""
    prompt = messages([token] * end + [99], *(at for at in TURNS if at <= end))
    live = cache.restore(cache.match(prompt))
    TOY.read(live, prompt, end)
    return cache.insert(prompt, live, kind=StopKind.TAIL)


def weight(end: int) -> int:
    """Of a conversation that was stored at once."""
    cache = cache_for(TOY.name)
    go_on(cache, 1, end)
    return cache.ledger.held_bytes


def busy(**settings: Any) -> PrefixCache:
    """Room for one conversation, and there is one that goes on again and again."""
    cache = cache_for(TOY.name, budget_bytes=2 * weight(21) - 1, **settings)
    for end in TURNS:
        assert go_on(cache, 1, end).is_stored
    return cache


def gone(cache: PrefixCache) -> list[Place]:
    return list(cache._evictor._watch._gone.values())


def test_newcomer_is_refused_while_all_that_is_held_is_worth_more() -> None:
    cache = busy()
    before = checkpoints(cache)
    done = go_on(cache, 2, 21)
    assert done.refusal is Refusal.WORTH_LESS
    assert cache.stats().events["refused_worth_less"] == 1
    # Of the snapshots within the conversation, which are worth still less, some may have gone.
    assert set(checkpoints(cache)) <= set(before)
    assert cache.match(Prompt([1] * 22)).cached_len == 21
    cache.check()


def test_newcomer_is_stored_when_what_is_held_was_long_left_alone() -> None:
    clock = Clock()
    cache = busy(clock=clock)
    clock.now += 1e5
    assert go_on(cache, 2, 21).is_stored
    assert cache.match(Prompt([2] * 22)).cached_len == 21


def test_newcomer_that_fits_is_always_stored() -> None:
    cache = busy()
    cache.evict_to(0)
    assert go_on(cache, 2, 21).is_stored


@pytest.mark.parametrize("policy", ["lru", "fifo", "type", Worth(MeasuredCost(), refuses=False)])
def test_other_orders_and_who_says_so_refuse_nothing_that_fits(policy: Any) -> None:
    cache = busy(policy=policy)
    assert go_on(cache, 2, 21).is_stored
    assert cache.match(Prompt([2] * 22)).cached_len == 21


def test_next_turn_of_what_was_refused_is_told_why() -> None:
    cache = busy()
    go_on(cache, 2, 18)
    match = cache.match(messages([2] * 22, *TURNS))
    assert (match.cached_len, match.reason) == (0, Reason.NOT_STORED)
    assert "worth more" in str(match)
    cache.evict_to(0)
    go_on(cache, 2, 18)
    assert cache.match(messages([2] * 22, *TURNS)).reason is Reason.EXTENDED


def test_conversation_that_comes_back_again_and_again_is_stored_in_the_end() -> None:
    """Nobody is left out for good: what was refused is watched, and its turns count."""
    cache = busy()
    stored = [go_on(cache, 2, end).is_stored for end in (15, 18, 21)]
    assert (stored[0], stored[-1]) == (False, True)


def test_refused_conversation_has_its_turns_when_it_comes_back() -> None:
    cache = busy()
    for num_turns, end in enumerate((15, 18)):
        assert go_on(cache, 2, end).refusal is Refusal.WORTH_LESS
        assert [(place.role, place.turns) for place in gone(cache)] == [(Role.TIP, num_turns)]
    go_on(cache, 2, 21)
    checkpoint = node_at(cache, 21).checkpoint
    assert checkpoint is not None
    place = cache._evictor._watch._places["", checkpoint.digest]
    assert (place.turns, place.is_counted) == (2, True)


def test_return_of_what_was_refused_is_counted_once() -> None:
    cache = busy()
    returns = cache._evictor._watch._returns
    before = returns._uses.sum()
    go_on(cache, 2, 15)
    assert returns._uses.sum() == before
    go_on(cache, 2, 18)
    assert returns._uses.sum() == before + 1


@pytest.mark.parametrize("has_room_again", [False, True])
def test_reply_does_not_come_back_to_the_end_of_its_own_prompt(has_room_again: bool) -> None:
    cache = busy()
    returns = cache._evictor._watch._returns
    before = returns._uses.sum()
    prompt = messages([2] * 16, 6, 9, 12, 15)
    live = cache.fresh()
    TOY.read(live, prompt, 15)
    assert not cache.insert(prompt, live, kind=StopKind.TAIL).is_stored
    if has_room_again:
        cache.evict_to(0)
    held = [place for place in gone(cache) if place.turns == 0]
    read = prompt.extended([50] * 4)
    TOY.read(live, read, len(read))
    assert cache.insert(read, live, kind=StopKind.REPLY).is_stored is has_room_again
    assert returns._uses.sum() == before
    assert len([place for place in gone(cache) if place.turns == 0]) == len(held) - has_room_again


@pytest.mark.parametrize(("kind", "is_replaced"), [(StopKind.TAIL, True), (StopKind.SYSTEM, False)])
def test_what_goes_on_from_a_tip_counts_without_the_snapshot_that_it_replaces(
    kind: StopKind, is_replaced: bool
) -> None:
    """Not where other conversations start from it."""
    cache = cache_for(TOY.name)
    prompt = messages([1] * 22, *TURNS)
    cache.insert(prompt, live_at(TOY, prompt, 6), kind=kind)
    base = node_at(cache, 6)
    assert base.checkpoint is not None
    newcomer = Newcomer(cache._spaces[""], base, prompt, 21, StopKind.TAIL, 1000)
    rival = cache._evictor._rival(newcomer, 100.0)
    assert rival.nbytes == 1000 - is_replaced * base.checkpoint.nbytes


def test_turns_shorter_than_a_span_count_as_well() -> None:
    """A chat's ends lie closer together than its checkpoints."""
    wide = replace(UNTHINNED, min_span=6)
    cache = cache_for(TOY.name, budget_bytes=2 * weight(21) - 1, placement=wide)
    for end in TURNS:
        go_on(cache, 1, end)
    for num_turns, end in enumerate((15, 18)):
        prompt = messages([2] * (end + 1), *range(1, end + 1))
        live = live_at(TOY, prompt, end)
        assert cache.insert(prompt, live, kind=StopKind.TAIL).refusal is Refusal.WORTH_LESS
        assert [place.turns for place in gone(cache)] == [num_turns]
    assert cache.match(messages([2] * 22, *range(1, 22))).reason is Reason.NOT_STORED


def test_prompts_behind_one_system_prompt_have_no_turns_of_each_other() -> None:
    cache = busy()
    marks = [Boundary(6, BoundaryKind.SYSTEM), Boundary(21, BoundaryKind.MESSAGE)]
    prompts = [Prompt([30] * 6 + [token] * 16, marks) for token in range(40, 45)]
    cache.insert(prompts[0], live_at(TOY, prompts[0], 6), kind=StopKind.SYSTEM)
    for prompt in prompts:
        go_on(cache, 1, 21)
        live = cache.restore(cache.match(prompt))
        assert live.position == 6
        TOY.read(live, prompt, 21)
        assert cache.insert(prompt, live, kind=StopKind.TAIL).refusal is Refusal.WORTH_LESS
    assert [place.turns for place in gone(cache)] == [0] * len(prompts)
    assert cache._evictor._watch._places["", prompts[0].digest(6)].is_counted


def test_checkpoint_where_prompts_part_is_worth_all_that_it_spares() -> None:
    """The rows are there, and without their windows they are of no use."""
    cache = cache_for("rows_window")
    store_at(cache, TOYS["rows_window"], [1] * 30, [30])
    space = cache._spaces[""]
    base = space.tree.split(node_at(cache, 30), 12)
    newcomer = Newcomer(space, base, Prompt([1] * 12 + [2] * 9), 12, StopKind.BRANCH, 100)
    rival = cache._evictor._rival(newcomer, 100.0)
    assert (rival.position, rival.fallback) == (12, 0)


def test_end_that_is_kept_behind_a_refused_one_is_no_return() -> None:
    cache = busy()
    returns = cache._evictor._watch._returns
    prompt = messages([2] * 19, 6, 9, 12, 15)
    live = live_at(TOY, prompt, 15)
    assert cache.insert(prompt, live, kind=StopKind.TAIL).refusal is Refusal.WORTH_LESS
    before = returns._uses.sum()
    TOY.read(live, prompt, 19)
    cache.insert(prompt, live, kind=StopKind.TAIL)
    assert returns._uses.sum() == before


def test_in_exact_mode_the_last_stop_of_the_schedule_is_the_end() -> None:
    cache = cache_for(TOY.name, exact=True)
    prompt = messages([2] * 20, 6, 12, 19)
    stops = cache.placement.exact_schedule(prompt)
    newcomer = Newcomer(
        Space.empty("", cache.layout, exact=True),  # type: ignore[arg-type]
        Tree(8, 1).root, prompt, stops[-1].position, StopKind.STEP, 1,
    )  # fmt: skip
    assert newcomer.is_end(cache.placement)
    assert not replace(newcomer, position=stops[0].position).is_end(cache.placement)


def test_turns_are_not_left_at_an_inner_place_that_is_stored_first() -> None:
    cache = cache_for(TOY.name)
    for end in (9, 12):
        go_on(cache, 2, end)
    cache.evict_to(0)
    other = Prompt([2] * 6 + [7] * 9)
    cache.insert(other, live_at(TOY, other, 14))
    prompt = messages([2] * 16, 6, 9, 12, 15)
    live = live_at(TOY, prompt, 6)
    assert cache.insert(prompt, live, kind=StopKind.BRANCH).is_stored
    TOY.read(live, prompt, 15)
    cache.insert(prompt, live, kind=StopKind.TAIL)
    checkpoint = node_at(cache, 15).checkpoint
    assert checkpoint is not None
    assert cache._evictor._watch._places["", checkpoint.digest].turns == 2


def test_what_somebody_waits_for_is_not_refused() -> None:
    cache = busy()
    prompt = messages([2] * 22, *TURNS)
    live = live_at(TOY, prompt, 21)
    assert not cache.insert(prompt, live, kind=StopKind.TAIL).is_stored
    assert cache.insert(prompt, live, kind=StopKind.TAIL, is_awaited=True).is_stored


def test_leaf_weighs_all_that_goes_with_it() -> None:
    """The rows before it that no checkpoint leads to any more are of no use."""
    cache = cache_for(TOY.name, policy="lru")
    store_at(cache, TOY, [1] * 40, [10, 20, 30])
    space, evictor = cache._spaces[""], cache._evictor
    for end in (10, 20):
        evictor._drop_checkpoint(space, node_at(cache, end))
    (leaf,) = evictor._all_candidates([space], 100.0)
    assert leaf.nbytes == cache.ledger.held_bytes
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert cache.ledger.held_bytes == 0
