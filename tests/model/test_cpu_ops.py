"""Each operation against MLX's own on random inputs, and its fallbacks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import BatchKVCache

from keepwarm.model import cpu_ops, speedups
from tests.architectures.zoo import ARCHITECTURES

from .released import assert_close

# A few roundings of the dtype, for sums of values around 1.
CLOSE = {mx.float32: 1e-5, mx.bfloat16: 2**-6, mx.float16: 2**-9}
DTYPES = pytest.mark.parametrize("dtype", list(CLOSE), ids=str)


@pytest.fixture(autouse=True)
def _on_cpu() -> Any:
    """These are for the CPU; a GPU's own functions compute less exactly. `mx` is as released: else
    ours, once a model was loaded, would be compared with ours."""
    was = mx.default_device()
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    with speedups.mlx_lms_own():
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


def test_sigmoid_of_what_is_far_below_is_nothing() -> None:
    x = mx.array([-89.0, -1e3, -1e38, -math.inf] * 4096)
    assert float(mx.abs(cpu_ops.sigmoid(x)).max()) == 0
    assert 0 < float(cpu_ops.sigmoid(mx.full((8192,), -87.0)).max()) < 1.7e-38


@DTYPES
def test_sigmoid_of_nan_is_nan(dtype: Any) -> None:
    x = mx.array([math.nan, math.inf, -math.inf, 0.0] * 4096).astype(dtype)
    expected = mx.array([math.nan, 1.0, 0.0, 0.5] * 4096).astype(dtype)
    assert mx.array_equal(cpu_ops.sigmoid(x), expected, equal_nan=True)


def test_sigmoid_takes_numbers() -> None:
    assert float(cpu_ops.sigmoid(0.5)) == float(mx.sigmoid(0.5))
    assert float(cpu_ops.sigmoid(mx.array(1), stream=mx.cpu)) == float(mx.sigmoid(1))


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
@pytest.mark.parametrize("num_rows", [1, 4, 5, 18])
def test_quantized_product_agrees_with_exact_arithmetic(
    dtype: Any, bits: int, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_UNPACKED_LEN", "_PACKED_LEN"):  # three blocks, the last shorter
        monkeypatch.setattr(cpu_ops, name, 50 * 64)
    w = mx.quantize(normal(128, 64, dtype=dtype), 32, bits)
    x = normal(1, num_rows, 64, dtype=dtype)
    ours = cpu_ops.quantized_matmul(x, *w, transpose=True, group_size=32, bits=bits)
    full = [part.astype(mx.float32) for part in w[1:]]
    args: Any = {"transpose": True, "group_size": 32, "bits": bits}
    theirs = mx.quantized_matmul(x.astype(mx.float32), w[0], *full, **args)
    assert distance(ours, theirs.astype(dtype)) < 16 * CLOSE[dtype]


@DTYPES
@pytest.mark.parametrize("num_rows", [1, 32])
def test_quantized_product_needs_a_few_megabytes(dtype: Any, num_rows: int) -> None:
    w = mx.quantize(normal(16384, 1024).astype(dtype), 64, 4)  # unpacked, 67 MB
    x = normal(num_rows, 1024, dtype=dtype)
    mx.eval(w, x)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    product = cpu_ops.quantized_matmul(x, *w, transpose=True, group_size=64, bits=4)
    mx.eval(product)
    in_float32 = 4 * (x.size + 2 * product.size)
    assert mx.get_peak_memory() - before - product.nbytes - in_float32 < 8e6


def test_infinite_and_missing_numbers_show_in_a_quantized_product() -> None:
    w = mx.quantize(normal(128, 64), 32, 4)
    for value, num_rows in ((math.nan, 6), (math.inf, 6), (math.nan, 1)):
        x = normal(num_rows, 64, dtype=mx.float32)
        x[0, 3] = value
        ours = cpu_ops.quantized_matmul(x, *w, transpose=True, group_size=32, bits=4)
        assert not mx.isfinite(ours[0]).any()
        assert mx.isfinite(ours[1:]).all()


def test_quantized_product_of_few_rows_or_another_mode_is_mlx_own() -> None:
    w = mx.quantize(normal(128, 64), 32, 4)
    x = normal(4, 64)
    args: Any = {"transpose": True, "group_size": 32, "bits": 4}
    assert mx.array_equal(
        cpu_ops.quantized_matmul(x, *w, **args), mx.quantized_matmul(x, *w, **args)
    )
    x, args = normal(9, 128), {**args, "transpose": False}
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


@DTYPES
@pytest.mark.parametrize("value", ["least", "-inf"])
def test_attention_of_rows_masked_everywhere_or_partly_is_what_mlx_makes_of_it(
    dtype: Any, value: str
) -> None:
    q, k, v = (normal(1, heads, 200, 32, dtype=dtype) for heads in (4, 2, 2))
    mask = mx.zeros((200, 200), dtype=dtype)
    masked = mx.finfo(dtype).min if value == "least" else -math.inf
    mask[:3] = masked
    mask[3:, 100:] = masked
    args: Any = {"scale": 0.2, "mask": mask}
    ours = cpu_ops.scaled_dot_product_attention(q, k, v, **args)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, **args)
    assert distance(ours[:, :, 3:], theirs[:, :, 3:]) < 2 * CLOSE[dtype]
    if value == "least":
        assert distance(ours[:, :, :3], theirs[:, :, :3]) < CLOSE[dtype]
    else:
        assert mx.isnan(theirs[:, :, :3]).all()
        assert mx.isnan(ours[:, :, :3]).all()


def test_padded_batch_of_latent_attention_agrees_with_mlx_lm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """deepseek_v3 masks with the least number of its dtype; padding leaves rows without keys."""
    model = ARCHITECTURES["deepseek_v3"].build()
    tokens = mx.arange(2 * 200).reshape(2, 200) % 50

    def logits() -> Any:
        found = model(tokens, cache=[BatchKVCache([0, 60]) for _ in model.layers])
        mx.eval(found)
        return found

    theirs = logits()
    attend = cpu_ops.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)
    ours = logits()
    assert_close([ours[0], ours[1, 60:]], [theirs[0], theirs[1, 60:]])


@pytest.mark.parametrize("place", range(3))
def test_nan_shows_in_attention(place: int) -> None:
    qkv = [normal(1, 2, 200, 32) for _ in range(3)]
    qkv[place][0, 0, 150, 3] = math.nan
    ours = mx.isnan(cpu_ops.scaled_dot_product_attention(*qkv, scale=0.2, mask="causal"))
    assert ours[0, 0, 150].any()
    assert ours[0, 0, 151:].any() == (place > 0)
    assert not ours[0, 1].any()


@pytest.mark.parametrize(
    "more",
    [
        {"mask": "window"},
        {"mask": mx.zeros((200, 200))},
        {"mask": mx.zeros((3, 1, 1, 200), dtype=mx.bfloat16)},
        {"sinks": mx.zeros((4,))},
        {"sinks": mx.zeros((3,), dtype=mx.bfloat16)},
    ],
    ids=["name", "dtype", "shape", "dtype of sinks", "shape of sinks"],
)
def test_what_mlx_refuses_is_refused(more: dict[str, Any]) -> None:
    q = normal(2, 4, 200, 32, dtype=mx.bfloat16)
    with pytest.raises(ValueError, match=r"."):
        cpu_ops.scaled_dot_product_attention(q, q, q, scale=0.2, **more)
    with pytest.raises(ValueError, match=r"."):
        cpu_ops.scaled_dot_product_attention(q, q[:1], q[:1], scale=0.2)


def assert_same_gradients(ours: Any, theirs: Any, *args: mx.array) -> None:
    """Of a sum in which every number counts differently."""
    factors = mx.random.normal(theirs(*args).shape)
    found, expected = (mx.vjp(f, args, [factors])[1] for f in (ours, theirs))
    for mine, other in zip(found, expected):
        assert float(mx.abs(other).max()) > 0
        assert distance(mine, other) < 2e-5 * max(1.0, float(mx.abs(other).max()))


def test_gradients_of_sigmoid_and_convolution_are_those_of_mlx() -> None:
    x = mx.concatenate([5 * normal(8191), mx.array([0.0, 300.0, -300.0, 127.5, -0.0])])
    assert_same_gradients(cpu_ops.sigmoid, mx.sigmoid, x)
    conv, theirs = (partial(f, groups=128) for f in (cpu_ops.conv1d, mx.conv1d))
    assert_same_gradients(conv, theirs, normal(1, 70, 128), normal(128, 4, 1))


@pytest.mark.parametrize("mask", ["none", "causal", "a row without keys", "added"])
def test_gradients_of_attention_are_those_of_mlx(mask: str) -> None:
    args: Any = {"scale": 0.2, "mask": masks(1, 4, 130, 130)[mask]}

    def of(function: Any) -> Any:
        return lambda q, k, v, sinks: function(q, k, v, sinks=sinks, **args)

    ours, theirs = (
        of(cpu_ops.scaled_dot_product_attention),
        of(mx.fast.scaled_dot_product_attention),
    )
    qkv = (normal(1, heads, 130, 32) for heads in (4, 2, 2))
    assert_same_gradients(ours, theirs, *qkv, normal(4))


def test_gradient_of_a_quantized_product_is_that_of_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_ops, "_UNPACKED_LEN", 50 * 64)
    w = mx.quantize(normal(128, 64), 32, 4)
    args: Any = {"transpose": True, "group_size": 32, "bits": 4}
    ours, theirs = (
        lambda x, f=f: f(x, *w, **args) for f in (cpu_ops.quantized_matmul, mx.quantized_matmul)
    )
    assert_same_gradients(ours, theirs, normal(9, 64))


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


def test_a_model_can_be_trained_with_ours_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ARCHITECTURES["llama"].build()
    tokens = mx.arange(300)[None] % 50
    value_and_grad = nn.value_and_grad(model, lambda: model(tokens).logsumexp(axis=-1).sum())
    _, theirs = value_and_grad()
    mx.eval(theirs)
    for home, name in (
        (mx, "sigmoid"),
        (mx, "conv1d"),
        (mx, "quantized_matmul"),
        (mx.fast, "scaled_dot_product_attention"),
    ):
        monkeypatch.setattr(home, name, getattr(cpu_ops, name))
    _, ours = value_and_grad()
    found, expected = ([a for _, a in tree_flatten(tree)] for tree in (ours, theirs))
    assert_close(found, expected, 1e-4)
