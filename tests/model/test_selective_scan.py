"""Mamba's scan beside mlx-lm's two loops, through the layers that hold them."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import jamba, mamba

from keepwarm.model import selective_scan as scan
from tests.architectures.zoo import ARCHITECTURES

from .released import assert_close, rates_of_forgetting, released

NUM_CHANNELS, NUM_STATES = 12, 5
mamba_loop = released(mamba, "MambaBlock._process_sequence")
jamba_loop = released(jamba, "JambaMambaMixer.ssm_step")


def inputs(batch: int, length: int, spread: float, seed: int = 0) -> list[mx.array]:
    """x, delta, a, b, c, d and a state."""
    mx.random.seed(seed)
    shape = (batch, length, NUM_CHANNELS)
    b, c = mx.random.normal((2, batch, length, NUM_STATES))
    a = -mx.exp(mx.random.normal((NUM_CHANNELS, NUM_STATES)))
    state = mx.random.normal((batch, NUM_CHANNELS, NUM_STATES))
    delta = rates_of_forgetting(shape, spread)
    return [mx.random.normal(shape), delta, a, b, c, mx.random.normal((NUM_CHANNELS,)), state]


def step_by_step(
    x: mx.array,
    delta: mx.array,
    a: mx.array,
    b: mx.array,
    c: mx.array,
    d: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """mlx-lm's `MambaBlock.ssm_step` for each token, without the projections."""
    ys = []
    for t in range(x.shape[1]):
        update = (delta[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        if state is not None:
            update += state * mx.exp(delta[:, t, :, None] * a)
        state = update
        ys.append((state @ c[:, t, :, None]).squeeze(2) + d * x[:, t])
    assert state is not None
    return mx.stack(ys, axis=1), state


@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 70),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    has_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gives_what_steps_give(
    batch: int, length: int, spread: float, has_state: bool, seed: int
) -> None:
    *args, state = inputs(batch, length, spread, seed)
    given_state = state if has_state else None
    theirs = step_by_step(*args, given_state)
    assert_close(scan.selective_scan(*args, given_state), theirs)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    args = inputs(2, 50, 1.0)
    whole = scan.selective_scan(*args)
    for name in ("CPU_BLOCK_SIZE", "GPU_BLOCK_SIZE"):
        monkeypatch.setattr(scan, name, 7 * args[-1].size)
    assert_close(scan.selective_scan(*args), whole, 1e-6)


def test_blocks_are_not_in_memory_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    length, num_channels, num_states = 256, 1024, 16
    monkeypatch.setattr(scan, "CPU_BLOCK_SIZE", 4 * num_channels * num_states)
    monkeypatch.setattr(scan, "GPU_BLOCK_SIZE", 4 * num_channels * num_states)
    x = mx.random.normal((1, length, num_channels))
    b = mx.random.normal((1, length, num_states))
    a, d = -mx.ones((num_channels, num_states)), mx.ones((num_channels,))
    delta = mx.abs(x)
    mx.eval(x, a, b, d, delta)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(scan.selective_scan(x, delta, a, b, b, d))
    # y three times, and of the states' 17 MB some blocks of 0.3 MB.
    assert mx.get_peak_memory() - before - 3 * x.nbytes < 4e6


def test_gradients_pass_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_BLOCK_SIZE", "GPU_BLOCK_SIZE"):
        monkeypatch.setattr(scan, name, 7 * 2 * NUM_CHANNELS * NUM_STATES)
    args = inputs(2, 20, 1.0)
    ours, theirs = (
        mx.grad(lambda *a, f=f: (f(*a)[0] ** 2).sum(), argnums=list(range(7)))(*args)
        for f in (scan.selective_scan, step_by_step)
    )
    assert_close(ours, theirs, 1e-4)


def test_16_bit_inputs_keep_a_float32_state() -> None:
    args = [x.astype(mx.bfloat16) for x in inputs(2, 40, 1.0)]
    y, state = scan.selective_scan(*args)
    assert (y.dtype, state.dtype) == (mx.bfloat16, mx.float32)
    wide = scan.selective_scan(*(x.astype(mx.float32) for x in args))
    assert_close([state], [wide[1]], 1e-6)


def flat(result: Any) -> list[mx.array]:
    y, states = result
    return [y, *states]


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba"])
@pytest.mark.parametrize("lengths", [(1,), (1, 1, 20), (33, 1, 4)])
def test_mamba_layer_goes_on_from_its_state(name: str, lengths: tuple[int, ...]) -> None:
    layer = ARCHITECTURES[name].build().layers[0].mixer
    ours: list[Any] = [None, None, None]
    theirs: list[Any] = [None, None, None]
    for i, length in enumerate(lengths):
        x = mx.random.normal((2, length, 32), key=mx.random.key(i))
        ours = flat(scan.mamba_sequence(layer, x, *ours[1:]))
        theirs = flat(mamba_loop(layer, x, *theirs[1:]))
        assert_close(ours, theirs)


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 20), (33, 1, 4)])
def test_jamba_layer_goes_on_from_its_state(lengths: tuple[int, ...]) -> None:
    layer = ARCHITECTURES["jamba"].build().layers[0].mamba
    rates = -mx.exp(layer.A_log)
    ours, theirs = partial(scan.jamba_step, layer), partial(jamba_loop, layer)
    state = None
    for i, length in enumerate(lengths):
        x = mx.random.normal((2, length, 64), key=mx.random.key(i))
        result = ours(x, rates, state)
        assert_close(result, theirs(x, rates, state))
        state = result[1]
