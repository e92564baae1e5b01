"""The short convolution before a recurrence, on CUDA: each channel by itself, a few tokens back.

For each length and batch that it has not seen, MLX has cuDNN plan for some 200 ms, and every prompt
has a length of its own. This kernel needs no plan, and gives the same bits however a prompt is cut
into chunks of two tokens or more. No gradients. On the thread that owns the arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mlx.core as mx

from keepwarm.model.cpu_ops import is_short_depthwise

THREADS = 256
# Of a CUDA grid, in its second and third dimension.
_MAX_BLOCKS = 65_535

# MLX's own, whatever stands under this name later.
_mlx_conv1d = mx.conv1d

_SOURCE = """
    const int T = x_shape[1], C = x_shape[2];
    const int c = blockIdx.x * THREADS + threadIdx.x;
    const int t = blockIdx.y, b = blockIdx.z;
    if (c >= C) return;
    const long long from = ((long long)b * T + t) * C + c;
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < K; ++i) {
      sum += static_cast<float>(x[from + (long long)i * C]) * static_cast<float>(w[c * K + i]);
    }
    y[((long long)b * (T - K + 1) + t) * C + c] = static_cast<InT>(sum);
"""


def can_conv1d(input: Any, weight: Any, *args: int, **more: int) -> bool:  # noqa: A002
    """On the GPU. A single sequence that decodes always has the same length."""
    return (
        is_short_depthwise(input, weight, *args, **more)
        and 0 < input.shape[0] <= _MAX_BLOCKS
        and input.shape[1] <= _MAX_BLOCKS
        and (input.shape[0], input.shape[1]) != (1, weight.shape[1])
        and mx.cuda.is_available()
        and mx.default_device() == mx.gpu
    )


def conv1d(
    input: mx.array,  # noqa: A002 -- as MLX calls it
    weight: mx.array,  # (C, kernel, 1) where depthwise
    *args: int,
    **more: Any,
) -> mx.array:
    """Sums in float32, each product as the one before it in the same order."""
    if "stream" in more or not can_conv1d(input, weight, *args, **more):
        return _mlx_conv1d(input, weight, *args, **more)
    batch, length, num_channels = input.shape
    kernel_len = weight.shape[1]
    out_len = length - kernel_len + 1
    [y] = _kernel()(
        inputs=[input, weight],
        template=[("InT", input.dtype), ("K", kernel_len), ("THREADS", THREADS)],
        grid=(-(-num_channels // THREADS) * THREADS, out_len, batch),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(batch, out_len, num_channels)],
        output_dtypes=[input.dtype],
    )
    assert isinstance(y, mx.array)
    return y


@lru_cache(maxsize=1)
def _kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_short_conv", input_names=["x", "w"], output_names=["y"], source=_SOURCE
    )
