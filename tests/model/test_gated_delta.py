"""The chunked rule beside mlx-lm's own loop, on inputs of every form and in whole models."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import gated_delta as released

from keepwarm.model import gated_delta_cuda, speedups
from keepwarm.model.gated_delta import gated_delta, unit_lower_inverse

LENGTHS = (1, 2, 5, 8, 31, 32, 33, 100)


def loop(*args: mx.array | None) -> tuple[mx.array, mx.array]:
    with speedups.mlx_lms_own():
        y, state = released.gated_delta_ops(*args)
    return y, state


def inputs(
    length: int,
    *,
    is_vector: bool = False,
    forgetting: float = 1.0,
    key_spread: float = 1.0,
    batch: int = 2,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (16, 24),
    dtype: mx.Dtype = mx.float32,
    seed: int = 0,
) -> list[mx.array]:
    """q, k, v, g, beta and a state. Gates spread from almost 1 to 0 as `forgetting` grows; keys
    lie within `key_spread` of one another."""
    mx.random.seed(seed)
    (num_key_heads, num_heads), (key_dim, value_dim) = heads, dims
    q = mx.random.normal((batch, length, num_key_heads, key_dim)) / key_dim
    k = mx.random.normal((batch, length, num_key_heads, key_dim))
    k = k[:, :1] + key_spread * (k - k[:, :1])
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    v = mx.random.normal((batch, length, num_heads, value_dim))
    gates = (batch, length, num_heads) + ((key_dim,) if is_vector else ())
    g = mx.exp(-forgetting * mx.exp(3 * mx.random.normal(gates) - 3))
    beta = mx.sigmoid(3 * mx.random.normal((batch, length, num_heads)))
    state = mx.random.normal((batch, num_heads, value_dim, key_dim))
    return [q.astype(dtype), k.astype(dtype), v.astype(dtype), g, beta.astype(dtype), state]


def distance(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference, as a part of the largest value."""
    ours, theirs = ours.astype(mx.float32), theirs.astype(mx.float32)
    assert mx.isfinite(ours).all().item()
    scale = mx.maximum(mx.abs(theirs).max(), 1e-6)
    return float((mx.abs(ours - theirs).max() / scale).item())


def assert_close(
    ours: tuple[mx.array, mx.array], theirs: tuple[mx.array, mx.array], within: float
) -> None:
    for mine, other in zip(ours, theirs):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        assert distance(mine, other) < within


@pytest.mark.parametrize("is_vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("length", LENGTHS)
def test_gives_what_the_loop_gives(length: int, is_vector: bool) -> None:
    args = inputs(length, is_vector=is_vector)
    assert_close(gated_delta(*args), loop(*args), 2e-6)


@given(
    length=st.integers(1, 80),
    batch=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 6)]),
    dims=st.sampled_from([(4, 4), (16, 8), (24, 40), (64, 64)]),
    is_vector=st.booleans(),
    forgetting=st.sampled_from([0.0, 0.01, 1.0, 100.0]),
    key_spread=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_gives_what_the_loop_gives_for_any_shape_and_gate(
    length: int,
    batch: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    is_vector: bool,
    forgetting: float,
    key_spread: float,
    seed: int,
) -> None:
    args = inputs(
        length,
        is_vector=is_vector,
        forgetting=forgetting,
        key_spread=key_spread,
        batch=batch,
        heads=heads,
        dims=dims,
        seed=seed,
    )
    assert_close(gated_delta(*args), loop(*args), 2e-5)


@pytest.mark.parametrize("is_vector", [False, True], ids=["scalar", "vector"])
def test_a_repeated_key_does_not_blow_up(is_vector: bool) -> None:
    """The powers of a whole chunk's triangle would: 32 equal keys give entries of 3e8."""
    args = inputs(256, is_vector=is_vector, forgetting=0.0, key_spread=0.0)
    args[4] = mx.ones_like(args[4])
    assert_close(gated_delta(*args), loop(*args), 1e-5)


