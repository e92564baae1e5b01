"""The gated delta rule in chunks: the same sums as mlx-lm's loop over tokens, as matrix products.

    S_t = S_{t-1} diag(g_t) + d_t k_tᵀ      d_t = β_t (v_t − S_{t-1} diag(g_t) k_t)      y_t = S_t q_t

Within a chunk that starts from S the d solve (1 + A) d = β (v − S (decay · k)), where A is strictly
lower triangular, so only the states between chunks are computed one after the other. Pure functions;
what they give depends on their arguments alone.
"""

from __future__ import annotations

import mlx.core as mx

from keepwarm.model import gated_delta_cuda

# The work within a chunk grows with its length, the number of steps shrinks with it.
SCALAR_CHUNK = 32
VECTOR_CHUNK = 16
# Tokens that share a scale where each key has a gate, and where the inverse of a chunk begins.
BLOCK = 8
# A smaller gate has forgotten all that float32 can tell.
MIN_GATE = 1e-9
# Below this a loop of single steps costs less than to set up a chunk.
MIN_CHUNKED_LEN = 4


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """What mlx-lm's `gated_delta_ops` gives, as fast as this device allows.

    q, k (B, T, Hk, Dk); v (B, T, Hv, Dv); g (B, T, Hv) or (B, T, Hv, Dk); beta (B, T, Hv);
    state (B, Hv, Dv, Dk); mask (B, T). Gives y (B, T, Hv, Dv) in the type of q and the state in
    float32. Where the mask is false the state passes by; y there means nothing.
    """
    if state is None:
        batch, _, num_heads, value_dim = v.shape
        state = mx.zeros((batch, num_heads, value_dim, k.shape[-1]), dtype=mx.float32)
    if mask is not None:
        beta = mx.where(mask[..., None], beta, 0)
        g = mx.where(mask.reshape(*mask.shape, *[1] * (g.ndim - 2)), g, 1)
    if gated_delta_cuda.can_run(k, v):
        return gated_delta_cuda.run(q, k, v, g, beta, state)
    if q.shape[1] < MIN_CHUNKED_LEN:
        return _step_by_step(q, k, v, g, beta, state)
    return _in_chunks(q, k, v, g, beta, state)


