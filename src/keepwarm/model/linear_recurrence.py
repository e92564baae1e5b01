"""Diagonal linear recurrences, h_t = a_t h_{t-1} + b_t element by element, without a step per token.

Only decays are multiplied, never divided, so a decay of 0 is as good as any other. Pure functions;
what they give depends on their arguments and the default device alone.
"""

from __future__ import annotations

import math

import mlx.core as mx

# On the CPU a step of this many elements or more takes its time for them, and lanes, which compute
# each twice, lose; what a narrower one takes is overhead. On a GPU every step is a launch or two.
WIDE_STEP = 8192


def rnn_scan(x: mx.array, a: mx.array, h0: mx.array | None) -> tuple[mx.array, mx.array]:
    """What recurrent_gemma's `rnn_scan` gives; the state in float32.

    x, a (B, T, D), h0 (B, D) or none for zeros.
    """
    updates, decays = x.astype(mx.float32), a.astype(mx.float32)
    state = mx.zeros_like(updates[:, 0]) if h0 is None else h0
    states, state = diagonal_scan(decays, updates, state)
    return states.astype(x.dtype), state


def diagonal_scan(
    decays: mx.array, updates: mx.array, state: mx.array, num_lanes: int | None = None
) -> tuple[mx.array, mx.array]:
    """Every h_t and the last one, of decays and updates (B, T, ...) and the state before (B, ...).

    The tokens are cut into lanes that are walked side by side: once from zero for what each lane
    adds and keeps, then, with the states between the lanes known, once more for all the states.
    """
    length = updates.shape[1]
    if num_lanes is None:
        num_lanes = choose_lanes(length, width=state.size)
    decays = _split(decays, num_lanes, fill=1.0)
    updates = _split(updates, num_lanes, fill=0.0)
    current = state[:, None] if num_lanes == 1 else _lane_starts(decays, updates, state)
    states = []
    for t in range(updates.shape[2]):
        current = decays[:, :, t] * current + updates[:, :, t]
        states.append(current)
    return mx.stack(states, axis=2).flatten(1, 2)[:, :length], current[:, -1]


def choose_lanes(length: int, width: int) -> int:
    """How many lanes: about √T, the fewest steps in all, where steps are what costs."""
    if mx.default_device() == mx.cpu and width >= WIDE_STEP:
        return 1
    return math.isqrt(length)


def _lane_starts(decays: mx.array, updates: mx.array, state: mx.array) -> mx.array:
    """The state before each lane, (B, lanes, ...)."""
    kept, added = decays[:, :, 0], updates[:, :, 0]
    for t in range(1, decays.shape[2]):
        kept, added = decays[:, :, t] * kept, decays[:, :, t] * added + updates[:, :, t]
    starts = [state]
    for lane in range(decays.shape[1] - 1):
        starts.append(kept[:, lane] * starts[-1] + added[:, lane])
    return mx.stack(starts, axis=1)


def _split(x: mx.array, num_lanes: int, fill: float) -> mx.array:
    """(B, T, ...) in lanes: (B, lanes, tokens, ...)."""
    if (padding := -x.shape[1] % num_lanes) > 0:
        width = [(0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)]
        x = mx.pad(x, width, constant_values=fill)
    return x.reshape(x.shape[0], num_lanes, -1, *x.shape[2:])
