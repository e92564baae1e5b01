"""Proof that the zoo is fit to test a cache with: all state matters, and chunks agree."""

from __future__ import annotations

import copy
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache, make_prompt_cache
from numpy.typing import NDArray

from .zoo import (
    ARCHITECTURES,
    UNBUILDABLE,
    VOCAB_SIZE,
    arrays,
    cache_classes,
    leaves,
    put_array,
)
from .zoo.weights import Model

Logits = NDArray[np.float32]

PREFIX_LEN = 95  # the next token fills a chunk of llama4 and closes a group of deepseek_v41
FAR_LEN = 32  # the tokens of the prefix called distant: no window or convolution sees them
CHUNK_LENS = (40, 56) + (1,) * 8
# In standard deviations of the logits. In float32 a cache that does not matter moves them by
# 0 and rounding by some 1e-5; the least that any array of the zoo moves them by is 0.03.
MATTERS = 1e-2
CHUNK_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Prefilled:
    """One model, three prefixes in its caches: a first, another, the first with a new start."""

    model: Model
    caches: list[Any]
    other: list[Any]
    distant: list[Any]
    logits: Logits  # of the next token after the first prefix


@cache
def prefilled(name: str) -> Prefilled:
    model = ARCHITECTURES[name].build()
    tokens = draw_tokens(1, PREFIX_LEN)
    distant = mx.concatenate([draw_tokens(3, FAR_LEN), tokens[:, FAR_LEN:]], axis=1)
    prefixes = (tokens, draw_tokens(2, PREFIX_LEN), distant)
    caches, other, far = (prefill(model, prefix) for prefix in prefixes)
    return Prefilled(model, caches, other, far, read_next(model, copy.deepcopy(caches)))


def draw_tokens(seed: int, num_tokens: int) -> mx.array:
    return mx.random.randint(0, VOCAB_SIZE, (1, num_tokens), key=mx.random.key(seed))


def prefill(model: Model, tokens: mx.array) -> list[Any]:
    caches: list[Any] = make_prompt_cache(model)
    mx.eval(model(tokens, cache=caches))
    mx.eval([list(arrays(leaf).values()) for _, leaf in leaves(caches)])
    return caches


def read_next(model: Model, caches: list[Any]) -> Logits:
    """The logits of one fixed token after what the caches hold. Adds it to the caches."""
    return np.array(model(draw_tokens(4, 1), cache=caches)[0, -1])


def moved_by(probe: Prefilled, source: list[Any], path: str, names: list[str]) -> float:
    """How far the next logits move when these arrays of one leaf come from ``source``."""
    swapped = copy.deepcopy(probe.caches)
    leaf, donor = dict(leaves(swapped))[path], dict(leaves(source))[path]
    for name in names:
        put_array(leaf, name, arrays(donor)[name])
    return relative_difference(read_next(probe.model, swapped), probe.logits)


def relative_difference(logits: Logits, reference: Logits) -> float:
    return float(np.abs(logits - reference).max() / reference.std())


def label(name: str) -> str:
    classes = dict.fromkeys(cache_classes(ARCHITECTURES[name].skeleton()))
    return f"{name}: {' + '.join(classes)}"


every_architecture = pytest.mark.parametrize("name", ARCHITECTURES, ids=label)


@every_architecture
def test_logits_are_finite_spread_and_follow_the_prefix(name: str) -> None:
    model = prefilled(name).model
    prefixes = mx.random.randint(0, VOCAB_SIZE, (8, 28), key=mx.random.key(6))
    tokens = mx.concatenate([prefixes, mx.zeros((8, 1), mx.int32)], axis=1)  # all end alike
    logits = np.array(model(tokens, cache=make_prompt_cache(model))[:, -1])
    assert np.isfinite(logits).all()
    assert all(0.5 < spread < 5.0 for spread in logits.std(axis=-1))
    assert len(set(logits.argmax(axis=-1))) > 2


@every_architecture
def test_every_cache_array_reaches_the_next_logits(name: str) -> None:
    probe, inert = prefilled(name), ARCHITECTURES[name].inert
    for path, leaf in leaves(probe.caches):
        assert bool(arrays(leaf)) != (path in inert), f"{path} is empty, or said to be"
        for array_name in arrays(leaf):
            moved = moved_by(probe, probe.other, path, [array_name])
            if f"{path}.{array_name}" in inert:
                assert moved == 0.0, f"{path}.{array_name} is said to be inert"
            else:
                assert moved > MATTERS, f"{path}.{array_name}"


