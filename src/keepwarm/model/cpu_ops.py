"""Operations that MLX's CPU build computes number by number, from what it computes fast: BLAS
products and arithmetic on whole arrays. For reading only: gradients do not pass.

Off Apple's machines MLX's exp takes 20 ns for each number (it calls fmaf for every step of its
polynomial), ten times as long as the same polynomial over arrays that stay in the processor's
cache. Each function takes and gives what MLX's of its name does, calls that where its `can_` says
no, differs from it by a few roundings of float32, and depends on its arguments alone.
On the thread that owns the arrays.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

_FLOATS = (mx.float32, mx.bfloat16, mx.float16)
_LOG2_E = math.log2(math.e)
# 2**f for -1 <= f <= 0, to 7.5e-8 of it: least squares, weighted until the errors are level.
_EXP2 = (
    0.999999925063367, 0.6931422525863045, 0.24017218919718, 0.055279722444591575,
    0.009188611580649278, 0.0009387882784534718,
)  # fmt: skip
# 2**-100 beside a sum of at least 1 is nothing, and its products with values are still normal
# numbers; below 2**-126 processors take long for each.
_EXPONENT = 100.0
# Numbers in a block of scores, half a megabyte: they are gone over twenty times. With fewer rows
# than this BLAS would take longer to lay out the keys than to multiply.
_BLOCK_LEN = 1 << 17
_MIN_BLOCK_ROWS = 64
# From here on the operations themselves cost less than they save.
_MIN_LEN = 1 << 13
_MIN_SCORES = 1 << 16
_MIN_QUANTIZED_ROWS = {mx.float32: 8, mx.bfloat16: 1, mx.float16: 1}
_MAX_KERNEL_LEN = 8

# MLX's own, whatever stands under these names later.
_mlx_attention = mx.fast.scaled_dot_product_attention
_mlx_conv1d = mx.conv1d
_mlx_quantized_matmul = mx.quantized_matmul
_mlx_sigmoid = mx.sigmoid


def can_sigmoid(a: mx.array) -> bool:
    return a.dtype in _FLOATS and a.size >= _MIN_LEN


def sigmoid(a: mx.array, **more: Any) -> mx.array:
    """Within 5e-7 of its value, for float32."""
    if more or not can_sigmoid(a):
        return _mlx_sigmoid(a, **more)
    power = mx.clip(a.astype(mx.float32) * -_LOG2_E, -_EXPONENT, _EXPONENT)
    whole = (power - 128.0).astype(mx.int32) + 128  # astype goes towards 0: up, for all of these
    return (1.0 / (1.0 + _exp2(power, whole))).astype(a.dtype)


def _exp2_negative(power: mx.array) -> mx.array:
    """2**power for power <= 0, and 2**-100 for less than -100."""
    power = mx.maximum(power, -_EXPONENT)
    return _exp2(power, power.astype(mx.int32))


def _exp2(power: mx.array, whole: mx.array) -> mx.array:
    """2**power, where `whole` is the next integer above."""
    part = power - whole.astype(mx.float32)  # -1 < part <= 0
    value = part * _EXP2[-1]
    for coefficient in _EXP2[-2:0:-1]:
        value = (value + coefficient) * part
    value = value + _EXP2[0]
    # From bit 23 on a float has its exponent.
    return (value.view(mx.int32) + (whole << 23)).view(mx.float32)


def can_conv1d(
    input: mx.array,  # noqa: A002 — as MLX calls it
    weight: mx.array,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> bool:
    """Depthwise, as before a recurrence: each channel by itself, a few tokens back."""
    return (
        (stride, padding, dilation) == (1, 0, 1)
        and input.ndim == 3
        and groups == input.shape[-1] == weight.shape[0]
        and weight.shape[1] <= min(_MAX_KERNEL_LEN, input.shape[1])
        and input.dtype in _FLOATS
        and weight.dtype == input.dtype
        and input.size >= _MIN_LEN
    )


def conv1d(
    input: mx.array,  # noqa: A002 — as MLX calls it
    weight: mx.array,  # (C, kernel, 1) where depthwise
    *args: int,
    **more: Any,
) -> mx.array:
    """Sums in float32."""
    if "stream" in more or not can_conv1d(input, weight, *args, **more):
        return _mlx_conv1d(input, weight, *args, **more)
    kernel_len = weight.shape[1]
    length = input.shape[1] - kernel_len + 1
    rows = input.astype(mx.float32)
    taps = weight[..., 0].astype(mx.float32).T  # (kernel, C)
    total = rows[:, :length] * taps[0]
    for place in range(1, kernel_len):
        total = total + rows[:, place : place + length] * taps[place]
    return total.astype(input.dtype)


def can_quantized_matmul(x: mx.array, w: mx.array, scales: mx.array, mode: str = "affine") -> bool:
    """Many rows by one matrix: then to unpack it first is a small part of the work."""
    return (
        mode == "affine"
        and w.ndim == 2
        and x.dtype in _FLOATS
        and x.dtype == scales.dtype
        and x.size >= _MIN_QUANTIZED_ROWS[x.dtype] * x.shape[-1]
    )


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    **more: Any,
) -> mx.array:
    """The weights and sums in float32, whatever the dtype of `x`."""
    if more or biases is None or not can_quantized_matmul(x, w, scales, mode):
        return _mlx_quantized_matmul(
            x, w, scales, biases, transpose, group_size, bits, mode, **more
        )
    weights = mx.dequantize(
        w, scales.astype(mx.float32), biases.astype(mx.float32), group_size, bits
    )
    product = x.astype(mx.float32) @ (weights.T if transpose else weights)
    return product.astype(x.dtype)


def can_attention(q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None) -> bool:
    """Not a decode step, and no row without a key."""
    num_scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return (
        q.dtype in _FLOATS
        and q.dtype == k.dtype == v.dtype
        and q.shape[2] > 1
        and num_scores >= _MIN_SCORES
        and (mask is None or isinstance(mask, mx.array) or q.shape[2] <= k.shape[2])
    )


def scaled_dot_product_attention(
    q: mx.array,  # (B, heads, T, D)
    k: mx.array,  # (B, key heads, S, D)
    v: mx.array,  # (B, key heads, S, D of the values)
    *,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    **more: Any,
) -> mx.array:
    """A block of rows at a time; under a causal mask, over the keys that the block can see.
    Within 1e-6 of the largest value, for float32."""
    if more or not can_attention(q, k, v, mask):
        return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)
    num_groups = q.shape[1] // k.shape[1]  # heads that share their keys
    # Scores count in powers of 2.
    queries = q.astype(mx.float32) * (scale * _LOG2_E)
    keys, values = k.astype(mx.float32), v.astype(mx.float32)
    outs = []
    for row in range(q.shape[0]):
        for head in range(k.shape[1]):
            heads = slice(head * num_groups, (head + 1) * num_groups)
            outs.append(
                _attend(
                    queries[row, heads],
                    keys[row, head],
                    values[row, head],
                    _of_heads(mask, row, heads),
                    None if sinks is None else sinks[heads],
                )
            )
    return mx.concatenate(outs).reshape(*q.shape[:3], -1).astype(q.dtype)


def _of_heads(mask: mx.array | str | None, row: int, heads: slice) -> mx.array | str | None:
    """Of a mask with up to four dimensions, any of them 1, what concerns these heads."""
    if not isinstance(mask, mx.array):
        return mask
    mask = mask[(None,) * (4 - mask.ndim)]
    mask = mask[row if mask.shape[0] > 1 else 0]
    return mask[heads] if mask.shape[0] > 1 else mask


def _attend(
    q: mx.array,  # (heads, T, D), all with the same keys
    k: mx.array,  # (S, D)
    v: mx.array,
    mask: mx.array | str | None,
    sinks: mx.array | None,
) -> mx.array:
    num_heads, num_rows, depth = q.shape
    num_keys = k.shape[0]
    block_len = max(_MIN_BLOCK_ROWS, _BLOCK_LEN // num_keys) // num_heads or 1
    blocks = []
    for start in range(0, num_rows, block_len):
        end = min(start + block_len, num_rows)
        seen = num_keys - num_rows + end if mask == "causal" else num_keys
        scores = (q[:, start:end].reshape(-1, depth) @ k[:seen].T).reshape(num_heads, -1, seen)
        bias = _bias(mask, start, end, num_rows, seen)
        blocks.append(_weigh(scores if bias is None else scores + bias, v[:seen], sinks))
    return mx.concatenate(blocks, axis=1)


def _bias(
    mask: mx.array | str | None, start: int, end: int, num_rows: int, seen: int
) -> mx.array | None:
    """What is added to the scores of rows start to end: for a mask of bools, as MLX does, the
    least number, so that a row without a key weighs all keys alike."""
    if mask is None:
        return None
    if isinstance(mask, str):
        places = mx.arange(seen - (end - start), seen)[:, None]
        mask = places >= mx.arange(seen)
    elif mask.shape[-2] == num_rows:
        mask = mask[..., start:end, :]
    if mask.dtype == mx.bool_:
        return mx.where(mask, 0.0, mx.finfo(mx.float32).min)
    return mask.astype(mx.float32) * _LOG2_E


def _weigh(scores: mx.array, values: mx.array, sinks: mx.array | None) -> mx.array:
    """softmax(scores) @ values; dividing at the end, where there are fewer numbers."""
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = sinks.astype(mx.float32).reshape(-1, 1, 1) * _LOG2_E
        largest = mx.maximum(largest, sinks)
    weights = _exp2_negative(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + _exp2_negative(sinks - largest)
    num_heads, num_rows, num_keys = weights.shape
    sums = (weights.reshape(-1, num_keys) @ values).reshape(num_heads, num_rows, -1)
    return sums / total
