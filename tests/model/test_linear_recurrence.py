"""The diagonal recurrence in lanes beside mlx-lm's loop."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import recurrent_gemma

from keepwarm.model.linear_recurrence import choose_lanes, diagonal_scan, rnn_scan

from .released import assert_close, distance, rates_of_forgetting, released

loop = released(recurrent_gemma, "rnn_scan")


def inputs(batch: int, length: int, width: int, spread: float, seed: int) -> list[mx.array]:
    """x, a and h0."""
    mx.random.seed(seed)
    a = mx.exp(-rates_of_forgetting((batch, length, width), spread))
    return [mx.random.normal(a.shape), a, mx.random.normal((batch, width))]


@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 90),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    has_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gives_what_the_loop_gives(
    batch: int, length: int, spread: float, has_state: bool, seed: int
) -> None:
    x, a, h0 = inputs(batch, length, 8, spread, seed)
    state = h0 if has_state else None
    assert_close(rnn_scan(x, a, state), loop(x, a, state))


@given(length=st.integers(1, 40), num_lanes=st.integers(1, 9), seed=st.integers(0, 2**16))
def test_any_number_of_lanes_gives_the_same(length: int, num_lanes: int, seed: int) -> None:
    x, a, h0 = inputs(2, length, 6, 1.0, seed)
    x, a, h0 = (mx.unflatten(y, -1, (2, 3)) for y in (x, a, h0))
    assert_close(diagonal_scan(a, x, h0, num_lanes), diagonal_scan(a, x, h0, 1), 1e-6)


@pytest.mark.parametrize("decay", [0.0, 1e-30, 1.0])
def test_takes_decays_of_nothing_and_of_one(decay: float) -> None:
    x, a, h0 = inputs(2, 50, 8, 0.0, seed=1)
    a = mx.full(a.shape, decay)
    assert_close(rnn_scan(x, a, h0), loop(x, a, h0))


def test_two_halves_give_what_the_whole_gives() -> None:
    x, a, h0 = inputs(1, 70, 8, 1.0, seed=2)
    y, state = rnn_scan(x, a, h0)
    first, between = rnn_scan(x[:, :29], a[:, :29], h0)
    second, last = rnn_scan(x[:, 29:], a[:, 29:], between)
    assert_close([mx.concatenate([first, second], axis=1), last], [y, state])


def test_state_is_float32_whatever_the_input() -> None:
    x, a, h0 = (y.astype(mx.bfloat16) for y in inputs(1, 40, 8, 1.0, seed=3))
    wide = rnn_scan(*(y.astype(mx.float32) for y in (x, a, h0)))
    y, state = rnn_scan(x, a, h0)
    assert (y.dtype, state.dtype) == (mx.bfloat16, mx.float32)
    assert distance(state, wide[1]) == 0.0


def test_wide_steps_take_one_lane_on_the_cpu() -> None:
    if mx.default_device() == mx.cpu:
        assert choose_lanes(512, width=16_384) == 1
    assert choose_lanes(512, width=64) > 8
    assert choose_lanes(1, width=64) == 1
