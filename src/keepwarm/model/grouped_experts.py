"""Experts that each read all of their tokens at once.

mlx-lm's dbrx holds its experts as separate layers and calls them token by token. A pure function, but
for the weights it reads; it waits for the router, as the original does.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def dbrx_moe(self: Any, x: mx.array) -> mx.array:
    """Stands in for dbrx's `SparseMoeBlock.__call__`."""
    num_chosen = self.num_experts_per_tok
    tokens = x.reshape(-1, x.shape[-1])
    gates = mx.softmax(self.router(tokens).astype(mx.float32), axis=-1)
    chosen = mx.argpartition(-gates, kth=num_chosen - 1, axis=-1)[:, :num_chosen]
    scores = mx.take_along_axis(gates, chosen, axis=-1)
    scores = scores / mx.linalg.norm(scores, ord=1, axis=-1, keepdims=True)
    outputs = call_experts(self.experts, tokens, np.array(chosen))
    y = (outputs * scores.astype(x.dtype)[..., None]).sum(axis=1)
    return y.reshape(x.shape)


def call_experts(experts: list[Any], tokens: mx.array, chosen: np.ndarray) -> mx.array:
    """What the chosen experts make of each token: (N, k, D) of tokens (N, D), chosen (N, k)."""
    order = np.argsort(chosen, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(chosen.reshape(-1), minlength=len(experts))).tolist()
    sorted_tokens = tokens[mx.array(order // chosen.shape[1])]
    outputs = [
        expert(sorted_tokens[start:end])
        for expert, start, end in zip(experts, [0, *ends[:-1]], ends)
        if start < end
    ]
    places = mx.array(np.argsort(order))
    return mx.concatenate(outputs)[places].reshape(*chosen.shape, -1)
