"""The seam: what takes the place of mlx-lm's functions, when, and that whole models agree."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.errors import BadInput
from keepwarm.model import loader, speedups

from ..architectures.drive import random_tokens
from ..architectures.zoo import ARCHITECTURES, arrays, leaves

CHUNKS = (45, 19, 1)  # a prompt in three pieces, the last a decode step
# Differences that routing makes: a token near two experts goes to the other one.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def installed_afterwards() -> object:
    yield
    speedups.uninstall()
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


def is_installed(entry: speedups.Replacement) -> bool:
    home, name = entry.home()
    return getattr(home, name) is entry.function()


def test_nothing_is_replaced_where_metal_is() -> None:
    speedups.uninstall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups.mx.metal, "is_available", lambda: True)
        speedups.install("keepwarm")
        speedups.install("mlx-lm")  # the same there
    assert not any(map(is_installed, speedups.REPLACEMENTS))


@pytest.mark.skipif(mx.metal.is_available(), reason="nothing is replaced where Metal is")
def test_all_that_is_wanted_is_replaced_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    speedups.uninstall()
    speedups.install("keepwarm")
    wanted = [entry for entry in speedups.REPLACEMENTS if entry.is_wanted()]
    assert wanted
    assert all(map(is_installed, wanted))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    speedups.uninstall()
    monkeypatch.setenv(speedups.ENV, "mlx-lm")
    speedups.install()
    assert not is_installed(speedups.REPLACEMENTS[0])


@pytest.mark.skipif(mx.metal.is_available(), reason="there is one choice where Metal is")
@pytest.mark.parametrize(("first", "second"), [("keepwarm", "mlx-lm"), ("mlx-lm", "keepwarm")])
def test_what_runs_stays_and_a_load_that_asks_for_another_is_told(first: str, second: str) -> None:
    speedups.uninstall()
    speedups.install(first)
    before = [is_installed(entry) for entry in speedups.REPLACEMENTS]
    with pytest.raises(BadInput, match=f"kernels of {first} .* those of {second}, start another"):
        loader.prepared(ARCHITECTURES["llama"].build(), kernels=second)
    for same in (first, None):  # who does not care gets what runs
        loader.prepared(ARCHITECTURES["llama"].build(), kernels=same)
    assert [is_installed(entry) for entry in speedups.REPLACEMENTS] == before
    assert before[0] is (first == "keepwarm")


@pytest.mark.skipif(mx.metal.is_available(), reason="nothing is replaced where Metal is")
@pytest.mark.parametrize("gone", ["rwkv7.Rwkv7TimeMixing._wkv7", "gated_delta.gated_delta_ops"])
def test_what_mlx_lm_renamed_is_skipped_with_a_warning(
    gone: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    speedups.uninstall()
    monkeypatch.delattr(f"mlx_lm.models.{gone}")
    loader.prepared(ARCHITECTURES["llama"].build(), kernels="keepwarm")
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"does not have mlx_lm.models.{gone}, so" in warning
    others = [e for e in speedups.REPLACEMENTS if e.is_wanted() and gone not in str(e)]
    assert all(map(is_installed, others))
    speedups.uninstall()
    assert not any(map(is_installed, others))


# Whether MLX compiles: before, with ours, after, and with mlx-lm's for a while in between.
COMPILING = """
import mlx.core as mx
from keepwarm.model import speedups
num_traced = 0

@mx.compile
def traced(x):
    global num_traced
    num_traced += 1
    return x

def say(length):
    before = num_traced
    traced(mx.ones(length)), traced(mx.ones(length))
    print(num_traced - before == 1)

say(1)
speedups.install("keepwarm")
say(2)
with speedups.mlx_lms_own():
    say(3)
say(4)
speedups.uninstall()
say(5)
"""


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="elsewhere MLX compiles as it did")
@pytest.mark.parametrize(
    ("variable", "expected"),
    [(None, "True False True False True"), ("1", "False False False False False")],
)
def test_mlx_compiles_again_afterwards_unless_it_did_not_before(
    variable: str | None, expected: str
) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    env.pop("MLX_DISABLE_COMPILE", None)
    if variable is not None:
        env["MLX_DISABLE_COMPILE"] = variable
    done = subprocess.run(
        [sys.executable, "-c", COMPILING], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == expected.split(), done.stderr
