"""Linear attention whose state decays by one factor per head and token, in chunks.

    S_t = a_t S_{t-1} + k_tᵀ v_t      y_t = q_t S_t

Mamba 2 and lightning attention are of this form. Within a chunk this is attention under a matrix of
decays; between chunks only the states are computed one after the other. Decays are multiplied, never
divided nor subtracted as logarithms, so none is too small. Pure functions; what they give depends on
their arguments alone.
"""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.ssm import compute_dt

CHUNK = 64  # the matrix of decays grows with it, the number of steps shrinks
# No float32 sum shows what decayed to less than this. As 0 it costs nothing; a little further down
# begin the numbers with fewer bits, with which a CPU computes a hundred times more slowly.
FORGOTTEN = 1e-20


def ssm_attn(
    x: mx.array,
    A_log: mx.array,  # noqa: N803 -- the original's names
    B: mx.array,  # noqa: N803
    C: mx.array,  # noqa: N803
    D: mx.array,  # noqa: N803
    dt: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    time_step_limit: tuple[float, float] = (0.001, 100.0),
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
    step: int = CHUNK,
) -> tuple[mx.array, mx.array]:
    """Stands in for mlx-lm's `ssm_attn` (Mamba 2): y (B, T, H, V) and the state (B, H, V, K).

    Masked tokens neither decay the state nor add to it; y there means nothing.
    """
    length, num_heads = x.shape[1:3]
    if mask is None and lengths is not None:
        mask = mx.arange(length) < lengths[:, None]
    dt = compute_dt(dt, dt_bias, time_step_limit)
    decays = mx.exp(-mx.exp(A_log.astype(mx.float32)) * dt)
    if mask is not None:
        decays = mx.where(mask[..., None], decays, 1)
        dt = mx.where(mask[..., None], dt, 0)
    values = dt[..., None] * x
    if state is not None:
        state = state.swapaxes(2, 3)
    y, state = decayed_attention(C, B, values, decays, state, step)
    y = y.astype(x.dtype) + x * D.reshape(1, 1, num_heads, 1)
    return y, mx.contiguous(state.swapaxes(2, 3))


def recurrent_gla(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    scale: float,
    h: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """Stands in for bailing_moe_linear's `recurrent_gla`: q, k, v (B, H, T, K), g (H,), h (B, H, K, V)."""
    batch, num_heads, length, _ = q.shape
    queries, keys, values = (x.swapaxes(1, 2) for x in (q * scale, k, v))
    decays = mx.broadcast_to(mx.exp(g.astype(mx.float32)), (batch, length, num_heads))
    y, state = decayed_attention(queries, keys, values, decays, h)
    return y.swapaxes(1, 2).astype(q.dtype), state


def decayed_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    decays: mx.array,
    state: mx.array | None = None,
    chunk: int = CHUNK,
) -> tuple[mx.array, mx.array]:
    """y (B, T, H, V) and the last state (B, H, K, V), both float32.

    q, k (B, T, G, K) with G dividing H; v (B, T, H, V); decays (B, T, H) in [0, 1].
    """
    q, k, v, decays = (x.astype(mx.float32) for x in (q, k, v, decays))
    batch, length, num_heads, value_dim = v.shape
    num_groups, key_dim = k.shape[2:]
    per_group = num_heads // num_groups
    if state is None:
        state = mx.zeros((batch, num_heads, key_dim, value_dim), dtype=mx.float32)
    state = state.astype(mx.float32).reshape(batch, num_groups, per_group, key_dim, value_dim)
    v = v.reshape(batch, length, num_groups, per_group, value_dim)
    decays = decays.reshape(batch, length, num_groups, per_group)
    if length == 1:
        y, state = _step(q, k, v, decays, state)
    else:
        y, state = _in_chunks(q, k, v, decays, state, min(chunk, length))
    return y.flatten(2, 3), state.flatten(1, 2)


def _step(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    updates = k[:, 0, :, None, :, None] * v[:, 0, :, :, None, :]  # (B, G, R, K, V)
    state = decays[:, 0, :, :, None, None] * state + updates
    return (q[:, 0, :, None, None, :] @ state).squeeze(3)[:, None], state


def _in_chunks(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, state: mx.array, chunk: int
) -> tuple[mx.array, mx.array]:
    length = q.shape[1]
    queries, keys = (_split(x, chunk, fill=0.0).swapaxes(2, 3) for x in (q, k))  # (B, N, G, C, K)
    values = _split(v, chunk, fill=0.0).swapaxes(2, 3)  # (B, N, G, C, R, V)
    steps = _split(decays, chunk, fill=1.0).transpose(0, 1, 3, 4, 2)  # (B, N, G, R, C)
    between = decay_matrix(steps)
    scores = (queries @ keys.swapaxes(-1, -2))[:, :, :, None] * between
    within = scores @ values.swapaxes(3, 4)  # (B, N, G, R, C, V)
    # Heads of one group share keys and queries: one product with all their values side by side.
    to_end = between[..., -1, :].swapaxes(3, 4)[..., None]
    updates = keys.swapaxes(-1, -2) @ (values * to_end).flatten(4)
    updates = mx.unflatten(updates, -1, values.shape[-2:])  # (B, N, G, K, R, V)
    since_start = mx.cumprod(steps, axis=-1)
    since_start = since_start * (since_start > FORGOTTEN)
    since_start = since_start.swapaxes(3, 4)[..., None]  # (B, N, G, C, R, 1)
    state = state.swapaxes(2, 3)
    starts = []
    for i in range(steps.shape[1]):
        starts.append(state)
        state = since_start[:, i, :, -1:] * state + updates[:, i]
    before = queries @ mx.stack(starts, axis=1).flatten(4)
    before = since_start * mx.unflatten(before, -1, values.shape[-2:])
    y = (before + within.swapaxes(3, 4)).swapaxes(2, 3)  # (B, N, C, G, R, V)
    return y.flatten(1, 2)[:, :length], state.swapaxes(2, 3)


def decay_matrix(steps: mx.array) -> mx.array:
    """The decay from token j to token i, (..., i, j), of decays (..., C): 0 above the diagonal."""
    length = steps.shape[-1]
    rows = mx.where(mx.tri(length, k=-1, dtype=mx.bool_), steps[..., None], 1)
    floor = mx.where(mx.tri(length, dtype=mx.bool_), FORGOTTEN, mx.inf)
    decays = mx.cumprod(rows, axis=-2)
    return decays * (decays > floor)


def _split(x: mx.array, chunk: int, fill: float) -> mx.array:
    """(B, T, ...) in chunks: (B, N, C, ...)."""
    if (padding := -x.shape[1] % chunk) > 0:
        x = mx.pad(x, [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)], constant_values=fill)
    return x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
