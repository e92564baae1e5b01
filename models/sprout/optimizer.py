"""Muon for the matrices between layers, AdamW for the rest, behind one `step`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

MUON_LR, ADAM_LR, DECAY = 0.02, 3e-3, 0.1


@torch.no_grad()
def orthogonalize(g: Tensor) -> Tensor:
    """A batch of matrices (n, rows, cols) with all singular values near 1 (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16() if g.is_cuda else g.float()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).to(g.dtype)


class Muon:
    """Momentum whose direction is made orthogonal; matrices of one shape are done together."""

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95) -> None:
        self.groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for param in params:
            self.groups[param.shape].append(param)
        self.momentum = momentum
        self.buffers = {
            shape: torch.zeros((len(group), *shape), device=group[0].device)
            for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, lr: float, decay: float) -> None:
        for shape, group in self.groups.items():
            grads = torch.stack([_grad(param) for param in group])
            buffer = self.buffers[shape]
            buffer.lerp_(grads, 1 - self.momentum)
            update = orthogonalize(grads.lerp(buffer, self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_mul_(group, 1 - lr * decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-lr * scale)


def _grad(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def is_matrix(name: str, param: Tensor) -> bool:
    """Whether Muon moves it: not the embedding, nor the few rows that make the gates."""
    is_gate = name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
    return param.ndim == 2 and "embed_tokens" not in name and not is_gate


class Optimizer:
    """`kind` is "muon" (matrices by Muon, the rest by AdamW) or "adamw" (everything)."""

    def __init__(self, model: nn.Module, kind: str, lr_scale: float = 1.0) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if is_matrix(n, p)]
        others = [(n, p) for n, p in named if not is_matrix(n, p)]
        # Decay pulls gates, norms and rates of forgetting to values that mean something: none there.
        decayed = [p for _, p in others if p.ndim == 2]
        free = [p for _, p in others if p.ndim != 2]
        is_muon = kind == "muon"
        self.muon = Muon(matrices) if is_muon else None
        self.lr_scale = lr_scale
        self.adam = torch.optim.AdamW(
            [
                {"params": decayed if is_muon else decayed + matrices, "weight_decay": DECAY},
                {"params": free, "weight_decay": 0.0},
            ],
            lr=ADAM_LR,
            betas=(0.9, 0.95),
            eps=1e-10,
            foreach=True,
        )
        self.params = [p for _, p in named]

    def step(self, rate: float) -> Tensor:
        """Clip, step and clear, at `rate` of the full learning rate; returns the gradient's norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
        for group in self.adam.param_groups:
            group["lr"] = ADAM_LR * self.lr_scale * rate
        self.adam.step()
        if self.muon is not None:
            self.muon.step(MUON_LR * self.lr_scale * rate, DECAY)
        for param in self.params:
            param.grad = None
        return norm

    def state(self) -> dict[str, Any]:
        muon = {} if self.muon is None else {tuple(k): v for k, v in self.muon.buffers.items()}
        return {"adam": self.adam.state_dict(), "muon": muon}

    def restore(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        if self.muon is not None:
            for shape, buffer in self.muon.buffers.items():
                buffer.copy_(state["muon"][tuple(shape)])
