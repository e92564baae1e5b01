"""RWKV-7's recurrence in chunks: a delta rule whose state decays per key.

    S_t = S_{t-1} diag(w_t) + u_t b_tᵀ + v_t k_tᵀ      u_t = S_{t-1} a_t      y_t = S_t r_t

Within a chunk the u solve a triangular system. Both it and the decays between two tokens are built by
joining neighbouring blocks: from a token of the left block to one of the right the decay is what the
left one has still to lose times what the right one has lost so far. So decays are multiplied, never
divided, and none is too small. Pure functions; what they give depends on their arguments alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx

CHUNK = 64  # a power of two
MIN_CHUNKED_LEN = 8  # below this, steps cost less than to set up a chunk


def wkv7(
    self: Any,  # noqa: ARG001 -- a method of Rwkv7TimeMixing
    r: mx.array,
    w: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    state: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """Stands in for rwkv7's `Rwkv7TimeMixing._wkv7`: y (B, T, H, D) and the state in float32.

    r, w, k, v, a, b (B, T, H, D); state (B, H, D, D), values by keys, or none for zeros.
    """
    dtype = r.dtype
    r, w, k, v, a, b = (x.astype(mx.float32) for x in (r, w, k, v, a, b))
    batch, length, num_heads, dim = r.shape
    if state is None:
        state = mx.zeros((batch, num_heads, dim, dim), dtype=mx.float32)
    state = state.astype(mx.float32)
    run = _step_by_step if length < MIN_CHUNKED_LEN else _in_chunks
    y, state = run(r, w, k, v, a, b, state)
    return y.astype(dtype), state


def _step_by_step(
    r: mx.array, w: mx.array, k: mx.array, v: mx.array, a: mx.array, b: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    ys = []
    for t in range(r.shape[1]):
        u = state @ a[:, t, :, :, None]
        state = state * w[:, t, :, None, :] + u * b[:, t, :, None, :]
        state = state + v[:, t, :, :, None] * k[:, t, :, None, :]
        ys.append((state @ r[:, t, :, :, None]).squeeze(-1))
    return mx.stack(ys, axis=1), state


def _in_chunks(
    r: mx.array, w: mx.array, k: mx.array, v: mx.array, a: mx.array, b: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    length = r.shape[1]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    values = _split(v, chunk, fill=0.0)  # (B, H, N, C, D)
    r, k, a, b = (_split(x, chunk, fill=0.0) for x in (r, k, a, b))
    c = _join(r, k, a, b, _split(w, chunk, fill=1.0))
    # u = fixed + per_state Sᵀ, and so for y and for the next state: all but S known for all chunks.
    fixed = c.solved @ (c.a_to_k @ values)
    per_state = c.solved @ c.a
    y_fixed = c.r_to_k @ values + c.r_to_b @ fixed
    y_per_state = c.r + c.r_to_b @ per_state
    added = values.swapaxes(-1, -2) @ c.k + fixed.swapaxes(-1, -2) @ c.b
    turned = per_state.swapaxes(-1, -2) @ c.b
    kept = c.w[..., None, :]
    starts = []
    for i in range(values.shape[2]):
        starts.append(state)
        # What is kept stays out of the product, which a GPU may compute with fewer bits.
        state = state * kept[:, :, i] + state @ turned[:, :, i] + added[:, :, i]
    y = y_fixed + y_per_state @ mx.stack(starts, axis=2).swapaxes(-1, -2)
    return y.flatten(2, 3)[:, :, :length].swapaxes(1, 2), state


class _Chunk(NamedTuple):
    """A chunk of C tokens. Its r and a carry the decay since its start, k and b that to its end."""

    r: mx.array  # (B, H, N, C, D), as a, k and b
    a: mx.array
    k: mx.array
    b: mx.array
    w: mx.array  # (B, H, N, D): the decay over all of it
    r_to_k: mx.array  # (B, H, N, C, C), as those below; r·k under the decay between the two
    r_to_b: mx.array
    a_to_k: mx.array
    solved: mx.array  # (1 - a_to_b)⁻¹


class _Blocks(NamedTuple):
    """Blocks of n tokens, as a chunk; F is the place of the block within its chunk."""

    queries: mx.array  # (B, H, N, F, 2, n, D): r and a
    keys: mx.array  # (B, H, N, F, 2, n, D): k and b
    w: mx.array  # (B, H, N, F, D)
    products: mx.array  # (B, H, N, F, 2, 2, n, n): of r and a with k and b
    solved: mx.array  # (B, H, N, F, n, n)


def _join(r: mx.array, k: mx.array, a: mx.array, b: mx.array, w: mx.array) -> _Chunk:
    """Blocks of one token, joined by twos until they are as long as a chunk."""
    keys = mx.stack([k, b], axis=4)[..., None, :]
    own = (r[..., None, None, :] * keys).sum(axis=-1, keepdims=True)  # of a token with itself
    products = mx.stack([own, mx.zeros_like(own)], axis=4)
    queries = mx.stack([r * w, a], axis=4)[..., None, :]
    blocks = _Blocks(queries, keys, w, products, mx.ones((*w.shape[:-1], 1, 1)))
    for _ in range(w.shape[3].bit_length() - 1):
        blocks = _join_neighbours(blocks)
    queries, keys, w, products, solved = (x.squeeze(3) for x in blocks)
    return _Chunk(
        r=queries[:, :, :, 0],
        a=queries[:, :, :, 1],
        k=keys[:, :, :, 0],
        b=keys[:, :, :, 1],
        w=w,
        r_to_k=products[:, :, :, 0, 0],
        r_to_b=products[:, :, :, 0, 1],
        a_to_k=products[:, :, :, 1, 0],
        solved=solved,
    )


def _join_neighbours(blocks: _Blocks) -> _Blocks:
    left = _Blocks(*(x[:, :, :, 0::2] for x in blocks))
    right = _Blocks(*(x[:, :, :, 1::2] for x in blocks))
    left_w, right_w = left.w[..., None, None, :], right.w[..., None, None, :]
    num_tokens = left.queries.shape[-2]
    corner = right.queries.flatten(4, 5) @ left.keys.flatten(4, 5).swapaxes(-1, -2)
    corner = mx.unflatten(mx.unflatten(corner, 5, (2, num_tokens)), 4, (2, num_tokens))
    corner = corner.swapaxes(5, 6)  # (B, H, N, F, 2, 2, n, n)
    solved = right.solved @ corner[:, :, :, :, 1, 1] @ left.solved
    return _Blocks(
        queries=mx.concatenate([left.queries, right.queries * left_w], axis=-2),
        keys=mx.concatenate([left.keys * right_w, right.keys], axis=-2),
        w=left.w * right.w,
        products=_lower(left.products, corner, right.products),
        solved=_lower(left.solved, solved, right.solved),
    )


def _lower(upper_left: mx.array, corner: mx.array, lower_right: mx.array) -> mx.array:
    top = mx.concatenate([upper_left, mx.zeros_like(upper_left)], axis=-1)
    return mx.concatenate([top, mx.concatenate([corner, lower_right], axis=-1)], axis=-2)


def _split(x: mx.array, chunk: int, fill: float) -> mx.array:
    """(B, T, H, D) in chunks: (B, H, N, C, D)."""
    if (padding := -x.shape[1] % chunk) > 0:
        x = mx.pad(x, [(0, 0), (0, padding), (0, 0), (0, 0)], constant_values=fill)
    return x.reshape(x.shape[0], -1, chunk, *x.shape[2:]).transpose(0, 3, 1, 2, 4)
