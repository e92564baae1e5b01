"""A cache holds states of one model and of one set of weights: others are refused, not mixed in."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers

from keepwarm import Engine, Placement, PrefixCache, Prompt, Session, cache_maker
from keepwarm.engine.prefill import Prefill
from keepwarm.errors import BadInput
from keepwarm.model.identity import Weights
from tests.architectures.zoo import ARCHITECTURES
from tests.engine.engines import tokenizer

PLACEMENT = Placement(min_span=8, prefill_step=32)
PROMPT = Prompt([i % 90 for i in range(80)])


def built(name: str = "qwen3_5", seed: int = 0) -> Any:
    mx.random.seed(seed)
    return ARCHITECTURES[name].build(mx.float32)


def read(model: Any, cache: PrefixCache, prompt: Prompt = PROMPT) -> mx.array:
    cache.bind(model)
    with Prefill(model, cache, prompt) as prefill:
        list(prefill.steps())
        return prefill.logits


def changed(model: Any) -> None:
    model.update(tree_map(lambda array: array * 1.01, model.parameters()))


@pytest.mark.parametrize("make", [lambda model: model, cache_maker], ids=["model", "maker"])
def test_cache_of_other_weights_is_refused(make: Callable[[Any], Any]) -> None:
    one, other = built(), built(seed=1)
    cache = PrefixCache(make(one), placement=PLACEMENT)
    read(one, cache)
    with pytest.raises(BadInput, match="another model object"):
        read(other, cache)
    with pytest.raises(BadInput, match="another model object"):
        Session(other, tokenizer(), cache=cache).chat("Hello")


def test_model_that_writes_its_own_parameters_anew_keeps_its_cache() -> None:
    """gemma3n clips its coefficients in every pass: other arrays of equal values."""
    model = built("gemma3n")
    cache = PrefixCache(model, placement=PLACEMENT)
    read(model, cache)
    read(model, cache)
    assert cache.match(PROMPT).cached_len > 0


def test_small_parameter_of_other_values_is_seen() -> None:
    model = built()
    weights = Weights(model)
    name, array = min(tree_flatten(model.parameters()), key=lambda pair: pair[1].nbytes)
    model.load_weights([(name, array + 0)], strict=False)
    assert weights.are_in(model)
    model.load_weights([(name, array + 1)], strict=False)
    assert not weights.are_in(model)


def test_cache_of_other_architecture_is_refused() -> None:
    cache = PrefixCache(built("qwen3_5"), placement=PLACEMENT)
    with pytest.raises(BadInput, match="make a PrefixCache for each"):
        read(built("llama"), cache)


def test_engine_that_is_given_the_cache_of_another_model_says_so() -> None:
    other = built()
    engine = Engine(lambda: (built(), tokenizer()), make_cache=lambda _: PrefixCache(other))
    engine.start()
    with pytest.raises(BadInput, match="another model object"):
        engine.wait_ready()
    engine.stop()


def test_updated_weights_are_refused_until_the_cache_is_cleared() -> None:
    model = built()
    cache = PrefixCache(model, placement=PLACEMENT)
    before = read(model, cache)
    changed(model)
    with pytest.raises(BadInput, match=r"call clear\(\)"):
        read(model, cache)
    cache.clear()
    after = read(model, cache)
    assert not mx.allclose(before, after, atol=1e-3)
    assert mx.array_equal(after, read(model, PrefixCache(model, placement=PLACEMENT)))
    read(model, cache)  # and again, from what was stored since
    assert cache.stats().cached_tokens > 0


def test_layers_that_became_lora_layers_are_refused() -> None:
    model = built("llama")
    cache = PrefixCache(model, placement=PLACEMENT)
    read(model, cache)
    linear_to_lora_layers(model, 1, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    with pytest.raises(BadInput, match="weights have changed"):
        cache.match(PROMPT)


def test_empty_cache_takes_new_weights_as_they_come() -> None:
    model = built()
    cache = PrefixCache(model, budget_bytes=0, placement=PLACEMENT)
    before = read(model, cache)
    changed(model)
    after = read(model, cache)
    assert not mx.allclose(before, after, atol=1e-3)


def test_cache_made_with_a_function_belongs_to_the_first_model_until_it_is_cleared() -> None:
    one, other = built(), built(seed=1)
    cache = PrefixCache(partial(make_prompt_cache, one), placement=PLACEMENT)
    read(one, cache)
    with pytest.raises(BadInput, match="another model object"):
        read(other, cache)
    cache.clear()
    read(other, cache)


def test_weights_are_not_kept_alive() -> None:
    model = built()
    seen = Weights(model)
    assert seen.are_in(model)
    old = weakref.ref(tree_flatten(model.parameters())[0][1])
    changed(model)
    gc.collect()
    assert old() is None
    assert not seen.are_in(model)
