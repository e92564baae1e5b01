"""What an entry of the zoo is, and how it becomes a small model of an mlx-lm type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.models.switch_layers import SwitchLinear

from .weights import Model, randomize

VOCAB_SIZE = 128
WINDOW_LEN = 16  # sliding windows, chunks and sparse budgets: full after a few tokens

Config = Mapping[str, Any]

# Keys most ModelArgs share; from_dict drops those a type does not know.
COMMON: Config = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "sliding_window": WINDOW_LEN,
    "attention_bias": False,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Architecture:
    """One small model. ``build`` makes it; the fields after ``notes`` say what it does not do.

    Cache arrays and leaves are named by path: ``"0.1"`` is a leaf, ``"0.1.values"`` an array of it.
    """

    name: str
    config: Config = field(default_factory=dict)
    module: str | None = None  # of mlx_lm.models, where it is not the name
    is_nested: bool = False  # the language model's settings sit under "text_config"
    tweak: Callable[[Model], None] | None = None  # of the weights, once they are drawn
    notes: str = ""
    # Leaves or arrays that cannot reach the logits, with the reason.
    inert: Mapping[str, str] = field(default_factory=dict)
    # Leaves that see a few tokens back only, though their class does not say so.
    short_leaves: frozenset[str] = frozenset()
    # Where mlx-lm's chunked prefill departs from its one-shot forward: largest difference of a
    # logit over the logits' standard deviation, and the reason.
    chunking_error: tuple[float, str] | None = None

    @property
    def module_name(self) -> str:
        """The module of mlx_lm.models that defines the type."""
        return self.module or self.name

    def build(self, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Model:
        """A model whose weights depend on ``seed`` alone, evaluated and in eval mode."""
        model = self.skeleton()
        randomize(model, seed)
        if self.tweak is not None:
            self.tweak(model)
        _cast(model, dtype)
        if dtype != mx.float32 and mx.default_device() == mx.cpu:
            _widen_experts(model)
        model.eval()
        mx.eval(model.parameters())
        return model

    def skeleton(self) -> Model:
        """The module tree with mlx-lm's own initial weights, nothing evaluated."""
        module = import_module(f"mlx_lm.models.{self.module_name}")
        settings = {**COMMON, "model_type": self.module_name, **self.config}
        if self.is_nested:
            settings = {**settings, "text_config": dict(settings)}
        return module.Model(module.ModelArgs.from_dict(settings))


def _cast(model: Model, dtype: mx.Dtype) -> None:
    """As mlx-lm's converter does: floats to ``dtype``, save what the model wants kept."""
    can_cast = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, value: mx.array) -> mx.array:
        if can_cast(path) and mx.issubdtype(value.dtype, mx.floating):
            return value.astype(dtype)
        return value

    model.update(tree_map_with_path(cast, model.parameters()))


class _WideSwitchLinear(SwitchLinear):  # type: ignore[misc]
    """mlx's CPU backend gathers experts in float32 only: compute there, then round back."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        out = mx.gather_mm(
            x.astype(mx.float32),
            self.weight.astype(mx.float32).swapaxes(-1, -2),
            rhs_indices=indices,
            sorted_indices=sorted_indices,
        )
        if "bias" in self:
            out = out + mx.expand_dims(self.bias[indices], -2)
        return out.astype(x.dtype)


def _widen_experts(model: Model) -> None:
    for module in model.modules():
        if type(module) is SwitchLinear:
            module.__class__ = _WideSwitchLinear
