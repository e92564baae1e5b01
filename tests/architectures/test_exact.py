"""Exact mode: from every checkpoint, bit for bit what a run without any cache gives."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.store import PrefixCache

from .drive import PLACEMENT, bits, greedy, prompt_of, random_tokens, read, read_cold
from .zoo import ARCHITECTURES, Architecture

NUM_GREEDY = 32

CASES = [
    pytest.param(architecture, dtype, id=f"{name}-{str(dtype).split('.')[-1]}")
    for name, architecture in ARCHITECTURES.items()
    for dtype in (mx.float32, mx.bfloat16)
]


def exact_cache(model: Any) -> PrefixCache:
    return PrefixCache(model, exact=True, placement=PLACEMENT, budget_bytes=1 << 28)


@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_every_checkpoint_gives_the_bits_of_a_cold_run(
    architecture: Architecture, dtype: mx.Dtype
) -> None:
    model = architecture.build(dtype)
    spans = [random_tokens(n, seed) for seed, n in enumerate((24, 9, 30, 61, 20))]
    # From the last stop on a single token is read, from the others a chunk comes first.
    prompt = prompt_of(spans, tail=random_tokens(1, 99))
    cold = read_cold(model, prompt, PLACEMENT.exact_stops(prompt, 0))
    cache = exact_cache(model)
    first = read(model, cache, prompt)
    assert bits(first.logits) == bits(cold.logits)
    assert first.live.cuts == cold.live.cuts
    cuts = list(cold.live.cuts)
    cold_tokens, cold_end = greedy(model, cold, NUM_GREEDY)
    # System, message, message, step, message, message.
    assert first.stored_at == [24, 33, 63, 103, 124, 144]
    for position in first.stored_at:
        hot = read(model, cache, prompt, limit=position)
        assert hot.cached_len == position
        # On the CPU most of these small models have the same bits however they are cut, so the
        # cuts are compared as well.
        assert hot.live.cuts == cuts
        assert bits(hot.logits) == bits(cold.logits)
        hot_tokens, hot_end = greedy(model, hot, NUM_GREEDY)
        assert hot_tokens == cold_tokens
        assert bits(hot_end) == bits(cold_end)