def _step_by_step(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    repeats = v.shape[2] // k.shape[2]
    queries, keys = (mx.repeat(x, repeats, axis=2) if repeats > 1 else x for x in (q, k))
    state = state.astype(mx.float32)
    ys = []
    for t in range(q.shape[1]):
        decay = g[:, t, :, None, None] if g.ndim == 3 else g[:, t, :, None, :]
        key, query = keys[:, t, :, None, :], queries[:, t, :, None, :]
        state = state * decay
        delta = (v[:, t] - (state * key).sum(axis=-1)) * beta[:, t, :, None]
        state = state + key * delta[..., None]
        ys.append((state * query).sum(axis=-1).astype(q.dtype))
    return mx.stack(ys, axis=1), state


def _in_chunks(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    is_scalar = g.ndim == 3
    length, num_heads = q.shape[1], v.shape[2]
    chunk = _chunk_len(length, SCALAR_CHUNK if is_scalar else VECTOR_CHUNK)
    repeats = num_heads // k.shape[2]
    # (B, H, N, C, D), the heads of keys repeated for the heads of values that share them
    queries, keys, values = (_split(x.astype(mx.float32), chunk, fill=0.0) for x in (q, k, v))
    betas = _split(beta.astype(mx.float32)[..., None], chunk, fill=0.0)
    gates = g.astype(mx.float32)[..., None] if is_scalar else g.astype(mx.float32)
    gates = _split(gates, chunk, fill=1.0)
    if is_scalar:
        weights, attention = _scalar_pairs(queries, keys, gates)
    if repeats > 1:
        queries, keys = mx.repeat(queries, repeats, axis=1), mx.repeat(keys, repeats, axis=1)
    if not is_scalar:
        weights, attention = _vector_pairs(queries, keys, gates)
    # d = own − reads Sᵀ
    inverse = unit_lower_inverse(betas * weights)
    since_start = _products(gates, axis=-2)  # (B, H, N, C, 1 or D)
    until_end = _products_after(gates)
    own = inverse @ (betas * values)
    reads = mx.concatenate([inverse @ (betas * since_start * keys), since_start * queries], axis=-2)
    written = (until_end * keys).swapaxes(-1, -2)  # (B, H, N, D, C)
    kept = since_start[..., -1, :, None]  # (B, H, N, 1 or D, 1)

    transposed = state.astype(mx.float32).swapaxes(-1, -2)  # (B, H, Dk, Dv)
    deltas, seen = [], []
    for n in range(reads.shape[2]):
        both = reads[:, :, n] @ transposed
        deltas.append(own[:, :, n] - both[..., :chunk, :])
        seen.append(both[..., chunk:, :])
        transposed = kept[:, :, n] * transposed + written[:, :, n] @ deltas[-1]
    y = mx.stack(seen, axis=2) + attention @ mx.stack(deltas, axis=2)
    return _join(y, length).astype(q.dtype), mx.contiguous(transposed.swapaxes(-1, -2))


def _chunk_len(length: int, longest: int) -> int:
    """The longest power of two that a prompt of this length fills, so that little is padded."""
    chunk = BLOCK
    while chunk < longest and chunk < length:
        chunk *= 2
    return chunk


def _split(x: mx.array, chunk: int, fill: float) -> mx.array:
    """(B, T, H, D) to (B, H, N, C, D), filled up at the end."""
    batch, length, num_heads, dim = x.shape
    lacking = -length % chunk
    if lacking:
        x = mx.pad(x, [(0, 0), (0, lacking), (0, 0), (0, 0)], constant_values=fill)
    return mx.contiguous(x.reshape(batch, -1, chunk, num_heads, dim).transpose(0, 3, 1, 2, 4))


def _join(y: mx.array, length: int) -> mx.array:
    batch, num_heads, num_chunks, chunk, dim = y.shape
    y = y.transpose(0, 2, 3, 1, 4).reshape(batch, num_chunks * chunk, num_heads, dim)
    return y[:, :length]


def _products(gates: mx.array, axis: int) -> mx.array:
    """The decay up to each place. Products, never quotients: what lies before may have vanished.
    Logarithms and exponents would be the slowest part of all on the CPU."""
    return _without_dust(mx.cumprod(gates, axis=axis))


def _products_after(gates: mx.array) -> mx.array:
    """The decay from each token to the end."""
    return _without_dust(mx.cumprod(gates, axis=-2, reverse=True, inclusive=False))


def _without_dust(decay: mx.array) -> mx.array:
    """Processors multiply numbers below 1e-38 very slowly, and 1e-20 of a state is nothing."""
    return mx.where(decay < 1e-20, 0, decay)


def _scalar_pairs(queries: mx.array, keys: mx.array, gates: mx.array) -> tuple[mx.array, mx.array]:
    """What each token of a chunk takes from those before it: with its key, and with its query
    (and from itself). (B, H, N, C, C) both, for all heads of gates, which may share keys."""
    chunk = keys.shape[-2]
    repeats = gates.shape[1] // keys.shape[1]
    products = mx.concatenate([keys, queries], axis=-2) @ keys.swapaxes(-1, -2)
    if repeats > 1:
        products = mx.repeat(products, repeats, axis=1)
    is_before = mx.tri(chunk, k=-1, dtype=mx.bool_)
    # Row t, column i: the product over i+1 … t.
    decay = _products(mx.where(is_before, gates, 1), axis=-2)
    return (
        mx.tri(chunk, k=-1, dtype=mx.float32) * (decay * products[..., :chunk, :]),
        mx.tri(chunk, dtype=mx.float32) * (decay * products[..., chunk:, :]),
    )


def _vector_pairs(queries: mx.array, keys: mx.array, gates: mx.array) -> tuple[mx.array, mx.array]:
    """As `_scalar_pairs` with a gate per key, in blocks of 8 tokens: a product of two factors can
    hold a decay only where neither leaves float32's range.

    Across blocks:  i ──after──▶ end of its block ──between──▶ start of t's block ──upto──▶ t
    In a block:     both are measured from its middle
    """
    *front, chunk, dim = keys.shape
    num_blocks = chunk // BLOCK
    shape = (*front, num_blocks, BLOCK, dim)
    keys, queries, gates = keys.reshape(shape), queries.reshape(shape), gates.reshape(shape)

    upto = _products(gates, axis=-2)
    rows = mx.concatenate([upto * keys, upto * queries], axis=-2)  # (…, A, 16, D)
    # (…, A, A, D): from the end of block b to the start of block a
    is_passed = mx.tri(num_blocks, k=-2, dtype=mx.bool_)[..., None]
    whole = mx.where(is_passed, _shifted(upto[..., -1:, :]), 1)
    between = _products(whole, axis=-3)
    columns = (_products_after(gates) * keys)[..., None, :, :, :] * between[..., None, :]
    across = rows @ columns.reshape(*front, num_blocks, chunk, dim).swapaxes(-1, -2)

    scale = _from_middle(gates)
    rows = mx.concatenate([scale * keys, scale * queries], axis=-2)
    within = rows @ (keys / scale).swapaxes(-1, -2)  # (…, A, 16, 8)

    of_keys = _assemble(across[..., :BLOCK, :], within[..., :BLOCK, :])
    of_queries = _assemble(across[..., BLOCK:, :], within[..., BLOCK:, :])
    return mx.tril(of_keys, k=-1), mx.tril(of_queries)


def _from_middle(gates: mx.array) -> mx.array:
    """The decay from the middle of a block to each of its tokens: above 1 for those before it.
    The decay between two tokens is the quotient of theirs; half a block of the smallest gates
    still fits float32."""
    gates = mx.maximum(gates, MIN_GATE)
    before, after = gates[..., : BLOCK // 2, :], gates[..., BLOCK // 2 :, :]
    to_middle = mx.cumprod(before, axis=-2, reverse=True, inclusive=False)
    return mx.concatenate([1 / to_middle, mx.cumprod(after, axis=-2)], axis=-2)


def _shifted(totals: mx.array) -> mx.array:
    """Block a's row holds the total of block a − 1."""
    return mx.concatenate([mx.ones_like(totals[..., :1, :, :]), totals[..., :-1, :, :]], axis=-3)


def _assemble(across: mx.array, within: mx.array) -> mx.array:
    """(…, A, 8, C) with the blocks (…, A, 8, 8) on its diagonal, as (…, C, C)."""
    *front, num_blocks, size, chunk = across.shape
    own = mx.eye(num_blocks, dtype=mx.bool_)[:, None, :, None]  # (A, 1, A, 1)
    apart = across.reshape(*front, num_blocks, size, num_blocks, size)
    return mx.where(own, within[..., None, :], apart).reshape(*front, chunk, chunk)


def unit_lower_inverse(lower: mx.array) -> mx.array:
    """(1 + lower)⁻¹ for strictly lower triangular (…, C, C), C a power of two from 8 on.

    Blocks on the diagonal first, then twice as large each time. The powers of the whole would be
    fewer products, but they grow like binomials where keys repeat, and float32 with them is lost.
    """
    chunk = lower.shape[-1]
    size = BLOCK
    corners = [slice(at, at + size) for at in range(0, chunk, size)]
    blocks = mx.stack([lower[..., at, at] for at in corners], axis=-3)
    squared = blocks @ blocks
    one = mx.eye(size)
    inverse = (one - blocks) @ ((one + squared) @ (one + squared @ squared))
    while size < chunk:
        first, second = inverse[..., ::2, :, :], inverse[..., 1::2, :, :]
        starts = range(0, chunk, 2 * size)
        below = mx.stack(
            [lower[..., at + size : at + 2 * size, at : at + size] for at in starts], axis=-3
        )
        corner = -(second @ (below @ first))
        inverse = mx.concatenate(
            [
                mx.concatenate([first, mx.zeros_like(first)], axis=-1),
                mx.concatenate([corner, second], axis=-1),
            ],
            axis=-2,
        )
        size *= 2
    return inverse[..., 0, :, :]
