"""Every reason for a match as long as it is, brought about once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from mlx_lm.models.cache import KVCache

from keepwarm.cache.explain import Reason, Refusal
from keepwarm.cache.policy import Candidate
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.stores import cache_for, checkpoints
from tests.cache.toy import TOYS, messages, prefill, store_at
from tests.state.feeding import Tape

TOKENS = list(range(24))


def reason(cache: PrefixCache, prompt: Prompt, namespace: str = "") -> Reason:
    return cache.match(prompt, namespace=namespace).reason


def test_exact_when_all_up_to_the_generation_prompt_is_stored() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    chat = Prompt(
        TOKENS[:12], [Boundary(9, BoundaryKind.MESSAGE), Boundary(12, BoundaryKind.GENERATION)]
    )
    prefill(cache, toy, chat)
    assert cache.match(chat).cached_len == 9
    assert reason(cache, chat) is Reason.EXACT
    assert reason(cache, Prompt(TOKENS[:9])) is Reason.EXACT


@pytest.mark.parametrize("name", ["rows", "rows_snapshot"])
def test_extended_when_the_prompt_goes_on_where_a_stored_one_ends(name: str) -> None:
    cache = cache_for(name)
    store_at(cache, TOYS[name], TOKENS, [9])
    match = cache.match(Prompt(TOKENS))
    assert (match.cached_len, match.reason, match.is_branch) == (9, Reason.EXTENDED, False)


@pytest.mark.parametrize("name", ["rows", "rows_snapshot"])
def test_branched_when_a_stored_prompt_goes_another_way(name: str) -> None:
    cache = cache_for(name)
    store_at(cache, TOYS[name], TOKENS, [6, 12])
    match = cache.match(Prompt([*TOKENS[:9], 99, 99]))
    assert (match.reason, match.parted_at, match.is_branch) == (Reason.BRANCHED, 9, True)
    assert match.cached_len == (9 if name == "rows" else 6)
    assert stop_kinds(cache, Prompt([*TOKENS[:9], 99, 99])) == (
        ["tail", "end"] if name == "rows" else ["branch", "tail", "end"]
    )


def stop_kinds(cache: PrefixCache, prompt: Prompt) -> list[str]:
    return [str(stop.kind) for stop in cache.stops(cache.match(prompt))]


def test_no_checkpoint_when_prompts_part_before_the_first_one() -> None:
    cache = cache_for("rows_snapshot")
    store_at(cache, TOYS["rows_snapshot"], TOKENS, [12])
    match = cache.match(Prompt([*TOKENS[:9], 99]))
    assert (match.cached_len, match.parted_at, match.reason) == (0, 9, Reason.NO_CHECKPOINT)


def test_cold_when_nothing_begins_alike() -> None:
    cache = cache_for("rows")
    assert reason(cache, Prompt(TOKENS)) is Reason.COLD
    store_at(cache, TOYS["rows"], TOKENS, [12])
    assert reason(cache, Prompt([99, 98])) is Reason.COLD


def test_cold_when_only_the_markup_before_the_first_message_is_shared() -> None:
    cache = cache_for("rows_snapshot")
    prefill(cache, TOYS["rows_snapshot"], messages(TOKENS, 6, 12))
    other = [*TOKENS[:3], 99, 98, 97]
    assert reason(cache, messages(other, 5)) is Reason.COLD
    assert reason(cache, messages([*other[:3], 99], 3)) is Reason.NO_CHECKPOINT


@pytest.mark.parametrize("name", ["rows", "rows_snapshot", "window_keep"])
def test_evicted_when_a_longer_match_had_to_go(name: str) -> None:
    toy, cache = TOYS[name], cache_for(name)
    prompt = messages(TOKENS, 6, 12)
    prefill(cache, toy, prompt)
    cache.evict_to(0)
    match = cache.match(prompt)
    assert (match.cached_len, match.reason) == (0, Reason.EVICTED)
    prefill(cache, toy, prompt)
    assert reason(cache, prompt) is Reason.EXACT


class DeepestFirst:
    refuses = False

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: -c.position)


def test_evicted_when_only_the_deepest_checkpoint_had_to_go() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot", policy=DeepestFirst())
    prompt = messages(TOKENS[:18], 6, 12)
    prefill(cache, toy, prompt)
    while 12 in checkpoints(cache):
        cache.evict_to(cache.ledger.held_bytes - 1)
    match = cache.match(prompt)
    assert (match.cached_len, match.reason) == (6, Reason.EVICTED)
    prefill(cache, toy, prompt)
    assert cache.match(prompt, limit=8).reason is not Reason.EVICTED  # it is back


def test_other_namespace_when_only_another_caller_has_it() -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [12], namespace="somebody else")
    match = cache.match(Prompt(TOKENS), namespace="me")
    assert (match.cached_len, match.reason) == (0, Reason.OTHER_NAMESPACE)
    assert cache.match(Prompt(TOKENS), namespace="somebody else").cached_len == 12
    cache.clear("somebody else")
    assert reason(cache, Prompt(TOKENS), "me") is Reason.COLD


class Locked(Tape):
    """What no copy can be made of."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_disabled_when_a_layer_cannot_be_copied() -> None:
    cache = PrefixCache(lambda: [KVCache(), Locked()], budget_bytes=1 << 20)
    assert "lock" in (cache.disabled_because or "")
    match = cache.match(Prompt(TOKENS))
    assert (match.cached_len, match.reason) == (0, Reason.DISABLED)
    live = cache.restore(match)
    assert [type(layer) for layer in live.caches] == [KVCache, Locked]
    assert live.position == 0
    live.advance(TOKENS[:12])
    done = cache.insert(Prompt(TOKENS), live)
    assert (done.refusal, done.detail) == (Refusal.DISABLED, cache.disabled_because)
    with cache.pin(match):
        cache.check()


def test_each_reason_is_counted_and_has_words() -> None:
    cache = cache_for("rows")
    cache.match(Prompt(TOKENS))
    store_at(cache, TOYS["rows"], TOKENS, [12])
    cache.match(Prompt(TOKENS))
    stats = cache.stats()
    assert (stats.events["match_cold"], stats.events["match_extended"]) == (1, 1)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.hit_rate) == (48, 12, 0.25)
    assert len({reason.words for reason in Reason}) == len(Reason)
    assert str(cache.match(Prompt(TOKENS))).startswith("12 of 24 tokens cached: ")
