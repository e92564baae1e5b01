"""Weights for small models, scaled so that every layer's state reaches the logits.

mlx-lm's own initial values leave recurrences that forget within a few tokens, gates at zero and
token shifts that shift nothing; on such a model a corrupted cache would go unseen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

Model = Any  # an nn.Module; mlx gives types neither to it nor to what it holds
Draw = Callable[[tuple[int, ...], mx.array], mx.array]


def _normal(mean: float, std: float) -> Draw:
    return lambda shape, key: mean + std * mx.random.normal(shape, key=key)


def _linear(gain: float) -> Draw:
    return lambda shape, key: gain * mx.random.normal(shape, key=key) / math.sqrt(shape[-1])


def _uniform(low: float, high: float) -> Draw:
    return lambda shape, key: mx.random.uniform(low, high, shape, key=key)


# By the end of the parameter's path. The decays are slow: what was read 64 tokens ago still shows.
SPECIAL: dict[str, Draw] = {
    "A_log": lambda shape, key: mx.log(mx.random.uniform(0.01, 0.2, shape, key=key)),
    "dt_bias": _normal(-2.0, 0.5),
    "dt_proj.bias": _normal(-2.0, 0.5),  # mamba, jamba
    "recurrent_param": _normal(-6.0, 0.5),  # recurrent_gemma
    "w_lora.lora.2.bias": _normal(-5.0, 0.5),  # rwkv7
    "g_norm.weight": _normal(1.0, 0.1),  # rwkv7 starts from zeros
    "c_attn.weight": _linear(2.0),  # gpt2: with 1.0 one token wins whatever the prefix
    "conv_k": _normal(1.0, 0.2),  # baichuan_m1
    "conv_v": _normal(1.0, 0.2),
    **{f".x_{name}": _uniform(0.2, 0.8) for name in "rwkvag"},  # rwkv7's token shift
}


def randomize(model: Model, seed: int) -> None:
    """Replace every floating weight, each from ``seed`` and its own path alone."""
    drawn = []
    parameters: Any = tree_flatten(model.parameters())
    for path, value in parameters:
        key = mx.random.key(zlib.crc32(f"{seed}:{path}".encode()))
        drawn.append((path, _draw(path, value, key)))
    model.update(tree_unflatten(drawn))


def _draw(path: str, value: mx.array, key: mx.array) -> mx.array:
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    for suffix, draw in SPECIAL.items():
        if path.endswith(suffix):
            return draw(value.shape, key)
    if value.ndim >= 2:
        # The last axis is the fan-in of linear layers and experts, and makes embeddings small
        # beside what the layers add, so that the logits do not just echo the last token.
        return _linear(1.0)(value.shape, key)
    # Norms, sinks and scales stay near what the model starts from; biases near zero, since mlx
    # starts them from its global random state.
    start = mx.zeros_like(value) if path.endswith("bias") else value
    return start + 0.1 * mx.random.normal(value.shape, key=key)
