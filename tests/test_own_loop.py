"""`prefill`: what an own loop needs of the cache, in one call; hot is cold, bit for bit or to rounding."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm import Boundary, BoundaryKind, Placement, PrefixCache, Prompt, prefill
from keepwarm.errors import BadInput
from tests.architectures.drive import random_tokens
from tests.engine.engines import model_of

PLACEMENT = Placement(min_span=16, prefill_step=40)
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2"]
SHARED = list(random_tokens(60, 0))


def prompt_of(seed: int) -> Prompt:
    rest = list(random_tokens(12, seed))
    return Prompt([*SHARED, *rest], [Boundary(len(SHARED), BoundaryKind.MARK)])


def cache_of(kind: str, **settings: Any) -> PrefixCache:
    return PrefixCache(model_of(kind), placement=PLACEMENT, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_hot_prefill_gives_the_logits_of_a_cold_one(kind: str, exact: bool) -> None:
    warm = cache_of(kind, exact=exact)
    prefill(model_of(kind), warm, prompt_of(1))
    found = warm.match(prompt_of(2))
    live, hot = prefill(model_of(kind), warm, prompt_of(2))
    _, cold = prefill(model_of(kind), cache_of(kind, exact=exact, budget_bytes=0), prompt_of(2))
    assert found.cached_len >= len(SHARED)
    assert live.position == len(prompt_of(2))
    assert mx.array_equal(hot, cold) if exact else mx.allclose(hot, cold, atol=1e-4)
    warm.check()


def test_token_ids_are_a_prompt_and_the_same_asked_again_reads_nothing() -> None:
    cache = cache_of("llama")
    for _ in range(2):
        live, logits = prefill(model_of("llama"), cache, SHARED)
    assert live.position == len(SHARED)
    assert logits.shape[0] == 1
    assert cache.stats().cached_tokens >= len(SHARED) - 1


def test_the_caches_are_the_callers_own() -> None:
    model, cache = model_of("qwen3_5"), cache_of("qwen3_5")
    live, logits = prefill(model, cache, prompt_of(1))
    model(mx.zeros((1, 9), dtype=mx.int32), cache=live.caches)  # whatever is done with them
    _, again = prefill(model, cache, prompt_of(1))
    assert mx.array_equal(logits, again)


def test_the_cache_of_another_model_is_refused() -> None:
    with pytest.raises(BadInput, match="another model object"):
        prefill(model_of("llama"), cache_of("qwen3_5"), SHARED)
