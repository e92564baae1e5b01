"""What is worth less than all that is held is not stored, and is learned about all the same."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.cache.explain import Inserted, Reason, Refusal
from keepwarm.cache.placement import StopKind
from keepwarm.cache.policy import MeasuredCost, Worth
from keepwarm.cache.returns import Role
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.watch import Place
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import Clock, cache_for, checkpoints, node_at
from tests.cache.toy import TOYS, messages, store_at

TOY = TOYS["rows_snapshot"]
TURNS = (6, 9, 12, 15, 18, 21)


def go_on(
    cache: PrefixCache, token: int, end: int, *, reply_len: int = 0, reply: int = 50
) -> Inserted:
    """A conversation of one token asks again, with `end` tokens before its generation prompt."""
    ends = [at for at in TURNS if at <= end]
    prompt = messages([token] * end + [99], *ends)
    live = cache.restore(cache.match(prompt))
    TOY.read(live, prompt, end)
    done = cache.insert(prompt, live, kind=StopKind.TAIL)
    if reply_len:
        read = prompt.extended([reply] * reply_len)
        TOY.read(live, read, len(read))
        done = cache.insert(read, live, kind=StopKind.REPLY)
    return done


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
    assert (match.cached_len, match.reason) == (0, Reason.REFUSED)
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


def test_what_goes_on_from_a_tip_counts_without_the_snapshot_that_it_replaces() -> None:
    """A little more of a conversation is dear only if its last snapshot had to stay, too."""
    cache = cache_for(TOY.name, budget_bytes=2 * weight(21))
    for end in TURNS:
        go_on(cache, 1, end)
    go_on(cache, 2, 6)
    store_at(cache, TOY, [1] * 22, [21])
    assert go_on(cache, 2, 9).is_stored
    cache.check()


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
