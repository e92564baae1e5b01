"""Each operation against MLX's own on random inputs, and its fallbacks."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from keepwarm.model import cpu_ops

# A few roundings of the dtype, for sums of values around 1.
CLOSE = {mx.float32: 1e-5, mx.bfloat16: 2**-6, mx.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", list(CLOSE), ids=str)


@pytest.fixture(autouse=True)
def _on_cpu() -> Any:
    """These are for the CPU; a GPU's own functions compute less exactly."""
    was = mx.default_device()
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    yield
    mx.set_default_device(was)


def normal(*shape: int, dtype: Any = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def distance(ours: mx.array, theirs: mx.array) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert not mx.isnan(ours).any()
    return float(mx.abs(ours.astype(mx.float32) - theirs.astype(mx.float32)).max())


def test_sigmoid_is_right_to_the_last_bits_over_its_whole_range() -> None:
    x = np.concatenate([np.linspace(-69, 200, 20_000), [-0.0, 0.0, 1e-30, math.inf]])
    x = x.astype(np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert cpu_ops.can_sigmoid(mx.array(x))
    found = np.array(cpu_ops.sigmoid(mx.array(x)))
    # Of the exponent's bits, float32 leaves 24 - 7 behind the point where x is near 64.
    assert np.all(np.abs(found - exact) <= exact * (3e-7 + 1.2e-7 * np.abs(np.minimum(x, 1))))


def test_sigmoid_of_what_is_far_below_is_nearly_nothing() -> None:
    x = mx.array([-70.0, -1e3, -1e38, -math.inf] * 4096)
    assert 0 <= float(cpu_ops.sigmoid(x).max()) < 1e-30


@DTYPES
def test_sigmoid_agrees_with_mlx(dtype: Any) -> None:
    x = 3 * normal(64, 256, dtype=dtype)
    assert distance(cpu_ops.sigmoid(x), mx.sigmoid(x)) < CLOSE[dtype]


@DTYPES
@pytest.mark.parametrize("kernel_len", [1, 2, 4, 8])
@pytest.mark.parametrize("batch", [1, 3])
def test_depthwise_convolution_agrees_with_mlx(dtype: Any, kernel_len: int, batch: int) -> None:
    x, w = normal(batch, 70, 128, dtype=dtype), normal(128, kernel_len, 1, dtype=dtype)
    assert cpu_ops.can_conv1d(x, w, groups=128)
    theirs = mx.conv1d(x.astype(mx.float32), w.astype(mx.float32), groups=128).astype(dtype)
    assert distance(cpu_ops.conv1d(x, w, groups=128), theirs) < 8 * CLOSE[dtype]


@pytest.mark.parametrize(
    ("shape", "weight", "more"),
    [
        ((1, 70, 128), (128, 4, 1), {"groups": 128, "padding": 3}),
        ((1, 70, 128), (128, 4, 1), {"groups": 128, "stride": 2}),
        ((1, 70, 128), (128, 4, 1), {"groups": 128, "dilation": 2}),
        ((1, 70, 128), (256, 4, 1), {"groups": 128}),
        ((1, 70, 128), (64, 4, 128), {}),
        ((1, 4, 128), (128, 4, 1), {"groups": 128}),
        ((1, 70, 128), (128, 9, 1), {"groups": 128}),
    ],
)
def test_other_convolutions_are_mlx_own(shape: Any, weight: Any, more: dict[str, int]) -> None:
    x, w = normal(*shape), normal(*weight)
    assert not cpu_ops.can_conv1d(x, w, **more)
    assert mx.array_equal(cpu_ops.conv1d(x, w, **more), mx.conv1d(x, w, **more))


@DTYPES
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("transpose", [True, False])
def test_quantized_product_agrees_with_exact_arithmetic(
    dtype: Any, bits: int, transpose: bool
) -> None:
    w = mx.quantize(normal(128, 64, dtype=dtype), 32, bits)
    x = normal(2, 9, 64 if transpose else 128, dtype=dtype)
    assert cpu_ops.can_quantized_matmul(x, w[0], w[1])
    ours = cpu_ops.quantized_matmul(x, *w, transpose=transpose, group_size=32, bits=bits)
    full = [part.astype(mx.float32) for part in w[1:]]
    args: Any = {"transpose": transpose, "group_size": 32, "bits": bits}
    theirs = mx.quantized_matmul(x.astype(mx.float32), w[0], *full, **args)
    assert distance(ours, theirs.astype(dtype)) < 16 * CLOSE[dtype]


def test_quantized_product_of_few_rows_or_another_mode_is_mlx_own() -> None:
    w = mx.quantize(normal(128, 64), 32, 4)
    x = normal(7, 64)
    args: Any = {"transpose": True, "group_size": 32, "bits": 4}
    assert mx.array_equal(
        cpu_ops.quantized_matmul(x, *w, **args), mx.quantized_matmul(x, *w, **args)
    )
    mxfp4 = mx.quantize(normal(128, 64), mode="mxfp4")
    many = normal(32, 64)
    args = {"transpose": True, "mode": "mxfp4"}
    assert mx.array_equal(
        cpu_ops.quantized_matmul(many, *mxfp4, **args), mx.quantized_matmul(many, *mxfp4, **args)
    )


def test_of_two_dtypes_the_result_is_what_mlx_makes_of_them() -> None:
    packed = mx.quantize(normal(128, 64), 32, 4)
    x = normal(32, 64, dtype=mx.bfloat16)
    args: Any = {"transpose": True, "group_size": 32, "bits": 4}
    assert cpu_ops.quantized_matmul(x, *packed, **args).dtype == mx.float32
    q, k = normal(1, 4, 200, 32, dtype=mx.bfloat16), normal(1, 4, 200, 32)
    assert cpu_ops.scaled_dot_product_attention(q, k, k, scale=0.2).dtype == mx.float32


def masks(batch: int, num_heads: int, num_rows: int, num_keys: int) -> dict[str, Any]:
    rows = mx.arange(num_keys - num_rows, num_keys)[:, None]
    window = (rows >= mx.arange(num_keys)) & (rows < mx.arange(num_keys) + 50)
    some = mx.random.uniform(shape=(batch, 1, num_rows, num_keys)) < 0.5
    slopes = mx.arange(num_heads)[:, None, None] * 0.01
    return {
        "none": None,
        "causal": "causal",
        "bools": window,
        "bools of each row of the batch": some,
        "bools of keys": mx.arange(num_keys)[None, None, None] > 10,
        "a row without keys": (rows > num_keys - num_rows + 5) & window,
        "added": mx.where(window, 0.0, -math.inf),
        "added to each head": (slopes * (mx.arange(num_keys) - rows)),
    }


@pytest.mark.parametrize("num_keys", [130, 400])
@pytest.mark.parametrize("num_key_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", list(masks(1, 1, 2, 2)))
def test_attention_agrees_with_mlx(mask: str, num_key_heads: int, num_keys: int) -> None:
    q = normal(2, 4, 130, 32)
    k, v = normal(2, num_key_heads, num_keys, 32), normal(2, num_key_heads, num_keys, 24)
    chosen = masks(2, 4, 130, num_keys)[mask]
    assert cpu_ops.can_attention(q, k, v, chosen)
    args: Any = {"scale": 0.2, "mask": chosen}
    ours = cpu_ops.scaled_dot_product_attention(q, k, v, **args)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, **args)
    assert distance(ours, theirs) < CLOSE[mx.float32]


@DTYPES
@pytest.mark.parametrize("mask", ["causal", "bools"])
def test_attention_with_sinks_agrees_with_mlx(dtype: Any, mask: str) -> None:
    q, k, v = (normal(1, heads, 200, 32, dtype=dtype) for heads in (4, 2, 2))
    args: Any = {"scale": 0.2, "mask": masks(1, 4, 200, 200)[mask]}
    sinks = 3 * normal(4)
    ours = cpu_ops.scaled_dot_product_attention(q, k, v, sinks=sinks.astype(dtype), **args)
    exact = [a.astype(mx.float32) for a in (q, k, v)]
    theirs = mx.fast.scaled_dot_product_attention(
        *exact, sinks=sinks.astype(dtype).astype(mx.float32), **args
    )
    assert distance(ours, theirs.astype(dtype)) < CLOSE[dtype]


def test_attention_with_large_scores_agrees_with_mlx() -> None:
    q, k, v = 30 * normal(1, 4, 200, 32), normal(1, 4, 200, 32), normal(1, 4, 200, 32)
    args: Any = {"scale": 1.0, "mask": "causal"}
    ours = cpu_ops.scaled_dot_product_attention(q, k, v, **args)
    # Scores of some hundreds have 2**-15 behind the point.
    assert distance(ours, mx.fast.scaled_dot_product_attention(q, k, v, **args)) < 1e-3


def test_attention_of_one_token_or_over_little_is_mlx_own() -> None:
    for num_rows, num_keys in ((1, 40_000), (16, 16)):
        q, k = normal(1, 2, num_rows, 16), normal(1, 2, num_keys, 16)
        ours = cpu_ops.scaled_dot_product_attention(q, k, k, scale=0.2)
        assert mx.array_equal(ours, mx.fast.scaled_dot_product_attention(q, k, k, scale=0.2))


def test_attention_gives_the_same_bits_every_time() -> None:
    q, k, v = normal(1, 4, 300, 32), normal(1, 2, 700, 32), normal(1, 2, 700, 32)
    args: Any = {"scale": 0.2, "mask": "causal"}
    first = cpu_ops.scaled_dot_product_attention(q, k, v, **args)
    roomy = mx.concatenate([k, k], axis=2)[:, :, :700]  # as a cache hands out its rows
    assert mx.array_equal(first, cpu_ops.scaled_dot_product_attention(q, roomy, v, **args))
