"""Storing: nothing twice, nothing that does not belong, and no byte that is not counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from keepwarm.cache.explain import Refusal
from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement
from keepwarm.cache.store import PrefixCache
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import ROW_BYTES, cache_for, checkpoints
from tests.cache.toy import TOYS, Toy, live_at, prefill, store_at
from tests.state.memory import active_bytes, is_about

TOKENS = list(range(24))


def refusal(cache: PrefixCache, prompt: Prompt, live: Live) -> Refusal | None:
    before = cache.stats()
    done = cache.insert(prompt, live)
    cache.check()
    if done.refusal is not None:
        assert done.detail
        assert cache.stats().held_bytes == before.held_bytes
    return done.refusal


def test_state_is_refused_under_the_key_of_other_tokens() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    live = live_at(toy, Prompt(TOKENS), 12)
    assert refusal(cache, Prompt([99, *TOKENS[1:]]), live) is Refusal.MISMATCH
    assert refusal(cache, Prompt(TOKENS[:11]), live) is Refusal.MISMATCH
    assert refusal(cache, Prompt(TOKENS), Live(toy.make())) is Refusal.MISMATCH
    assert refusal(cache, Prompt(TOKENS), live) is None


@pytest.mark.parametrize("name", [n for n in TOYS if n != "snapshot"])
def test_state_of_position_192_is_refused_under_key_96(name: str) -> None:
    toy, cache = TOYS[name], cache_for(name)
    prompt = Prompt([i % 7 for i in range(200)])
    live = Live.at(toy.cold(prompt.tokens[:192].tolist()), prompt, 96, [])
    assert refusal(cache, prompt, live) is Refusal.MISMATCH
    assert refusal(cache, prompt, live_at(toy, prompt, 192)) is None


@pytest.mark.parametrize("layer", [0, 2])
def test_one_layer_that_lags_behind_is_refused(layer: int) -> None:
    toy, cache = TOYS["windows"], cache_for("windows")
    live = live_at(toy, Prompt(TOKENS), 12)
    live.caches[layer] = toy.cold(TOKENS[:11])[layer]
    assert refusal(cache, Prompt(TOKENS), live) is Refusal.MISMATCH


OTHERS: dict[str, Callable[[], list[Any]]] = {
    "another window": lambda: [KVCache(), RotatingKVCache(6)],
    "another kind": lambda: [KVCache(), KVCache()],
    "another order": lambda: [RotatingKVCache(5), KVCache()],
    "fewer layers": lambda: [KVCache()],
    "recurrent": lambda: [KVCache(), ArraysCache(2)],
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_caches_of_another_model_are_refused(what: str, is_first: bool) -> None:
    cache = cache_for("rows_window")
    if not is_first:
        store_at(cache, TOYS["rows_window"], TOKENS, [6])
    live = live_at(Toy("other", OTHERS[what]), Prompt(TOKENS), 12)
    assert refusal(cache, Prompt(TOKENS), live) is Refusal.MISMATCH


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 1, 12, 4), mx.bfloat16), ((1, 2, 12, 4), mx.float32)], ids=str
)
def test_rows_of_another_shape_or_type_are_refused(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    cache = cache_for("rows")
    store_at(cache, TOYS["rows"], TOKENS, [6])
    caches = [KVCache(), KVCache()]
    for layer in caches:
        layer.update_and_fetch(mx.zeros(shape, dtype), mx.zeros(shape, dtype))
    live = Live.at(caches, Prompt(TOKENS), 12, [])
    assert refusal(cache, Prompt(TOKENS), live) is Refusal.MISMATCH


def test_caches_of_a_batch_are_refused() -> None:
    cache = cache_for("rows")
    caches = [KVCache(), KVCache()]
    for layer in caches:
        layer.update_and_fetch(mx.zeros((2, 1, 12, 4)), mx.zeros((2, 1, 12, 4)))
    live = Live.at(caches, Prompt(TOKENS), 12, [])
    assert refusal(cache, Prompt(TOKENS), live) is Refusal.MISMATCH


def test_settings_that_cannot_be_meant_are_refused() -> None:
    for settings in ({"budget_bytes": -1}, {"policy": "mru"}):
        with pytest.raises(BadInput):
            cache_for("rows", **settings)
    with pytest.raises(BadInput):
        PrefixCache(42)


def test_rows_that_are_there_are_not_stored_again() -> None:
    toy, cache = TOYS["rows_snapshot"], cache_for("rows_snapshot")
    prompt = Prompt(TOKENS)
    live = live_at(toy, prompt, 12)
    first, second = cache.insert(prompt, live), cache.insert(prompt, live)
    assert first.nbytes == cache.ledger.held_bytes > 0
    assert (second.is_stored, second.num_rows, second.nbytes) == (True, 0, 0)
    toy.read(live, prompt, 20)
    assert cache.insert(prompt, live).num_rows == 8
    cache.check()


@pytest.mark.parametrize("num_chats", [1, 2, 10])
def test_conversations_hold_what_they_share_once(num_chats: int) -> None:
    toy, cache = TOYS["rows"], cache_for("rows")
    for chat in range(num_chats):
        tokens = [*TOKENS, *[100 + chat] * 5]
        prefill(cache, toy, Prompt([*tokens, 0]))
        cache.check()
    assert cache.ledger.rows_bytes == (24 + 5 * num_chats) * 2 * ROW_BYTES
    assert cache.ledger.snapshot_bytes == 0


def test_ledger_says_what_mlx_holds() -> None:
    def make() -> list[Any]:
        return [KVCache(), RotatingKVCache(64), ArraysCache(1)]

    def read(live: Live, count: int) -> None:
        for layer in live.caches[:2]:
            rows = mx.ones((1, 8, count, 64)) * live.position
            layer.update_and_fetch(rows, rows)
        live.caches[2][0] = mx.ones((1, 64, 1024)) * live.position
        mx.eval([layer.state for layer in live.caches])

    cache = PrefixCache(make, budget_bytes=1 << 30, placement=Placement(64, 256))
    before = active_bytes()
    for chat in range(4):
        prompt = Prompt([*range(300), *[1000 + chat] * 300])
        live = cache.restore(cache.match(prompt))
        while live.position < 600:
            read(live, 100)
            live.advance(prompt.tokens[live.position : live.position + 100])
            assert cache.insert(prompt, live).is_stored
    del live
    cache.evict_to(cache.ledger.held_bytes // 2)  # cuts blocks, too
    blocks = {s.block for n in cache._spaces[""].tree.nodes() for g in n.spans for s in g}
    num_buffers = sum(2 * len(block.arrays) for block in blocks) + len(checkpoints(cache))
    del blocks
    assert cache.ledger.held_bytes > 1 << 20
    assert is_about(active_bytes() - before, cache.ledger.held_bytes, num_buffers)
    cache.clear()
    assert active_bytes() == before
    cache.check()
