"""Qwen3.5's text model in plain PyTorch, with the parameter names of transformers' class.

Written out so that training needs no kernel of another package, and so that evaluation can
decode a batch of prompts of different lengths (padded on the right, each row exact).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.sprout.config import Shape
from models.sprout.delta import chunked_gated_delta, step_gated_delta


@dataclass
class Cache:
    """What decoding keeps: per layer (conv inputs, state) or (keys, values); `lengths` (B,)."""

    lengths: Tensor
    max_len: int
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Linear(nn.Linear):
    """No bias; float32 weights used in the dtype of the input (bf16 in training)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__(in_dim, out_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """Scaled by 1 + weight, as Qwen3.5 stores it."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], (1.0 + self.weight).to(x.dtype), self.eps)


def _gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)
    return (normed * functional.silu(gate.to(x.dtype))).to(gate.dtype)


def _convolve(mixed: Tensor, taps: Tensor) -> Tensor:
    """A depthwise convolution as shifted products: its backward pass is far faster so."""
    length = mixed.shape[1] - taps.shape[1] + 1
    taps = taps.to(mixed.dtype)
    out = mixed[:, :length] * taps[:, 0]
    for i in range(1, taps.shape[1]):
        out = torch.addcmul(out, mixed[:, i : i + length], taps[:, i])
    return functional.silu(out)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    dim = cos.shape[-1]
    left, right, rest = x.float().split([dim, dim, x.shape[-1] - 2 * dim], dim=-1)
    turned = [left * cos - right * sin, right * cos + left * sin, rest]
    return torch.cat(turned, dim=-1).to(x.dtype)


def _activate(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


_PARTS: dict[str, Callable[..., Tensor]] = {
    "gated_norm": _gated_norm,
    "convolve": _convolve,
    "rotate": _rotate,
    "activate": _activate,
}


def compile_parts() -> None:
    """Let torch.compile fuse what lies between the products: small graphs, any batch and length."""
    for name, part in list(_PARTS.items()):
        _PARTS[name] = torch.compile(part, dynamic=True)


class GatedNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return _PARTS["gated_norm"](x, gate, self.weight, self.eps)


class DeltaNet(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.key_heads, self.value_heads = shape.linear_num_key_heads, shape.linear_num_value_heads
        self.head_k_dim, self.head_v_dim = shape.linear_key_head_dim, shape.linear_value_head_dim
        self.key_dim = self.key_heads * self.head_k_dim
        self.value_dim = self.value_heads * self.head_v_dim
        self.history_len = shape.linear_conv_kernel_dim - 1
        mixed_dim = 2 * self.key_dim + self.value_dim
        self.conv1d = nn.Conv1d(
            mixed_dim, mixed_dim, shape.linear_conv_kernel_dim, groups=mixed_dim, bias=False
        )
        self.in_proj_qkv = Linear(shape.hidden_size, mixed_dim)
        self.in_proj_z = Linear(shape.hidden_size, self.value_dim)
        self.in_proj_b = Linear(shape.hidden_size, self.value_heads)
        self.in_proj_a = Linear(shape.hidden_size, self.value_heads)
        self.dt_bias = nn.Parameter(torch.ones(self.value_heads))
        self.A_log = nn.Parameter(torch.zeros(self.value_heads))
        self.norm = GatedNorm(self.head_v_dim, shape.rms_norm_eps)
        self.out_proj = Linear(self.value_dim, shape.hidden_size)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Over whole rows from an empty state; with a cache, also leaves the state there."""
        length = x.shape[1]
        mixed = functional.pad(self.in_proj_qkv(x), (0, 0, self.history_len, 0))
        q, k, v = self._heads(_PARTS["convolve"](mixed, self.conv1d.weight[:, 0]))
        g, beta = self._gates(x)
        if cache is not None:
            is_real = torch.arange(length, device=x.device)[None, :] < cache.lengths[:, None]
            g, beta = g * is_real[..., None], beta * is_real[..., None]
        out, state = chunked_gated_delta(q, k, v, g, beta)
        if cache is not None:
            ends = cache.lengths[:, None] + torch.arange(self.history_len, device=x.device)
            history = mixed.gather(1, ends[..., None].expand(-1, -1, mixed.shape[-1]))
            cache.layers.append((history, state))
        return self._finish(out, x)

    def step(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        history, state = cache.layers[layer]
        mixed = torch.cat([history, self.in_proj_qkv(x)], dim=1)
        q, k, v = self._heads(_convolve(mixed, self.conv1d.weight[:, 0]))
        g, beta = self._gates(x)
        out, state = step_gated_delta(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
        cache.layers[layer] = (mixed[:, 1:], state)
        return self._finish(out.unsqueeze(1), x)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = mixed.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        q, k = (x.unflatten(-1, (self.key_heads, self.head_k_dim)) for x in (q, k))
        num_repeats = self.value_heads // self.key_heads
        if num_repeats > 1:
            q, k = (x.repeat_interleave(num_repeats, dim=2) for x in (q, k))
        return q, k, v.unflatten(-1, (self.value_heads, self.head_v_dim))

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rate = functional.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return -self.A_log.exp() * rate, self.in_proj_b(x).float().sigmoid()

    def _finish(self, out: Tensor, x: Tensor) -> Tensor:
        z = self.in_proj_z(x).unflatten(-1, (self.value_heads, self.head_v_dim))
        return self.out_proj(self.norm(out, z).flatten(2))


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_dim = shape.num_attention_heads * shape.head_dim
        kv_dim = shape.num_key_value_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, 2 * query_dim)  # queries and output gates
        self.k_proj = Linear(shape.hidden_size, kv_dim)
        self.v_proj = Linear(shape.hidden_size, kv_dim)
        self.o_proj = Linear(query_dim, shape.hidden_size)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        length = x.shape[1]
        q, k, v, gate = self._project(x, torch.arange(length, device=x.device)[None])
        if cache is not None:
            pad = (0, 0, 0, cache.max_len - length)
            cache.layers.append((functional.pad(k, pad), functional.pad(v, pad)))
        # Rows are padded on the right: causality alone hides the padding from every real token.
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self._finish(out, gate)

    def step(self, x: Tensor, cache: Cache, layer: int) -> Tensor:
        keys, values = cache.layers[layer]
        q, k, v, gate = self._project(x, cache.lengths[:, None])
        rows = torch.arange(len(x), device=x.device)
        keys[rows, :, cache.lengths] = k[:, :, 0]
        values[rows, :, cache.lengths] = v[:, :, 0]
        places = torch.arange(keys.shape[2], device=x.device)
        mask = (places[None, :] <= cache.lengths[:, None])[:, None, None]
        out = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, enable_gqa=True
        )
        return self._finish(out, gate)

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        head_dim = self.shape.head_dim
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * head_dim)).chunk(2, dim=-1)
        k = self.k_proj(x).unflatten(-1, (-1, head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, head_dim))
        cos, sin = self._angles(positions)
        q = _PARTS["rotate"](self.q_norm(q).transpose(1, 2), cos, sin)
        k = _PARTS["rotate"](self.k_norm(k).transpose(1, 2), cos, sin)
        return q, k, v.transpose(1, 2), gate.flatten(2)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        dim = self.shape.rotary_dim
        steps = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
        angles = positions[:, None, :, None].float() * self.shape.rope_theta**-steps
        return angles.cos(), angles.sin()  # (1 or B, 1, T, dim / 2)

    def _finish(self, out: Tensor, gate: Tensor) -> Tensor:
        return self.o_proj(out.transpose(1, 2).flatten(2) * gate.sigmoid())


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(_PARTS["activate"](self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        if shape.is_attention(index):
            self.self_attn = Attention(shape)
        else:
            self.linear_attn = DeltaNet(shape)
        self.index, self.is_attention = index, shape.is_attention(index)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        mixer = self.self_attn if self.is_attention else self.linear_attn
        x = x + mixer(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))

    def step(self, x: Tensor, cache: Cache) -> Tensor:
        mixer = self.self_attn if self.is_attention else self.linear_attn
        x = x + mixer.step(self.input_layernorm(x), cache, self.index)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Sprout(nn.Module):
    """Tied embeddings; `dtype` is what activations are computed in, weights stay float32."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = TextModel(shape)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Hidden states (B, T, hidden) of rows padded on the right."""
        x = self.model.embed_tokens(ids).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, cache)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype)).float()

    @torch.no_grad()
    def prefill(self, ids: Tensor, lengths: Tensor, num_new: int) -> tuple[Tensor, Cache]:
        """Logits (B, vocab) after each row's last real token, and a cache with room to go on."""
        cache = Cache(lengths, ids.shape[1] + num_new)
        hidden = self(ids, cache)
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        return self.logits(last), cache

    @torch.no_grad()
    def step(self, ids: Tensor, cache: Cache) -> Tensor:
        """One more token (B,) for every row; returns logits (B, vocab), advances the cache."""
        x = self.model.embed_tokens(ids[:, None]).to(self.dtype)
        for layer in self.model.layers:
            x = layer.step(x, cache)
        cache.lengths = cache.lengths + 1
        return self.logits(self.model.norm(x)[:, 0])


