"""Operations that MLX's CPU build computes number by number, from what it computes fast: BLAS
products and arithmetic on whole arrays. Gradients pass.

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
# 2**f for |f| <= 1/2, to 7.5e-8 of it: least squares, weighted until the errors are level.
_EXP2 = (
    1.0000000716546775, 0.6931469670645362, 0.24022119723863633, 0.05550713273866283,
    0.00967554133350154, 0.00132764718734253,
)  # fmt: skip
# A float32 of this size has no bits behind the point, and the last eight before it are those of
# the exponent of 2**0: what is added to it is rounded and lies there as an exponent would.
_ROUNDING = 1.5 * 2**23 + 127
# 2**-100 beside a sum of at least 1 is nothing, and its products with values are still normal
# numbers; below 2**-126 processors take long for each.
_LEAST_WEIGHT = -100.0
_LEAST_POWER, _LARGEST_POWER = -126.0, 127.0
# Numbers in a block of scores, half a megabyte: they are gone over twenty times. With fewer rows
# than this BLAS would take longer to lay out the keys than to multiply.
_BLOCK_LEN = 1 << 17
_MIN_BLOCK_ROWS = 64
# From here on the operations themselves cost less than they save.
_MIN_LEN = 1 << 13
_MIN_SCORES = 1 << 16
# With fewer rows than this MLX's own loop in float32 takes less time than to unpack the weights.
_MIN_UNPACKED_ROWS = 5
# Weights in a block: unpacked, a megabyte that stays in the cache; packed, half a megabyte of scales
# and biases in float32, and most matrices are a single block. Blocks wait for each other, and some
# five of them are in memory at a time.
_UNPACKED_LEN = 1 << 18
_PACKED_LEN = 1 << 22
_MAX_KERNEL_LEN = 8

# MLX's own, whatever stands under these names later.
_mlx_attention = mx.fast.scaled_dot_product_attention
_mlx_conv1d = mx.conv1d
_mlx_quantized_matmul = mx.quantized_matmul
_mlx_sigmoid = mx.sigmoid


def can_sigmoid(a: Any) -> bool:
    return isinstance(a, mx.array) and a.dtype in _FLOATS and a.size >= _MIN_LEN


def sigmoid(a: Any, **more: Any) -> mx.array:
    """Within 5e-7 of its value, for float32."""
    if more or not can_sigmoid(a):
        return _mlx_sigmoid(a, **more)
    # Far above 2**127 the polynomial grows without bound, and with it what 1 is divided by.
    power = mx.maximum(a.astype(mx.float32) * -_LOG2_E, _LEAST_POWER)
    raised = _exp2(power, mx.minimum(power, _LARGEST_POWER))
    return (1.0 / (1.0 + raised)).astype(a.dtype)


def _exp2(power: mx.array, near: mx.array) -> mx.array:
    """2**power. `near` is the same where its exponent fits into a float32, from -126 to 127."""
    # What is rounded is a constant to gradients: they come from the polynomial.
    rounded = mx.stop_gradient(near + _ROUNDING)
    part = power - (rounded - _ROUNDING)
    value = part * _EXP2[-1]
    for coefficient in _EXP2[-2:0:-1]:
        value = (value + coefficient) * part
    # From bit 23 on a float has its exponent.
    return (value + _EXP2[0]) * (rounded.view(mx.int32) << 23).view(mx.float32)


def is_short_depthwise(
    input: Any,  # noqa: A002 — as MLX calls it
    weight: Any,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> bool:
    """Depthwise, as before a recurrence: each channel by itself, a few tokens back."""
    return (
        (stride, padding, dilation) == (1, 0, 1)
        and isinstance(input, mx.array)
        and isinstance(weight, mx.array)
        and input.ndim == weight.ndim == 3
        and groups == input.shape[-1] == weight.shape[0]
        and weight.shape[2] == 1
        and weight.shape[1] <= min(_MAX_KERNEL_LEN, input.shape[1])
        and input.dtype in _FLOATS
        and weight.dtype == input.dtype
    )


def can_conv1d(input: Any, weight: Any, *args: int, **more: int) -> bool:  # noqa: A002
    return is_short_depthwise(input, weight, *args, **more) and input.size >= _MIN_LEN


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


def can_quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    transpose: bool = True,
    mode: str = "affine",
) -> bool:
    """By a matrix that lies as a layer's does. Few rows in float32 are best left to MLX."""
    return (
        mode == "affine"
        and transpose
        and all(isinstance(part, mx.array) for part in (x, w, scales, biases))
        and w.ndim == 2
        and x.ndim > 0
        and x.dtype in _FLOATS
        and x.dtype == scales.dtype
        and (x.dtype != mx.float32 or _num_rows(x) >= _MIN_UNPACKED_ROWS)
    )


