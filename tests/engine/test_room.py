"""Memory: known before a sequence is admitted, and never passed by those that run."""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx
import pytest

from keepwarm import PrefixCache, cache_maker
from keepwarm.engine.memory import Footprint
from keepwarm.engine.request import Sampling
from keepwarm.machine import free_bytes
from tests.architectures.drive import prompt_of, random_tokens

from .engines import Bench, alone, bench, model_of

KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2", "llama4"]


def prompts(count: int, length: int = 200) -> list[Any]:
    return [prompt_of([random_tokens(length, i)]) for i in range(count)]


@pytest.mark.parametrize(
    ("kind", "kv_bits"), [*((kind, None) for kind in KINDS), ("llama", 8), ("qwen3_5", 8)]
)
def test_footprint_is_what_live_caches_take(kind: str, kv_bits: int | None) -> None:
    model = model_of(kind)
    make = cache_maker(model, kv_bits, 32)
    caches = make()
    mx.eval(model(mx.zeros((1, 4), dtype=mx.int32), cache=caches))
    footprint = Footprint.of(caches)
    for length in (1, 255, 256, 257, 700):
        caches = make()
        for start in range(0, length, 100):
            tokens = mx.zeros((1, min(100, length - start)), dtype=mx.int32)
            mx.eval(model(tokens, cache=caches), [cache.state for cache in caches])
        held = sum(cache.nbytes for cache in caches)
        assert held <= footprint.at(length)
        if kind == "llama":  # no more than the slack of its buffers
            assert footprint.at(length) - held <= 512 / length * footprint.at(length)


def test_free_memory_is_less_than_the_device_has() -> None:
    info = mx.device_info()
    total = info.get("memory_size") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free_bytes() < total


def tight(kind: str, num_sequences: float, *, exact: bool = False, **settings: Any) -> Bench:
    """Room for that many sequences of 512 tokens, and nothing else."""
    model = model_of(kind)
    caches = PrefixCache(model, budget_bytes=0).fresh().caches
    mx.eval(model(mx.zeros((1, 4), dtype=mx.int32), cache=caches))
    each = Footprint.of(caches).at(512)
    memory_bytes = int(num_sequences * each)
    return bench(kind, exact=exact, memory_bytes=memory_bytes, budget_bytes=each, **settings)


def test_requests_wait_rather_than_overrun() -> None:
    made = tight("llama", 3.2)
    heard = [made.ask(prompt, 4)[1] for prompt in prompts(8)]
    while made.core.is_busy:
        made.core.step()
        held = made.cache.ledger.held_bytes
        assert made.core.live_bytes + held <= made.core._room.memory_bytes
        assert len(made.core.batch) + len(made.core.queue.started) <= 3
    made.cache.check()
    assert [h.error for h in heard] == [None] * 8
    assert made.core.tally.preemptions == 0


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_decode_that_would_overrun_preempts_the_youngest_and_resumes_it(
    kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwarm.engine.room._HEADROOM", 0)
    made = tight(kind, 1.9, exact=exact)
    asked = prompts(3, 240)
    heard = [made.ask(prompt, 40)[1] for prompt in asked]  # two fit until they pass 256 tokens
    while made.core.is_busy:
        made.core.step()
        made.core._make_room()
        if len(made.core.batch) + len(made.core.queue.started) > 1:
            assert made.core.live_bytes <= made.core._room.memory_bytes
    made.cache.check()
    assert made.core.tally.preemptions > 0
    assert [len(h.tokens) for h in heard] == [40] * 3
    if exact:
        wanted = [alone(made, prompt, 40, exact=exact) for prompt in asked]
        assert [h.tokens for h in heard] == wanted


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_preempted_sequence_goes_on_with_its_seed(exact: bool) -> None:
    made = bench("llama", exact=exact)
    prompt, sampling = prompts(1)[0], Sampling(temperature=1.0, seed=5, presence_penalty=0.5)
    sequence, heard = made.ask(prompt, 40, sampling=sampling)
    for length in (3, 11, 12):
        made.step_until(lambda length=length: len(heard.tokens) >= length)  # type: ignore[misc]
        made.core._preempt(sequence)
    made.run()
    assert heard.tokens == alone(made, prompt, 40, sampling, exact=exact)


def test_preempted_while_replaying_it_loses_nothing() -> None:
    made = bench("qwen3_5", exact=True)
    prompt = prompts(1)[0]
    sequence, heard = made.ask(prompt, 30)
    made.step_until(lambda: len(heard.tokens) >= 12)
    made.core._preempt(sequence)
    made.step_until(lambda: sequence.num_known == 5)
    made.core._preempt(sequence)
    made.run()
    assert heard.tokens == alone(made, prompt, 30, exact=True)


def test_preempted_while_read_goes_on_where_it_stood() -> None:
    made = bench("qwen3_5")
    sequence, heard = made.ask(prompts(1, 300)[0], 4)
    made.step_until(lambda: len(heard.readings) == 4)
    read = made.core.tally.prefilled_tokens
    made.core._preempt(sequence)
    made.run()
    assert len(heard.tokens) == 4
    assert made.core.tally.prefilled_tokens == heard.result.prompt_tokens
    assert read < heard.result.prompt_tokens


def test_sequence_that_fills_all_memory_by_itself_ends() -> None:
    made = tight("llama", 1.0)
    _, heard = made.ask(prompts(1)[0], 2000)
    made.run()
    assert heard.result.finish_reason == "length"
    assert 100 < len(heard.tokens) < 2000


def test_cache_gives_way_to_running_sequences_and_gets_its_room_back() -> None:
    made = tight("llama", 2.0)
    for prompt in prompts(3, 300):
        made.ask(prompt, 2)
        made.run()
    assert made.cache.ledger.held_bytes > 0
    heard = [made.ask(prompt, 2)[1] for prompt in prompts(2, 280)]
    made.run()
    assert [h.error for h in heard] == [None, None]
    made.core.step()
    assert made.cache.ledger.reserved_bytes == 0


def test_room_for_a_prompt_is_not_made_of_what_it_starts_from() -> None:
    made = tight("llama", 1.5)
    first, *others = prompts(4, 150)
    for prompt in (first, *others):
        made.ask(prompt, 2)
        made.run()
    _, heard = made.ask(first.extended(random_tokens(250, 9)), 2)
    made.run()
    assert heard.result.cached_tokens >= 150
    assert not made.cache.peek(others[0]).cached_len  # there was no room for all