def initialize(model: Sprout, seed: int) -> None:
    """Weights to start training from, the same on every machine for one seed."""
    rng = torch.Generator().manual_seed(seed)
    depth_scale = (2 * model.shape.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("embed_tokens.weight"):
                weight.copy_(torch.randn(weight.shape, generator=rng) * 0.02)
            elif name.endswith("conv1d.weight"):
                bound = weight.shape[-1] ** -0.5
                weight.copy_((torch.rand(weight.shape, generator=rng) * 2 - 1) * bound)
            elif name.endswith("A_log"):
                weight.copy_((torch.rand(weight.shape, generator=rng) * 15 + 1).log())
            elif name.endswith("dt_bias"):
                # Log-uniform rates of 0.001 to 0.1: states that last for hundreds of tokens from
                # the start. With the class default of 1 they forget within one.
                low, high = math.log(0.001), math.log(0.1)
                rate = (torch.rand(weight.shape, generator=rng) * (high - low) + low).exp()
                weight.copy_(rate + (-torch.expm1(-rate)).log())  # softplus of it is the rate
            elif weight.ndim == 2:
                std = 0.5 * weight.shape[1] ** -0.5
                if name.split(".")[-2] in ("o_proj", "out_proj", "down_proj"):
                    std *= depth_scale
                weight.copy_(torch.randn(weight.shape, generator=rng) * std)