def _num_rows(x: mx.array) -> int:
    return math.prod(x.shape[:-1])


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
    """The weights and sums in float32, whatever the dtype of `x`: MLX's loop for these is ten times
    as fast as for others. Beside `x` and what comes of it in float32, takes 8 MB at most."""
    if more or not can_quantized_matmul(x, w, scales, biases, transpose, mode):
        return _mlx_quantized_matmul(
            x, w, scales, biases, transpose, group_size, bits, mode, **more
        )
    assert biases is not None
    is_unpacked = _num_rows(x) >= _MIN_UNPACKED_ROWS
    block_len = max(1, (_UNPACKED_LEN if is_unpacked else _PACKED_LEN) // x.shape[-1])
    rows = x.astype(mx.float32)
    outs: list[mx.array] = []
    for start in range(0, w.shape[0], block_len):
        block = slice(start, start + block_len)
        packed = w[block]
        if outs:  # else MLX makes room for all blocks before the first is done
            packed = mx.depends(packed, mx.stop_gradient(outs[-1]))
        scale, bias = scales[block].astype(mx.float32), biases[block].astype(mx.float32)
        if is_unpacked:
            product = rows @ mx.dequantize(packed, scale, bias, group_size, bits).T
        else:
            product = _mlx_quantized_matmul(
                rows, packed, scale, bias, group_size=group_size, bits=bits
            )
        outs.append(product.astype(x.dtype))
    return mx.concatenate(outs, axis=-1) if len(outs) > 1 else outs[0]


def can_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> bool:
    """Not a decode step, no row without a key, and nothing that MLX would refuse."""
    return (
        all(isinstance(a, mx.array) and a.ndim == 4 for a in (q, k, v))
        and q.dtype in _FLOATS
        and q.dtype == k.dtype == v.dtype
        and q.shape[2] > 1
        and q.size // q.shape[3] * k.shape[2] >= _MIN_SCORES
        and q.shape[0] == k.shape[0]
        and k.shape[:3] == v.shape[:3]
        and q.shape[1] % k.shape[1] == 0
        and _can_mask(mask, q, k)
        and (sinks is None or (sinks.dtype == q.dtype and sinks.shape == q.shape[1:2]))
    )


def _can_mask(mask: mx.array | str | None, q: mx.array, k: mx.array) -> bool:
    if not isinstance(mask, mx.array):
        return mask is None or (mask == "causal" and q.shape[2] <= k.shape[2])
    scores = (*q.shape[:3], k.shape[2])
    return (
        mask.dtype in (mx.bool_, q.dtype)
        and mask.ndim <= 4
        and all(m in (1, n) for m, n in zip(mask.shape[::-1], scores[::-1]))
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
    if more or not can_attention(q, k, v, mask, sinks):
        return _mlx_attention(q, k, v, scale=scale, mask=mask, sinks=sinks, **more)
    num_groups = q.shape[1] // k.shape[1]  # heads that share their keys
    # Scores count in powers of 2; but what is added to them in powers of e may be the least number,
    # and is not to become -inf, which MLX treats otherwise: then they are multiplied at the end.
    is_added = isinstance(mask, mx.array) and mask.dtype != mx.bool_
    to_powers = _LOG2_E if is_added else 1.0
    queries = q.astype(mx.float32) * (scale * _LOG2_E / to_powers)
    if sinks is not None:
        sinks = sinks.astype(mx.float32) * (_LOG2_E / to_powers)
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
                    to_powers,
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
    to_powers: float,
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
        if bias is not None:
            scores = scores + bias
        blocks.append(_weigh(scores, v[:seen], sinks, to_powers))
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
    least = mx.finfo(mx.float32).min
    if mask.dtype == mx.bool_:
        return mx.where(mask, 0.0, least)
    if mask.dtype == mx.float16:  # whose least number is not so little beside scores in float32
        is_least = mask == mx.finfo(mx.float16).min
        return mx.where(is_least, least, mask.astype(mx.float32))
    return mask.astype(mx.float32)


def _weigh(
    scores: mx.array, values: mx.array, sinks: mx.array | None, to_powers: float
) -> mx.array:
    """softmax(scores) @ values; dividing at the end, where there are fewer numbers."""
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = sinks.reshape(-1, 1, 1)
        largest = mx.maximum(largest, sinks)
    largest = mx.stop_gradient(largest)  # it cancels
    weights = _weight(scores - largest, to_powers)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + _weight(sinks - largest, to_powers)
    num_heads, num_rows, num_keys = weights.shape
    sums = (weights.reshape(-1, num_keys) @ values).reshape(num_heads, num_rows, -1)
    return sums / total


def _weight(below: mx.array, to_powers: float) -> mx.array:
    """2**(below * to_powers), for numbers <= 0."""
    power = below if to_powers == 1.0 else below * to_powers
    power = mx.maximum(power, _LEAST_WEIGHT)
    return _exp2(power, power)
