"""The seam: what takes the place of mlx-lm's functions, when, and that whole models agree."""

from __future__ import annotations

import inspect

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.model import speedups

from ..architectures.drive import random_tokens
from ..architectures.zoo import ARCHITECTURES, arrays, leaves

CHUNKS = (45, 19, 1)  # a prompt in three pieces, the last a decode step
# Differences that routing makes: a token near two experts goes to the other one.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def installed_afterwards() -> object:
    yield
    speedups.install()


def run(name: str) -> tuple[list[mx.array], list[mx.array]]:
    """The logits of each chunk and what the caches hold in the end."""
    model = ARCHITECTURES[name].build()
    caches = make_prompt_cache(model)
    tokens = random_tokens(sum(CHUNKS), 3)
    logits, start = [], 0
    for length in CHUNKS:
        logits.append(model(mx.array([tokens[start : start + length]]), cache=caches))
        mx.eval(logits[-1], [cache.state for cache in caches])
        start += length
    return logits, [array for _, leaf in leaves(caches) for array in arrays(leaf).values()]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_say_what_they_say_with_mlx_lms_own(name: str) -> None:
    ours, our_state = run(name)
    with speedups.mlx_lms_own():
        theirs, their_state = run(name)
    for mine, other in zip([*ours, *our_state], [*theirs, *their_state], strict=True):
        assert mine.shape == other.shape
        scale = max(1.0, float(mx.abs(other.astype(mx.float32)).max().item()))
        gap = mx.abs(mine.astype(mx.float32) - other.astype(mx.float32)).max().item()
        assert gap < TOLERANCE * scale


# MLX's own are compiled and tell no signature; tests/model/test_cpu_ops.py calls each.
IN_PYTHON = [entry for entry in speedups.REPLACEMENTS if entry.module != "mlx.core"]


@pytest.mark.parametrize("entry", IN_PYTHON, ids=str)
def test_each_takes_the_arguments_of_what_it_replaces(entry: speedups.Replacement) -> None:
    with speedups.mlx_lms_own():
        home, name = entry.home()
        theirs = inspect.signature(getattr(home, name))
    ours = inspect.signature(entry.function())
    assert list(ours.parameters) == list(theirs.parameters)


def test_nothing_is_replaced_where_metal_is() -> None:
    homes = [(entry, *entry.home()) for entry in speedups.REPLACEMENTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups.mx.metal, "is_available", lambda: True)
        speedups.install()
    assert not any(getattr(home, name) is entry.function() for entry, home, name in homes)
    speedups.install()
    assert all(getattr(home, name) is entry.function() for entry, home, name in homes)


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(speedups.ENV, "mlx-lm")
    speedups.install()
    entry = speedups.REPLACEMENTS[0]
    home, name = entry.home()
    assert getattr(home, name) is not entry.function()
