"""Attention with decays in chunks beside mlx-lm's Mamba 2 and its lightning attention."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import bailing_moe_linear, ssm

from keepwarm.model.decayed_attention import decay_matrix, recurrent_gla, ssm_attn

from .released import assert_close, distance, rates_of_forgetting, released

gla_loop = released(bailing_moe_linear, "recurrent_gla")
released_ssm = released(ssm, "ssm_attn")
LIMIT = (0.0, 100.0)


def ssm_inputs(
    batch: int, length: int, heads: tuple[int, int] = (2, 4), spread: float = 1.0, seed: int = 0
) -> list[mx.array]:
    """x, A_log, B, C, D, dt, dt_bias and a state."""
    mx.random.seed(seed)
    num_groups, num_heads = heads
    value_dim, key_dim = 6, 10
    b, c = mx.random.normal((2, batch, length, num_groups, key_dim))
    a_log, bias = mx.random.normal((2, num_heads))
    dt = mx.log(mx.expm1(rates_of_forgetting((batch, length, num_heads), spread)))
    dt = mx.clip(dt, -50, 50) - bias  # softplus(dt + bias) gives back the rates
    x = mx.random.normal((batch, length, num_heads, value_dim))
    state = mx.random.normal((batch, num_heads, value_dim, key_dim))
    return [x, a_log, b, c, mx.random.normal((num_heads,)), dt, bias, state]


@given(
    batch=st.integers(1, 3),
    length=st.one_of(st.integers(1, 20), st.integers(60, 150)),
    heads=st.sampled_from([(1, 1), (1, 3), (2, 4), (3, 3)]),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    has_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_ssm_gives_what_mlx_lm_gives(
    batch: int, length: int, heads: tuple[int, int], spread: float, has_state: bool, seed: int
) -> None:
    *args, state = ssm_inputs(batch, length, heads, spread, seed)
    given_state = state if has_state else None
    theirs = released_ssm(*args, given_state, LIMIT)
    assert_close(ssm_attn(*args, given_state, LIMIT), theirs)


@given(
    length=st.integers(2, 100),
    data=st.data(),
    has_lengths=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_ssm_passes_padding_by(
    length: int, data: st.DataObject, has_lengths: bool, seed: int
) -> None:
    """Padding on the right, named by lengths, or on the left."""
    args = ssm_inputs(2, length, seed=seed)
    lengths = mx.array([length, data.draw(st.integers(1, length))])
    is_read = mx.arange(length) < lengths[:, None]
    mask = is_read if has_lengths else is_read[:, ::-1]
    masks = {"mask": mask, "lengths": lengths if has_lengths else None}
    y, state = ssm_attn(*args, LIMIT, **masks)
    their_y, their_state = released_ssm(*args, LIMIT, **masks)
    assert distance(state, their_state) < 1e-5
    keep = mask[..., None, None]
    assert distance(mx.where(keep, y, 0), mx.where(keep, their_y, 0)) < 1e-5


def test_ssm_reads_the_given_lengths_without_a_mask() -> None:
    x, a_log, b, c, d, dt, bias, state = ssm_inputs(2, 90)
    lengths = mx.array([90, 40])
    _, states = ssm_attn(x, a_log, b, c, d, dt, bias, state, LIMIT, lengths=lengths)
    x, b, c, dt, state = (
        y[1:, :40] if y.ndim != 4 or y.shape[1] == 90 else y[1:] for y in (x, b, c, dt, state)
    )
    _, alone = ssm_attn(x, a_log, b, c, d, dt, bias, state, LIMIT)
    assert distance(states[1:], alone) < 1e-6


def test_ssm_keeps_a_float32_state_for_16_bit_inputs() -> None:
    args = [x.astype(mx.bfloat16) for x in ssm_inputs(2, 90)[:-1]]
    y, state = ssm_attn(*args)
    assert (y.dtype, state.dtype) == (mx.bfloat16, mx.float32)
    assert_close([y, state], released_ssm(*args), 0.02)


@given(
    batch=st.integers(1, 3),
    length=st.one_of(st.integers(1, 20), st.integers(60, 150)),
    spread=st.sampled_from([0.0, 1.0, 3.0]),
    has_state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gla_gives_what_the_loop_gives(
    batch: int, length: int, spread: float, has_state: bool, seed: int
) -> None:
    mx.random.seed(seed)
    q, k, v = mx.random.normal((3, batch, 3, length, 8))
    g = -rates_of_forgetting((3,), spread)
    h = mx.random.normal((batch, 3, 8, 8)) if has_state else None
    assert_close(recurrent_gla(q, k, v, g, 0.3, h), gla_loop(q, k, v, g, 0.3, h))


@pytest.mark.parametrize("length", [1, 64, 65])
def test_decays_of_nothing_keep_the_last_token_alone(length: int) -> None:
    q, k, v = mx.random.normal((3, 1, 2, length, 8), key=mx.random.key(0))
    h = mx.random.normal((1, 2, 8, 8), key=mx.random.key(1))
    y, state = recurrent_gla(q, k, v, mx.array([-mx.inf, -mx.inf]), 1.0, h)
    assert_close([state], [k[:, :, -1, :, None] * v[:, :, -1, None, :]], 1e-6)
    assert_close([y], [(q * k).sum(axis=-1, keepdims=True) * v], 1e-6)


def test_decay_matrix_holds_the_products_between_two_tokens() -> None:
    decays = decay_matrix(mx.array([0.5, 0.25, 0.125, 1.0]))
    assert decays.tolist() == [
        [1, 0, 0, 0],
        [0.25, 1, 0, 0],
        [0.25 * 0.125, 0.125, 1, 0],
        [0.25 * 0.125, 0.125, 1, 1],
    ]


def test_decay_matrix_has_no_numbers_too_small_to_be_fast() -> None:
    decays = decay_matrix(mx.full((64,), 0.3))
    smallest = mx.where(decays > 0, decays, 1).min().item()
    assert 1e-20 < smallest < 1e-19
