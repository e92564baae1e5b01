"""The shape of sprout, in one place: what training builds and what mlx-lm reads back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PACKAGE_LIMIT_BYTES = 16_000_000  # the whole model folder in the wheel, tokenizer included


@dataclass(frozen=True)
class Shape:
    """Field names are those of Qwen3.5's text config, so that no mapping can go wrong."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 672
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4  # every fourth layer attends, the others are DeltaNet
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    rope_theta: float = 100_000.0
    partial_rotary_factor: float = 0.25  # most of a head has no position: it looks up by content

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0


SPROUT = Shape()
TINY = Shape(  # for smoke runs without an accelerator: same kinds of layers, same vocabulary
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
)


def text_config(shape: Shape) -> dict[str, Any]:
    """The `text_config` of config.json: read alike by mlx-lm and by transformers."""
    fields = asdict(shape)
    rope_theta = fields.pop("rope_theta")
    partial_rotary_factor = fields.pop("partial_rotary_factor")
    kinds = [
        "full_attention" if shape.is_attention(i) else "linear_attention"
        for i in range(shape.num_hidden_layers)
    ]
    return {
        "model_type": "qwen3_5_text",
        **fields,
        "layer_types": kinds,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": rope_theta,
            "partial_rotary_factor": partial_rotary_factor,
        },
    }


def num_parameters(shape: Shape) -> int:
    """How many numbers the weights hold; the embedding counts once, for it is tied."""
    hidden = shape.hidden_size
    key_dim = shape.linear_num_key_heads * shape.linear_key_head_dim
    num_value_heads = shape.linear_num_value_heads
    value_dim = num_value_heads * shape.linear_value_head_dim
    mixed_dim = 2 * key_dim + value_dim
    delta = hidden * (mixed_dim + 2 * value_dim + 2 * num_value_heads)
    delta += (
        mixed_dim * shape.linear_conv_kernel_dim + 2 * num_value_heads + shape.linear_value_head_dim
    )
    query_dim = shape.num_attention_heads * shape.head_dim
    kv_dim = shape.num_key_value_heads * shape.head_dim
    attention = hidden * (3 * query_dim + 2 * kv_dim) + 2 * shape.head_dim
    shared = 3 * hidden * shape.intermediate_size + 2 * hidden
    num_attention = sum(shape.is_attention(i) for i in range(shape.num_hidden_layers))
    num_delta = shape.num_hidden_layers - num_attention
    layers = num_delta * delta + num_attention * attention + shape.num_hidden_layers * shared
    return shape.vocab_size * hidden + layers + hidden
