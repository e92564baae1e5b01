"""The gated delta rule in chunked form, in plain PyTorch, for training and evaluation.

The same function as transformers' reference, with no loop over the rows of a chunk: the
triangular inverse grows by block doubling, and the scan over chunks is one product per chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_LEN = 64


class _UnitLowerInverse(torch.autograd.Function):
    """(I + a)^-1 of strictly lower triangular `a` (…, C, C), C a power of two.

    Two neighbouring blocks of known inverses X1, X2 with the coupling L below the diagonal have
    the inverse [[X1, 0], [-X2 L X1, X2]]: six doublings make 64, and no power of `a` is ever
    formed, which would overflow where keys repeat.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        chunk_len = a.shape[-1]
        rows = torch.arange(chunk_len, device=a.device)
        inverse = torch.eye(chunk_len, dtype=a.dtype, device=a.device).expand_as(a)
        block_len = 1
        while block_len < chunk_len:
            block = rows // block_len
            is_pair = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
            coupling = a * is_pair
            inverse = inverse - (coupling if block_len == 1 else inverse @ coupling @ inverse)
            block_len *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grads[0] @ transposed).tril(-1)


class _StateScan(torch.autograd.Function):
    """states[i + 1] = m[:, i] @ states[i] + b[:, i]; returns all N + 1 states, chunks first."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, b: Tensor, first: Tensor) -> Tensor:
        num_chunks = m.shape[1]
        states = first.new_empty((num_chunks + 1, *first.shape))
        states[0] = first
        for i in range(num_chunks):
            torch.baddbmm(b[:, i], m[:, i], states[i], out=states[i + 1])
        ctx.save_for_backward(m, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, states = ctx.saved_tensors
        totals = grads[0].clone()
        for i in reversed(range(m.shape[1])):
            totals[i].baddbmm_(m[:, i].transpose(1, 2), totals[i + 1])
        grad_b = totals[1:].transpose(0, 1)  # (G, N, Dk, Dv)
        grad_m = grad_b @ states[:-1].transpose(0, 1).transpose(-1, -2)
        return grad_m, grad_b, totals[0]


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All that one chunk can know by itself; inputs (G, N, C, …) in float32."""
    q = l2_norm(q) * q.shape[-1] ** -0.5
    k = l2_norm(k)
    decay = g.cumsum(-1)
    between = decay.unsqueeze(-1) - decay.unsqueeze(-2)
    is_later = torch.ones(between.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    between = between.masked_fill(is_later, float("-inf")).exp()
    since_start = decay.exp().unsqueeze(-1)
    k_beta = k * beta.unsqueeze(-1)
    coupling = ((k_beta @ k.transpose(-1, -2)) * between).tril(-1)
    scores = (q @ k.transpose(-1, -2)) * between
    written = torch.cat([v * beta.unsqueeze(-1), k_beta * since_start], dim=-1)
    last = decay[..., -1:]
    k_to_end = k * (last - decay).exp().unsqueeze(-1)
    return coupling, scores, written, q * since_start, k_to_end, last.exp().unsqueeze(-1)


def l2_norm(x: Tensor) -> Tensor:
    """x / sqrt(sum of squares + 1e-6), through the one kernel that torch has for it."""
    dim = x.shape[-1]
    return functional.rms_norm(x, (dim,), eps=1e-6 / dim) * dim**-0.5


def _solve(
    inverse: Tensor, written: Tensor, k_to_end: Tensor, chunk_decay: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a chunk writes (u, w) and what it does to the state: S -> m @ S + b."""
    key_dim = k_to_end.shape[-1]
    value_dim = written.shape[-1] - key_dim
    u, w = (inverse @ written).split([value_dim, key_dim], dim=-1)
    b, fading = (k_to_end.transpose(-1, -2) @ torch.cat([u, w], dim=-1)).split(
        [value_dim, key_dim], dim=-1
    )
    eye = torch.eye(key_dim, dtype=u.dtype, device=u.device)
    return u, w, chunk_decay * eye - fading, b


def _read(q_decayed: Tensor, scores: Tensor, u: Tensor, w: Tensor, states: Tensor) -> Tensor:
    """The outputs of every chunk from the state before it."""
    return q_decayed @ states + scores @ (u - w @ states)


_PARTS: dict[str, Callable[..., Any]] = {"prepare": _prepare, "solve": _solve, "read": _read}


def compile_parts() -> None:
    """Let torch.compile fuse what lies between the products: three small graphs, any shape."""
    for name, part in list(_PARTS.items()):
        _PARTS[name] = torch.compile(part, dynamic=True)


def chunked_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q, k (B, T, H, Dk), v (B, T, H, Dv), log decay g and beta (B, T, H); float32 inside.

    Normalizes q and k. Tokens with g = beta = 0 leave the state as it is, so rows padded on the
    right end in the state of their last real token. Returns (B, T, H, Dv) in float32 and the
    state (B, H, Dk, Dv).
    """
    batch, length, heads, key_dim = k.shape
    value_dim = v.shape[-1]
    pad_len = -length % CHUNK_LEN
    num_chunks = (length + pad_len) // CHUNK_LEN

    def chunks(x: Tensor) -> Tensor:  # (B, T, H, …) -> (B * H, N, C, …)
        x = (
            functional.pad(x.float(), (0, 0) * (x.ndim - 2) + (0, pad_len))
            if pad_len
            else x.float()
        )
        x = x.transpose(1, 2).contiguous()
        return x.view(batch * heads, num_chunks, CHUNK_LEN, *x.shape[3:])

    inputs = [chunks(x) for x in (q, k, v)]
    gates = [chunks(x.unsqueeze(-1)).squeeze(-1) for x in (g, beta)]
    coupling, scores, written, q_decayed, k_to_end, chunk_decay = _PARTS["prepare"](*inputs, *gates)
    inverse = _UnitLowerInverse.apply(coupling)
    u, w, m, b = _PARTS["solve"](inverse, written, k_to_end, chunk_decay)
    if state is None:
        first = u.new_zeros(batch * heads, key_dim, value_dim)
    else:
        first = state.float().reshape(batch * heads, key_dim, value_dim)
    states = _StateScan.apply(m, b, first)
    out = _PARTS["read"](q_decayed, scores, u, w, states[:-1].transpose(0, 1))
    out = out.reshape(batch, heads, -1, value_dim)[:, :, :length].transpose(1, 2)
    return out, states[-1].view(batch, heads, key_dim, value_dim)


def step_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: q, k (B, H, Dk), v (B, H, Dv), g and beta (B, H), state (B, H, Dk, Dv)."""
    q = l2_norm(q.float()) * q.shape[-1] ** -0.5
    k = l2_norm(k.float())
    state = state * g.exp()[..., None, None]
    known = (state * k.unsqueeze(-1)).sum(-2)
    change = (v.float() - known) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * change.unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(-2), state
