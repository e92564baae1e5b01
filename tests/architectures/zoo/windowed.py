"""Models that mix full attention with a sliding window or with chunks."""

from __future__ import annotations

from collections.abc import Iterator

from .attention import MOE, POSITION_SCALED
from .base import WINDOW_LEN, Architecture, Config

SLIDING, FULL = "sliding_attention", "full_attention"
MIXED = [SLIDING, FULL, SLIDING, FULL]
ROPE_BY_TYPE: Config = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "default", "rope_theta": 100000.0},
}


def _gemma() -> Iterator[Architecture]:
    gemma3 = {"sliding_window_pattern": 2, "query_pre_attn_scalar": 32}
    yield Architecture("gemma3_text", gemma3)
    yield Architecture("gemma3", gemma3, is_nested=True)
    yield Architecture(
        "gemma3n",
        {
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
            "vocab_size_per_layer_input": 128,
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        },
        is_nested=True,
        notes="the last two layers attend over the rows of earlier layers",
    )
    gemma4 = {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
        "global_head_dim": 64,
        "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    }
    yield Architecture(
        "gemma4_text", gemma4, notes="shared rows, per-layer embeddings, keys as values"
    )
    experts = {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    }
    yield Architecture("gemma4", {**gemma4, **experts}, is_nested=True)


def _alternating() -> Iterator[Architecture]:
    yield Architecture("llama_sliding", {"layer_types": MIXED}, module="llama")
    yield Architecture("olmo3", {"layer_types": MIXED})
    yield Architecture("exaone4", {"sliding_window_pattern": "LLG"})
    yield Architecture("cohere2", {"head_dim": 16, "logit_scale": 1.0, "sliding_window_pattern": 2})
    yield Architecture(
        "plamo3",
        {"sliding_window_pattern": 2},
        chunking_error=(1.3, "masks a window of one row more than its RotatingKVCache keeps"),
    )
    yield Architecture(
        "ministral3",
        {"layer_types": MIXED, "rope_parameters": POSITION_SCALED},
    )
    yield Architecture(
        "mistral3",
        {"model_type": "ministral3", "layer_types": MIXED, "rope_parameters": POSITION_SCALED},
        is_nested=True,
        notes="has no make_cache: its sliding layers read the end of a KVCache through a mask",
        short_leaves=frozenset({"0", "2"}),
    )
    yield Architecture("muse_glimmer", {"layer_types": MIXED, "output_multiplier": 1.0})
    yield Architecture("spark2_5", {"layer_types": MIXED, "rope_parameters": ROPE_BY_TYPE})
    yield Architecture(
        "iquestloopcoder",
        {"num_hidden_layers": 2, "loop_window_size": WINDOW_LEN},
        notes="two loops over the layers: the second has windows and reads the first one's rows",
    )


def _experts() -> Iterator[Architecture]:
    yield Architecture("gpt_oss", {**MOE, "layer_types": MIXED})
    yield Architecture("afmoe", {**MOE, "layer_types": MIXED, "num_dense_layers": 1})
    yield Architecture(
        "exaone_moe", {**MOE, "layer_types": MIXED, "is_moe_layer": [False, True, True, True]}
    )
    yield Architecture("laguna", {**MOE, "layer_types": MIXED})
    yield Architecture("mellum", {**MOE, "layer_types": MIXED, "rope_parameters": ROPE_BY_TYPE})
    yield Architecture(
        "mimo_v2_flash",
        {
            **MOE,
            "hybrid_layer_pattern": [1, 0, 1, 0],
            "moe_layer_freq": [0, 1, 1, 1],
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
            "sliding_window_size": WINDOW_LEN,
            "layernorm_epsilon": 1e-5,
            "swa_rope_theta": 10000.0,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "v_head_dim": 16,
            "swa_head_dim": 32,
            "swa_v_head_dim": 16,
            "partial_rotary_factor": 0.5,
        },
        notes="keys and values of different widths, sinks in the window layers",
    )
    yield Architecture(
        "step3p5",
        {
            "layer_types": MIXED,
            "num_attention_groups": 2,
            "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3},
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "moe_intermediate_size": 32,
            "share_expert_dim": 32,
        },
    )
    yield Architecture(
        "llama4",
        {
            **MOE,
            "num_experts_per_tok": 1,
            "attention_chunk_size": WINDOW_LEN,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 96,
            "use_qk_norm": True,
            "attn_temperature_tuning": 4,
            "floor_scale": 32,
        },
        is_nested=True,
        notes="three layers attend within chunks, the fourth everywhere and without positions",
    )


def architectures() -> Iterator[Architecture]:
    yield from _gemma()
    yield from _alternating()
    yield from _experts()
