"""RWKV-7's recurrence in chunks beside mlx-lm's loop."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import rwkv7

from keepwarm.model.rwkv import CHUNK, wkv7

from .released import assert_close, rates_of_forgetting, released

DIM, NUM_HEADS = 8, 2
LAYER = SimpleNamespace(num_heads=NUM_HEADS, head_dim=DIM)
released_wkv7 = released(rwkv7, "Rwkv7TimeMixing._wkv7")


def loop(*args: mx.array | None) -> tuple[mx.array, mx.array]:
    y, state = released_wkv7(LAYER, *args)
    return y.squeeze(-1), state  # its caller drops the last axis


def inputs(
    batch: int, length: int, spread: float, rate: float = 1.0, seed: int = 0
) -> list[mx.array]:
    """r, w, k, v, a, b and a state; a and b as the model makes them, `rate` how much is unlearned."""
    mx.random.seed(seed)
    shape = (batch, length, NUM_HEADS, DIM)
    r, k, v, key = mx.random.normal((4, *shape))
    w = mx.exp(-rates_of_forgetting(shape, spread))
    key = key / mx.linalg.norm(key, axis=-1, keepdims=True)
    b = key * mx.random.uniform(0, rate, shape)
    return [r, w, k, v, -key, b, mx.random.normal((batch, NUM_HEADS, DIM, DIM))]


@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 100),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    rate=st.sampled_from([0.0, 0.1, 1.0]),
    has_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gives_what_the_loop_gives(
    batch: int, length: int, spread: float, rate: float, has_state: bool, seed: int
) -> None:
    *args, state = inputs(batch, length, spread, rate, seed)
    given_state = state if has_state else None
    assert_close(wkv7(LAYER, *args, given_state), loop(*args, given_state))


@pytest.mark.parametrize("length", [1, 7, 8, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_gives_what_the_loop_gives_around_the_edges_of_chunks(length: int) -> None:
    args = inputs(2, length, 1.0)
    assert_close(wkv7(LAYER, *args), loop(*args))


@pytest.mark.parametrize("decay", [0.0, 1e-30, 1.0])
def test_takes_decays_of_nothing_and_of_one(decay: float) -> None:
    args = inputs(1, 70, 0.0)
    args[1] = mx.full(args[1].shape, decay)
    assert_close(wkv7(LAYER, *args), loop(*args))


def test_the_same_key_over_and_over_is_relearned_each_time() -> None:
    """The triangular system at its stiffest: each token undoes what the one before wrote."""
    r, w, _, v, a, _, state = inputs(1, 100, 0.0)
    a = mx.broadcast_to(a[:, :1], a.shape)
    args = [r, mx.full(w.shape, 0.999), -a, v, a, -a, state]
    assert_close(wkv7(LAYER, *args), loop(*args))


def test_16_bit_inputs_keep_a_float32_state() -> None:
    args = [x.astype(mx.bfloat16) for x in inputs(2, 50, 1.0)]
    y, state = wkv7(LAYER, *args)
    assert (y.dtype, state.dtype) == (mx.bfloat16, mx.float32)
    _, wide = wkv7(LAYER, *(x.astype(mx.float32) for x in args))
    assert_close([state], [wide], 1e-6)
