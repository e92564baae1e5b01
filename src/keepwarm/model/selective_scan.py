"""Mamba's selective scan with its projections taken for all tokens at once.

    h_t = exp(Δ_t A) h_{t-1} + Δ_t x_t B_t      y_t = h_t C_t + D x_t

mlx-lm's mamba projects and steps token by token, its jamba steps token by token. Pure functions, but
for the two that stand in for methods and read their module's weights.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.activations import swiglu

from keepwarm.model.linear_recurrence import diagonal_scan

# Elements of a block of states: what stays in a CPU's cache, and what a GPU spares without a thought.
# Some four blocks are in memory at a time, whatever the length.
CPU_BLOCK_SIZE = 2**18
GPU_BLOCK_SIZE = 2**26


def mamba_sequence(
    self: Any, x: mx.array, conv_cache: mx.array | None, state_cache: mx.array | None
) -> tuple[mx.array, tuple[mx.array, mx.array]]:
    """Stands in for mamba's `MambaBlock._process_sequence`."""
    x, z = self.in_proj(x).split(2, axis=-1)
    kept_len = self.conv_kernel_size - 1
    if conv_cache is not None:
        x_full = mx.concatenate([conv_cache, x], axis=1)
    else:
        x_full = mx.pad(x, [(0, 0), (kept_len, 0), (0, 0)])
    x = self.conv1d(x_full)
    x = x * mx.sigmoid(x)
    ranks = [self.time_step_rank, self.time_step_rank + self.ssm_state_size]
    delta, b, c = mx.split(self.x_proj(x), ranks, axis=-1)
    if self.use_bcdt_rms:
        eps = self.args.mixer_rms_eps
        delta, b, c = (mx.fast.rms_norm(y, weight=None, eps=eps) for y in (delta, b, c))
    delta = _softplus(self.dt_proj(delta))
    a = -mx.exp(self.A_log.astype(mx.float32))
    y, state = selective_scan(x, delta, a, b, c, self.D, state_cache)
    return self.out_proj(swiglu(z, y)), (x_full[:, -kept_len:, :], state)


def jamba_step(
    self: Any,
    x: mx.array,
    A: mx.array,  # noqa: N803 -- the original's name
    state: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Stands in for jamba's `JambaMambaMixer.ssm_step`, which takes all tokens too."""
    ranks = [self.time_step_rank, self.time_step_rank + self.ssm_state_size]
    delta, b, c = mx.split(self.x_proj(x), ranks, axis=-1)
    delta, b, c = self.dt_layernorm(delta), self.b_layernorm(b), self.c_layernorm(c)
    delta = _softplus(self.dt_proj(delta))
    return selective_scan(x, delta, A, b, c, self.D, state)


def selective_scan(
    x: mx.array,
    delta: mx.array,
    a: mx.array,
    b: mx.array,
    c: mx.array,
    d: mx.array,
    state: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """y (B, T, D) in the type of x and the last state (B, D, N) in float32.

    x, delta (B, T, D); a (D, N), negative; b, c (B, T, N); d (D,); state (B, D, N) or none for zeros.
    """
    dtype = x.dtype
    x, delta, a, b, c, d = (y.astype(mx.float32) for y in (x, delta, a, b, c, d))
    batch, length = x.shape[:2]
    # States lie as (N, D) here: what is broadcast then stands still while the last axis runs.
    rates = a.T
    if state is None:
        state = mx.zeros((batch, *rates.shape), dtype=mx.float32)
    else:
        state = state.astype(mx.float32).swapaxes(1, 2)
    block_len = _block_len(state.size)
    ys: list[mx.array] = []
    for start in range(0, length, block_len):
        block = slice(start, start + block_len)
        steps = delta[:, block]
        if ys:  # else MLX makes room for all blocks before the first is done
            steps = mx.depends(steps, mx.stop_gradient(ys[-1]))
        decays = _exp(steps[:, :, None, :] * rates)
        updates = (steps * x[:, block])[:, :, None, :] * b[:, block, :, None]
        states, state = diagonal_scan(decays, updates, state)
        ys.append((c[:, block, None, :] @ states).squeeze(2))
    y = mx.concatenate(ys, axis=1) + d * x
    return y.astype(dtype), mx.contiguous(state.swapaxes(1, 2))


def _block_len(state_size: int) -> int:
    size = CPU_BLOCK_SIZE if mx.default_device() == mx.cpu else GPU_BLOCK_SIZE
    return max(1, size // state_size)


def _softplus(x: mx.array) -> mx.array:
    """In float32, as what uses it is."""
    x = x.astype(mx.float32)
    return mx.maximum(x, 0) + mx.log1p(_exp(-mx.abs(x)))


def _exp(exponents: mx.array) -> mx.array:
    """exp, on the CPU through a power of two: there mlx's power takes half the time of its exp."""
    if mx.default_device() == mx.cpu:
        return mx.power(2.0, exponents * 1.4426950408889634)
    return mx.exp(exponents)
