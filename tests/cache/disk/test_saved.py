"""A cache saved to a folder and loaded by another one: the same states, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from keepwarm import Boundary, BoundaryKind, Placement, PrefixCache, Prompt, prefill
from keepwarm.errors import BadInput
from tests.architectures.drive import random_tokens
from tests.architectures.zoo import ARCHITECTURES
from tests.engine.engines import model_of

PLACEMENT = Placement(min_span=16, prefill_step=40)
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2"]
SHARED = list(random_tokens(60, 0))


def prompt_of(seed: int) -> Prompt:
    rest = list(random_tokens(30, seed))
    ends = [Boundary(len(SHARED), BoundaryKind.MARK), Boundary(85, BoundaryKind.MESSAGE)]
    return Prompt([*SHARED, *rest], ends)


def cache_of(kind: str, **settings: Any) -> PrefixCache:
    return PrefixCache(model_of(kind), placement=PLACEMENT, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_is_loaded_with_the_very_states(kind: str, tmp_path: Path) -> None:
    model, first, again = model_of(kind), cache_of(kind), cache_of(kind)
    for seed in (1, 2):
        prefill(model, first, prompt_of(seed))
    assert first.save(tmp_path) > 0
    assert again.load(tmp_path) > len(SHARED)
    again.check()
    for seed in (1, 2):
        found, wanted = again.match(prompt_of(seed)), first.match(prompt_of(seed))
        assert len(SHARED) <= found.cached_len <= wanted.cached_len
        _, hot = prefill(model, again, prompt_of(seed))
        _, cold = prefill(model, cache_of(kind, budget_bytes=0), prompt_of(seed))
        assert mx.allclose(hot, cold, atol=1e-4)
    assert again.load(tmp_path) == 0  # it is there already


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_one_document_can_be_saved_and_loaded(exact: bool, tmp_path: Path) -> None:
    model, first, again = model_of("qwen3_5"), cache_of("qwen3_5", exact=exact), cache_of("qwen3_5", exact=exact)  # fmt: skip
    for seed in (1, 2):
        prefill(model, first, prompt_of(seed))
    first.save(tmp_path, prompt_of(1))
    assert again.load(tmp_path, prompt_of(1)) >= len(SHARED)
    _, hot = prefill(model, again, prompt_of(1))
    _, cold = prefill(model, cache_of("qwen3_5", exact=exact, budget_bytes=0), prompt_of(1))
    assert mx.array_equal(hot, cold) if exact else mx.allclose(hot, cold, atol=1e-4)
    if exact:
        with pytest.raises(BadInput, match="name the prompt"):
            again.load(tmp_path)


def test_nothing_of_other_weights_is_loaded(tmp_path: Path) -> None:
    first = cache_of("llama")
    prefill(model_of("llama"), first, prompt_of(1))
    first.save(tmp_path)
    mx.random.seed(5)
    other = ARCHITECTURES["llama"].build(mx.float32)
    other.update(_changed(other))
    assert PrefixCache(other, placement=PLACEMENT).load(tmp_path) == 0


def _changed(model: Any) -> Any:
    from mlx.utils import tree_map

    return tree_map(lambda array: array * 1.5, model.parameters())


def test_namespaces_are_saved_apart(tmp_path: Path) -> None:
    first, again = cache_of("llama"), cache_of("llama")
    prefill(model_of("llama"), first, prompt_of(1), namespace="a")
    first.save(tmp_path)
    assert again.load(tmp_path) == 0
    assert again.load(tmp_path, namespace="a") > 0


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    first = cache_of("llama")
    prefill(model_of("llama"), first, prompt_of(1))
    first.save(tmp_path)
    small = cache_of("llama", budget_bytes=100)
    assert small.load(tmp_path) == 0
    small.check()


def test_folders_that_cannot_be_meant_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="there is no folder"):
        cache_of("llama").load(tmp_path / "absent")
    with pytest.raises(BadInput, match="cannot be used"):
        cache_of("llama").save(tmp_path / "file")
    with pytest.raises(BadInput, match="call bind"):
        PrefixCache(lambda: cache_of("llama").fresh().caches).save(tmp_path)
