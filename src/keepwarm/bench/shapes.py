"""Models in the shape of real ones, with random weights: only sizes matter to the clock. On the
thread that will own the arrays."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

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
QWEN35_35B_A3B = {
    **QWEN35_9B, "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
NEMOTRON_H_30B_A3B = {
    "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856,
    "hybrid_override_pattern": list("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"),
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4,
    "n_groups": 8, "mamba_proj_bias": False, "attention_bias": False, "mlp_bias": False,
    "use_bias": False, "use_conv_bias": True, "layer_norm_epsilon": 1e-5,
    "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "vocab_size": 131072, "max_position_embeddings": 262144,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
    "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 150000, "vocab_size": 201088,
}  # fmt: skip
MAMBA2_13B = {
    "model_type": "mamba2", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 4096,
    "num_heads": 64, "head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4,
    "use_bias": False, "use_conv_bias": True, "tie_word_embeddings": True,
    "time_step_limit": (0.0, 100.0), "time_step_rank": "auto", "layer_norm_epsilon": 1e-5,
    "vocab_size": 50288, "max_position_embeddings": 262144,
}  # fmt: skip

# For tests: as small as they can be.
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 1024,
}  # fmt: skip
_DELTA_SMALL = {
    "num_hidden_layers": 4, "linear_num_value_heads": 2, "linear_num_key_heads": 1,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
# A snapshot of it weighs as much as 3,100 rows, as that of Qwen3.5-35B-A3B: on a CPU, where all is
# in float32, 794 KB and 256 bytes.
_DELTA_DEAR = {
    "num_hidden_layers": 4, "linear_num_value_heads": 15, "linear_num_key_heads": 5,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
_MAMBA_SMALL = {
    "hybrid_override_pattern": list("M-*-"), "mamba_num_heads": 2, "mamba_head_dim": 32,
    "ssm_state_size": 32, "n_groups": 1, "num_hidden_layers": 4,
}  # fmt: skip
_EXPERTS_SMALL = {"num_local_experts": 2, "num_experts_per_tok": 1}
_MAMBA2_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "num_heads": 2,
    "head_dim": 32, "state_size": 32, "vocab_size": 1024,
}  # fmt: skip
# For two cores: like the built-in model, some 8 million weights.
_MINI = {
    "hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 672,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
_DELTA_MINI = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
_MAMBA_MINI = {
    "hybrid_override_pattern": list("M-M-M*-M"), "mamba_num_heads": 8, "mamba_head_dim": 64,
    "ssm_state_size": 64, "n_groups": 2, "num_hidden_layers": 8,
}  # fmt: skip
_EXPERTS_MINI = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 256}
_MAMBA2_MINI = {
    "hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512, "num_heads": 8,
    "head_dim": 64, "state_size": 64, "vocab_size": 4096,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-small": {**QWEN3_06B, **_SMALL},
    "qwen3_5-small": {**QWEN35_9B, **_SMALL, **_DELTA_SMALL},
    "qwen3_5-dear": {**QWEN35_9B, **_SMALL, **_DELTA_DEAR},
    "nemotron_h-small": {**NEMOTRON_H_30B_A3B, **_SMALL, **_MAMBA_SMALL},
    "gpt_oss-small": {**GPT_OSS_20B, **_SMALL, **_EXPERTS_SMALL},
    "mamba2-small": {**MAMBA2_13B, **_MAMBA2_SMALL},
    "qwen3-mini": {**QWEN3_06B, **_MINI},
    "qwen3_5-mini": {**QWEN35_9B, **_MINI, **_DELTA_MINI},
    "nemotron_h-mini": {**NEMOTRON_H_30B_A3B, **_MINI, **_MAMBA_MINI},
    "gpt_oss-mini": {**GPT_OSS_20B, **_MINI, **_EXPERTS_MINI},
    "mamba2-mini": {**MAMBA2_13B, **_MAMBA2_MINI},
    "qwen3-0.6b": QWEN3_06B,
    "qwen3_5-9b": QWEN35_9B,
    "qwen3_5-35b-a3b": QWEN35_35B_A3B,
    "nemotron_h-30b-a3b": NEMOTRON_H_30B_A3B,
    "gpt_oss-20b": GPT_OSS_20B,
    "mamba2-1.3b": MAMBA2_13B,
}


def build(name: str) -> Any:
    """In bfloat16, as such models are saved."""
    config = SHAPES[name]
    kind = config["model_type"]
    if kind.endswith("_text"):  # the language part of a model that also sees
        config = {"model_type": kind.removesuffix("_text"), "text_config": config}
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    flat: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    for _, array in flat:
        mx.eval(array)  # one by one: they begin as float32, and all together would not fit
    mx.clear_cache()
    return model
