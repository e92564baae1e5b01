"""The short convolution on CUDA is what MLX makes of it, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm.model import short_conv

CHANNELS = 300  # more than a block of threads


def arrays(
    length: int, batch: int = 2, kernel_len: int = 4, dtype: Any = mx.float32
) -> tuple[mx.array, mx.array]:
    mx.random.seed(length)
    x = mx.random.normal((batch, length + kernel_len - 1, CHANNELS))
    w = mx.random.normal((CHANNELS, kernel_len, 1))
    return x.astype(dtype), w.astype(dtype)


def expected(x: mx.array, w: mx.array) -> mx.array:
    """Token by token, in float32."""
    x, w = x.astype(mx.float32), w.astype(mx.float32)[..., 0].T
    num_taps = w.shape[0]
    starts = range(x.shape[1] - num_taps + 1)
    return mx.stack([(x[:, i : i + num_taps] * w).sum(axis=1) for i in starts], axis=1)


def test_without_a_gpu_it_is_mlx_that_computes() -> None:
    x, w = arrays(7)
    assert short_conv.can_conv1d(x, w, groups=CHANNELS) == (mx.default_device() == mx.gpu)
    theirs = short_conv._mlx_conv1d(x, w, groups=CHANNELS)
    assert mx.allclose(short_conv.conv1d(x, w, groups=CHANNELS), theirs, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [{"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 1}],
    ids=str,
)
def test_other_convolutions_are_left_to_mlx(
    case: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    x, w = arrays(9)
    assert short_conv.can_conv1d(x, w, groups=CHANNELS)
    assert not short_conv.can_conv1d(x, w, **{"groups": CHANNELS, **case})
    assert not short_conv.can_conv1d(x.astype(mx.float16), w, groups=CHANNELS)
    assert not short_conv.can_conv1d(x[:, :3], w, groups=CHANNELS)
    long = mx.zeros((1, 70_000, 1))
    assert not short_conv.can_conv1d(long, mx.zeros((1, 4, 1)), groups=1)


def test_one_sequence_that_decodes_is_left_to_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    for batch, is_ours in ((1, False), (2, True)):
        x, w = arrays(1, batch)
        assert short_conv.can_conv1d(x, w, groups=CHANNELS) == is_ours


@pytest.fixture
def needs_cuda() -> None:
    if not mx.cuda.is_available() or mx.default_device() != mx.gpu:
        pytest.skip("needs CUDA")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("kernel_len", [2, 3, 4, 8])
def test_the_cuda_kernel_gives_what_the_sum_gives(
    kernel_len: int, dtype: mx.Dtype, needs_cuda: None
) -> None:
    for batch, length in ((1, 2), (1, 257), (3, 1), (3, 70)):
        x, w = arrays(length, batch, kernel_len, dtype)
        assert short_conv.can_conv1d(x, w, groups=CHANNELS)
        ours = short_conv.conv1d(x, w, groups=CHANNELS)
        assert (ours.shape, ours.dtype) == ((batch, length, CHANNELS), dtype)
        error = mx.abs(ours.astype(mx.float32) - expected(x, w)).max().item()
        assert error < (1e-5 if dtype == mx.float32 else 0.1)


@pytest.mark.gpu
def test_the_cuda_kernel_gives_the_same_bits_however_a_prompt_is_cut(needs_cuda: None) -> None:
    x, w = arrays(300, 1, dtype=mx.bfloat16)
    whole = short_conv.conv1d(x, w, groups=CHANNELS)
    for cut in (2, 32, 117, 298):
        first = short_conv.conv1d(x[:, : cut + 3], w, groups=CHANNELS)
        second = short_conv.conv1d(x[:, cut:], w, groups=CHANNELS)
        assert mx.array_equal(mx.concatenate([first, second], axis=1), whole)
