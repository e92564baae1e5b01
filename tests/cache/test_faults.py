"""A cache fault is never a user's fault: whatever breaks, the request is served cold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.blocks import Capture
from keepwarm.cache.explain import Refusal
from keepwarm.cache.live import Live
from keepwarm.cache.policy import Candidate
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Node
from keepwarm.errors import Corrupt
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.attention import PlainKV
from keepwarm.state.opaque import WholeState
from tests.cache.stores import cache_for, node_at
from tests.cache.test_audit import (
    forge_checkpoint,
    forge_rows,
    forge_window_rows,
    lose_snapshot,
    lose_window,
    move_checkpoint,
)
from tests.cache.toy import TOYS, live_at, messages, prefill, store_at
from tests.state.feeding import are_same, contents

TOKENS = list(range(24))
NAME = "nested"  # rows, windows and snapshots
TOY = TOYS[NAME]


class Broken(RuntimeError):
    """What a device says when it has had enough."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("no memory")


def assert_cold(live: Live) -> None:
    assert live.position == 0
    assert are_same(contents(live.caches), contents(TOY.make()))


def assert_serves(cache: PrefixCache) -> None:
    """Prompts are read, stored and found again, as if nothing had happened."""
    prompt = messages(TOKENS, 8, 16)
    for _ in range(2):
        live = prefill(cache, TOY, prompt)
        assert are_same(contents(live.caches), contents(TOY.cold(TOKENS)))
    assert cache.match(prompt).cached_len == 22
    cache.check()


FORGED = (forge_rows, forge_window_rows, forge_checkpoint, move_checkpoint, lose_snapshot)


@pytest.mark.parametrize("plant", FORGED, ids=lambda plant: plant.__name__)
def test_state_that_is_not_what_its_place_says_is_never_used(
    plant: Callable[[Node], None],
) -> None:
    cache = cache_for(NAME)
    store_at(cache, TOY, TOKENS, [8, 16])
    plant(node_at(cache, 16))
    with pytest.raises(Corrupt):
        cache.check()
    match = cache.match(Prompt(TOKENS))
    assert match.cached_len == 16
    assert_cold(cache.restore(match))
    assert cache.stats().events["fault_restore"] == 1
    # What could not be restored is forgotten, and all before it is still there.
    cache.ledger.snapshot_bytes -= _snapshot_bytes_lost(cache)
    assert cache.match(Prompt(TOKENS)).cached_len == 8
    assert cache.restore(cache.match(Prompt(TOKENS))).position == 8
    assert_serves(cache)


def _snapshot_bytes_lost(cache: PrefixCache) -> int:
    nodes = cache._spaces[""].tree.nodes()
    return cache.ledger.snapshot_bytes - sum(n.checkpoint.nbytes for n in nodes if n.checkpoint)


def test_window_that_is_gone_is_not_taken_for_one_that_was_never_filled() -> None:
    cache = cache_for(NAME)
    store_at(cache, TOY, TOKENS, [8, 16])
    for end in (8, 16):
        lose_window(node_at(cache, end))
    assert_cold(cache.restore(cache.match(Prompt(TOKENS))))
    assert cache.stats().events["fault_restore"] == 1


def test_rows_of_another_prompt_are_never_used_between_checkpoints() -> None:
    toy, cache = TOYS["rows"], cache_for("rows")
    store_at(cache, toy, TOKENS, [8, 16])
    forge_rows(node_at(cache, 16))
    assert cache.restore(cache.match(Prompt([*TOKENS[:12], 99]))).position == 0
    assert cache.restore(cache.match(Prompt([*TOKENS[:12], 99]))).position == 8
    cache.check()


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Capture, "settle"), (Capture, "block"), (WholeState, "snapshot"), (WholeState, "measure")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_capture_that_fails_leaves_a_cache_that_serves_cold(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    cache = cache_for(NAME)
    store_at(cache, TOY, TOKENS, [8, 16])
    live = live_at(TOY, Prompt([*TOKENS[:12], *[99] * 12]), 20)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken)
        done = cache.insert(Prompt([*TOKENS[:12], *[99] * 12]), live)
    assert (done.refusal, done.detail) == (Refusal.FAULT, "no memory")
    assert cache.stats().events["fault_insert"] == 1
    cache.check()
    assert_cold(cache.restore(cache.match(Prompt(TOKENS))))
    assert_serves(cache)


def test_policy_that_fails_leaves_a_cache_that_serves_cold() -> None:
    class Confused:
        refuses = False

        def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
            raise Broken("which?")

    cache = cache_for(NAME, policy=Confused(), budget_bytes=4000)
    for chat in range(8):
        prefill(cache, TOY, messages([chat] * 20, 8, 16))
        cache.check()
    assert cache.stats().events["fault_insert"] > 0


def test_restore_that_fails_is_served_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_for(NAME)
    store_at(cache, TOY, TOKENS, [8, 16])
    with monkeypatch.context() as patch:
        patch.setattr(PlainKV, "rebuild", broken)
        assert_cold(cache.restore(cache.match(Prompt(TOKENS))))
    cache.check()
    assert_serves(cache)


@pytest.mark.parametrize("name", TOYS)
def test_device_that_fails_for_good_never_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not even while what it holds is dropped, which cuts blocks that are shared."""
    toy, cache = TOYS[name], cache_for(name)
    store_at(cache, toy, TOKENS, [8, 18])
    store_at(cache, toy, [*TOKENS[:12], 99, 99], [14])
    match, stale = cache.match(Prompt(TOKENS)), cache.match(Prompt([*TOKENS[:12], 99, 99, 99]))
    prompt = Prompt([*TOKENS[:15], *[98] * 9])
    live = live_at(toy, prompt, 20)
    pin = cache.pin(stale)
    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", broken)
        patch.setattr(mx, "async_eval", broken)
        if name != "snapshot":  # nothing is copied to bring a snapshot back
            assert cache.restore(match).position == 0
        cache.insert(prompt, live, pin=pin)
        cache.restore(stale)
        cache.clear()
    pin.release()
    cache.check()
    assert cache.ledger.held_bytes == 0
    assert prefill(cache, toy, messages(TOKENS, 8, 16)).position == 24
    cache.check()