@every_architecture
def test_distant_tokens_reach_the_next_logits_through_every_long_memory(name: str) -> None:
    probe, architecture = prefilled(name), ARCHITECTURES[name]
    for path, leaf in leaves(probe.caches):
        is_short = isinstance(leaf, RotatingKVCache | ChunkedKVCache)
        if is_short or path in architecture.short_leaves or path in architecture.inert:
            continue
        assert moved_by(probe, probe.distant, path, list(arrays(leaf))) > MATTERS, path


@every_architecture
def test_chunked_prefill_agrees_with_one_shot(name: str) -> None:
    model, architecture = prefilled(name).model, ARCHITECTURES[name]
    errors = []
    for seed in (5, 6, 7):  # in one of them a token may be as near to one expert as to another
        tokens = draw_tokens(seed, sum(CHUNK_LENS))
        one_shot = np.array(model(tokens, cache=make_prompt_cache(model)))
        errors.append(relative_difference(chunked_logits(model, tokens), one_shot))
    error = sorted(errors)[1]
    if architecture.chunking_error is None:
        assert error < CHUNK_TOLERANCE
    else:  # fails when mlx-lm mends it, too
        recorded, _ = architecture.chunking_error
        assert recorded / 2 < error < recorded * 2


def chunked_logits(model: Model, tokens: mx.array) -> Logits:
    caches, parts, start = make_prompt_cache(model), [], 0
    for chunk_len in CHUNK_LENS:
        parts.append(model(tokens[:, start : start + chunk_len], cache=caches))
        start += chunk_len
    return np.array(mx.concatenate(parts, axis=1))


@every_architecture
def test_bfloat16_runs_and_keeps_its_type(name: str) -> None:
    model = ARCHITECTURES[name].build(mx.bfloat16)
    caches = prefill(model, draw_tokens(1, 24))
    logits = model(draw_tokens(4, 1), cache=caches)
    assert logits.dtype == mx.bfloat16
    assert mx.isfinite(logits).all().item()
    dtypes = {array.dtype for _, leaf in leaves(caches) for array in arrays(leaf).values()}
    assert mx.bfloat16 in dtypes
    assert dtypes <= {mx.bfloat16, mx.float32, mx.int64}


@every_architecture
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    first = weights(prefilled(name).model)
    again, other = (weights(ARCHITECTURES[name].build(seed=seed)) for seed in (0, 1))
    assert all(mx.array_equal(first[path], again[path]).item() for path in first)
    assert not all(mx.array_equal(first[path], other[path]).item() for path in first)


def weights(model: Model) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def test_every_mlx_lm_type_with_caches_of_its_own_is_in_the_zoo() -> None:
    known = {a.module_name for a in ARCHITECTURES.values()} | set(UNBUILDABLE)
    names = {module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)}
    missing = {name for name in names - known - {"cache"} if has_own_caches(name)}
    assert not missing
    assert known <= names
    assert not set(ARCHITECTURES) & set(UNBUILDABLE)


def has_own_caches(name: str) -> bool:
    """Whether the type, or one it inherits from, chooses its caches, or defines a cache class."""
    try:
        module = import_module(f"mlx_lm.models.{name}")
    except (ImportError, SystemExit):  # olmo ends the process where its own package is missing
        source = Path(mlx_lm.models.__path__[0], f"{name}.py").read_text()
        return "make_cache" in source
    own = [key for key, value in vars(module).items() if is_defined_in(module.__name__, value)]
    return hasattr(getattr(module, "Model", None), "make_cache") or any(
        key.endswith("Cache") for key in own
    )


def is_defined_in(module_name: str, value: object) -> bool:
    return isinstance(value, type) and value.__module__ == module_name


def test_the_zoo_holds_every_cache_class_that_models_use() -> None:
    classes = {
        type(leaf).__name__
        for architecture in ARCHITECTURES.values()
        for _, leaf in leaves(make_prompt_cache(architecture.skeleton()))
    }
    assert classes == {"KVCache", "RotatingKVCache", "ChunkedKVCache", "ArraysCache", "LayerCache"}
