"""Prefill: one sequence, cut at its stops."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from keepwarm import Placement, PrefixCache
from keepwarm.cache.explain import Reason
from keepwarm.engine.prefill import Prefill
from keepwarm.model import head
from tests.architectures.drive import prompt_of, random_tokens
from tests.architectures.zoo import ARCHITECTURES, VOCAB_SIZE

PROMPT = prompt_of([random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 2)])
PLACEMENT = Placement(min_span=16, prefill_step=40)


@pytest.fixture(scope="module")
def model() -> Any:
    return ARCHITECTURES["qwen3_5"].build(mx.float32)


def test_given_up_and_taken_up_again_it_goes_on_where_it_stood(model: Any) -> None:
    cache = PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 26)
    with Prefill(model, cache, PROMPT) as prefill:
        for position in prefill.steps():
            if position == 24:
                break
        assert list(prefill.steps())[-1] == len(PROMPT)
        assert list(prefill.steps()) == []
        with Prefill(
            model, PrefixCache(model, placement=PLACEMENT, budget_bytes=0), PROMPT
        ) as cold:
            list(cold.steps())
    assert mx.array_equal(prefill.logits, cold.logits)
    assert prefill.live.cuts == cold.live.cuts


def test_logits_do_not_keep_those_of_the_whole_chunk_alive(model: Any) -> None:
    cache = PrefixCache(
        model, exact=True, placement=Placement(min_span=16, prefill_step=4096), budget_bytes=0
    )
    prompt = prompt_of([random_tokens(24, 0)], tail=random_tokens(1000, 3))
    with Prefill(model, cache, prompt) as prefill:
        list(prefill.steps())
    mx.clear_cache()
    before = mx.get_active_memory()
    prefill._logits = None
    mx.clear_cache()
    assert before - mx.get_active_memory() < 16 * VOCAB_SIZE


def test_restore_that_fails_reads_all_along_the_schedule(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PrefixCache(model, exact=True, placement=PLACEMENT, budget_bytes=1 << 26)
    with Prefill(model, cache, PROMPT) as first:
        list(first.steps())

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("keepwarm.cache.store.restored", broken)
    with Prefill(model, cache, PROMPT) as again:
        list(again.steps())
    assert (again.cached_len, again.reason) == (0, Reason.FAULT)
    assert again.live.cuts == first.live.cuts
    assert mx.array_equal(again.logits, first.logits)


def test_buffers_have_room_for_prompt_and_reply_from_the_first_chunk_on(model: Any) -> None:
    cache = PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 26)
    prompt = prompt_of([random_tokens(24, 0), random_tokens(300, 3), random_tokens(30, 2)])
    for expected in (24, len(prompt)):  # cold: its first stop; hot: nothing but the last chunk
        with Prefill(model, cache, prompt) as prefill:
            found = [(at, room_of(prefill)) for at in prefill.steps()]
        assert found[0] == (expected, {768})
        assert {num_tokens for _, rooms in found for num_tokens in rooms} == {768}


def room_of(prefill: Prefill) -> set[int]:
    layers = [layer for layer in prefill.live.caches if isinstance(layer, KVCache)]
    return {array.shape[2] for layer in layers for array in (layer.keys, layer.values)}


def test_what_was_read_before_giving_up_is_kept(model: Any) -> None:
    cache = PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 26)
    with Prefill(model, cache, PROMPT) as prefill:
        next(prefill.steps())
    with Prefill(model, cache, PROMPT) as again:
        assert again.cached_len == 24
    cache.check()
    cache.evict_to(0)
    assert cache.ledger.held_bytes == 0  # no pin is left behind


WINDOWED = ["gpt_oss", "gemma3_text", "llama4", "step3p5"]


@pytest.mark.parametrize("name", ["qwen3", *WINDOWED])
@pytest.mark.parametrize("max_tokens", [None, 7, 14, 17, 18, 19, 20])
def test_what_the_next_turn_starts_from_costs_no_pass_of_its_own(
    name: str, max_tokens: int | None
) -> None:
    """Rows and windows as they were before the generation prompt are still there behind it,
    wherever a chunk was cut to let others go on."""
    model = ARCHITECTURES[name].build(mx.float32)
    cache = PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 26)
    history = [random_tokens(24, 0), random_tokens(40, 1)]
    with Prefill(model, cache, prompt_of(history)) as before:
        list(before.steps())
    spans = [*history, random_tokens(15, 2)]
    one, other = prompt_of(spans), prompt_of(spans, tail=(4, 5, 6, 7))
    with Prefill(model, cache, one) as prefill:
        assert prefill.cached_len == len(one) - 18
        positions = []
        while not prefill.is_done:
            prefill.advance(max_tokens)
            positions.append(prefill.live.position)
    if max_tokens is None:
        assert positions == [len(one)]
    cache.check()
    with Prefill(model, cache, other) as hot:
        assert hot.cached_len == len(one) - 3
        list(hot.steps())
    with Prefill(model, PrefixCache(model, placement=PLACEMENT, budget_bytes=0), other) as cold:
        list(cold.steps())
    assert float(mx.abs(hot.logits - cold.logits).max()) < 1e-4


@pytest.mark.parametrize("name", ["qwen3", *WINDOWED])
@pytest.mark.parametrize("max_tokens", [None, 100, 292, 298])
def test_nor_does_it_behind_a_long_message(
    name: str, max_tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "PASS_LEN", 400)
    monkeypatch.setattr(head, "CUDA_PASS_LEN", 400)
    model = ARCHITECTURES[name].build(mx.float32)
    cache = PrefixCache(model, placement=Placement(), budget_bytes=1 << 26)
    spans = [random_tokens(200, 0), random_tokens(300, 1)]
    one, other = prompt_of(spans), prompt_of(spans, tail=(4, 5, 6, 7))
    with Prefill(model, cache, one) as prefill:
        while not prefill.is_done:
            prefill.advance(max_tokens)
        num_passes = len(prefill.live.cuts)
    if max_tokens is None:
        assert num_passes == 2  # the system prompt is for others, too
    cache.check()
    with Prefill(model, cache, other) as hot:
        assert hot.cached_len == len(one) - 3
        list(hot.steps())
    cold_cache = PrefixCache(model, placement=Placement(), budget_bytes=0)
    with Prefill(model, cold_cache, other) as cold:
        list(cold.steps())
    assert float(mx.abs(hot.logits - cold.logits).max()) < 1e-4


def test_a_model_without_a_head_by_itself_stops_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would compute the logits of a whole chunk."""
    monkeypatch.setattr(head, "PASS_LEN", 400)
    monkeypatch.setattr(head, "CUDA_PASS_LEN", 400)
    plain = ARCHITECTURES["qwen3"].build(mx.float32)
    prompt = prompt_of([random_tokens(200, 0)])
    for found, stops in ((head.head_of(plain), [203]), (head.Head(), [200, 203])):
        plain._keepwarm_head = found
        with Prefill(plain, PrefixCache(plain, budget_bytes=0), prompt) as prefill:
            assert list(prefill.steps())[-len(stops) :] == stops