@pytest.mark.parametrize("is_vector", [False, True], ids=["scalar", "vector"])
def test_a_gate_of_zero_forgets_everything(is_vector: bool) -> None:
    args = inputs(40, is_vector=is_vector)
    args[3] = mx.where(mx.arange(40).reshape(1, 40, *[1] * (args[3].ndim - 2)) == 17, 0, args[3])
    assert_close(gated_delta(*args), loop(*args), 2e-6)


@pytest.mark.parametrize("is_vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("length", LENGTHS)
def test_masked_tokens_leave_the_state_alone(length: int, is_vector: bool) -> None:
    args = inputs(length, is_vector=is_vector)
    mask = mx.random.bernoulli(0.6, (2, length))
    y, state = gated_delta(*args, mask)
    their_y, their_state = loop(*args, mask)
    assert distance(state, their_state) < 2e-6
    kept = mask[..., None, None]
    assert distance(mx.where(kept, y, 0), mx.where(kept, their_y, 0)) < 2e-6


def test_starts_from_nothing_without_a_state() -> None:
    args = inputs(50)[:5]
    assert_close(gated_delta(*args), loop(*args), 2e-6)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_computes_narrow_inputs_in_float32(dtype: mx.Dtype) -> None:
    args = inputs(70, dtype=dtype)
    y, state = gated_delta(*args)
    their_y, their_state = loop(*args)
    assert y.dtype == dtype
    assert distance(state, their_state) < 2e-6
    assert distance(y, their_y) < 1e-2  # of the last bit of y


def test_a_prompt_may_be_cut_anywhere() -> None:
    args = inputs(90)
    whole = gated_delta(*args)
    first, state = gated_delta(*[x[:, :37] for x in args[:5]], args[5])
    second, state = gated_delta(*[x[:, 37:] for x in args[:5]], state)
    assert_close((mx.concatenate([first, second], axis=1), state), whole, 2e-6)


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_the_inverse_of_a_unit_triangle(size: int) -> None:
    mx.random.seed(size)
    lower = mx.tril(mx.random.uniform(-1, 1, (2, 3, size, size)), k=-1) / 4
    product = (mx.eye(size) + lower) @ unit_lower_inverse(lower)
    assert mx.abs(product - mx.eye(size)).max().item() < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("is_vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dims", [(32, 24), (64, 64), (128, 128), (256, 256)], ids=str)
def test_the_cuda_kernel_gives_what_the_loop_gives(
    dims: tuple[int, int], dtype: mx.Dtype, is_vector: bool, needs_cuda: None
) -> None:
    for length in (1, 3, 40, 130):
        args = inputs(length, dims=dims, dtype=dtype, is_vector=is_vector)
        assert gated_delta_cuda.can_run(args[1], args[2])
        (y, state), (their_y, their_state) = gated_delta_cuda.run(*args), loop(*args)
        assert distance(state, their_state) < 5e-6
        assert distance(y, their_y) < (5e-6 if dtype == mx.float32 else 1e-2)


@pytest.mark.gpu
def test_the_cuda_kernel_gives_the_same_bits_however_a_prompt_is_cut(needs_cuda: None) -> None:
    args = inputs(300, dims=(128, 128), dtype=mx.bfloat16)
    y, state = gated_delta_cuda.run(*args)
    for cut in (1, 32, 117):
        first, between = gated_delta_cuda.run(*[x[:, :cut] for x in args[:5]], args[5])
        second, last = gated_delta_cuda.run(*[x[:, cut:] for x in args[:5]], between)
        assert mx.array_equal(last, state)
        assert mx.array_equal(mx.concatenate([first, second], axis=1), y)


@pytest.fixture
def needs_cuda() -> None:
    if not mx.cuda.is_available() or mx.default_device() != mx.gpu:
        pytest.skip("needs CUDA")


def test_is_what_mlx_lm_calls_once_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups.mx.metal, "is_available", lambda: False)
    original: Callable[..., object]
    with speedups.mlx_lms_own():
        original = released.gated_delta_ops
        speedups.install("keepwarm")
        assert released.gated_delta_ops is gated_delta
        speedups.uninstall()
        assert released.gated_delta_ops is original
