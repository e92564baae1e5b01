"""Models in the shape of real ones, with random weights: only sizes matter to the clock. On the
thread that will own the arrays."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3, qwen3_5

QWEN3_06B = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
    "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "rms_norm_eps": 1e-6, "vocab_size": 151936,
    "max_position_embeddings": 131072, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
QWEN35_9B = {
    "model_type": "qwen3_5_text", "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 12288, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 256, "linear_num_value_heads": 32, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4, "rms_norm_eps": 1e-6, "vocab_size": 248320,
    "max_position_embeddings": 262144, "rope_theta": 1e7, "tie_word_embeddings": False,
}  # fmt: skip
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 1024,
}  # fmt: skip
_HYBRID = {
    "num_hidden_layers": 4, "linear_num_value_heads": 2, "linear_num_key_heads": 1,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
_SPROUT = {
    "hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 672,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
    "linear_num_value_heads": 4, "linear_num_key_heads": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": QWEN3_06B,
    "qwen3-small": {**QWEN3_06B, **_SMALL},
    "qwen3_5-small": {**QWEN35_9B, **_SMALL, **_HYBRID},
    "qwen3_5-8m": {**QWEN35_9B, **_SPROUT},
    "qwen3_5-9b": QWEN35_9B,
}


def build(name: str) -> Any:
    """In bfloat16, as such models are saved."""
    shape = SHAPES[name]
    if shape["model_type"] == "qwen3_5_text":
        config = {"model_type": "qwen3_5", "text_config": shape}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    else:
        model = qwen3.Model(qwen3.ModelArgs.from_dict(shape))
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model
