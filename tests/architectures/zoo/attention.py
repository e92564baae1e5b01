"""Models whose every layer attends over all rows: plain, latent (MLA), shared and looped."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from .base import Architecture, Config
from .weights import Model

MOE: Config = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

# Multi-head latent attention: the cache holds a latent row and a rotary key, not keys and values.
MLA: Config = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}

# Queries are scaled by their position, here from the 32nd token on.
POSITION_SCALED: Config = {
    "rope_theta": 10000.0,
    "rope_type": "default",
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 32,
}


def _dense() -> Iterator[Architecture]:
    yield Architecture("llama")
    yield Architecture("qwen2")
    yield Architecture("qwen3")
    yield Architecture("gemma")
    yield Architecture("gemma2")
    yield Architecture("phi3", {"partial_rotary_factor": 0.5})
    yield Architecture(
        "minicpm3",
        {
            **MLA,
            "dim_model_base": 64,
            "scale_depth": 2.0,
            "scale_emb": 2.0,
            "rope_scaling": {"original_max_position_embeddings": 2048},
        },
    )
    yield Architecture(
        "gpt2",
        {
            "n_ctx": 512,
            "n_positions": 512,
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 4,
            "layer_norm_epsilon": 1e-5,
            "num_key_value_heads": 4,
        },
        notes="learned absolute positions",
    )
    yield Architecture(
        "llama_dynamic_rope",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32},
        module="llama",
        notes="past 32 tokens the rotation of a row depends on the chunk it came in",
        chunking_error=(1.4, "dynamic NTK: rows keep the base of the length they were made at"),
    )
    yield Architecture(
        "internlm3",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 32},
        chunking_error=(2.1, "dynamic NTK, with the number of heads taken for the chunk length"),
    )


def _experts() -> Iterator[Architecture]:
    yield Architecture("mixtral", MOE)
    yield Architecture("qwen3_moe", MOE)
    yield Architecture("minimax", {**MOE, "rotary_dim": 16, "shared_intermediate_size": 0})
    yield Architecture(
        "deepseek_v2",
        {
            **MOE,
            **MLA,
            "topk_method": "greedy",
            "rope_scaling": {"factor": 2.0, "original_max_position_embeddings": 2048},
        },
    )
    yield Architecture("deepseek_v3", {**MOE, **MLA})
    yield Architecture("kimi_vl", {**MOE, **MLA}, is_nested=True)
    yield Architecture("mistral4", {**MOE, **MLA, "rope_parameters": POSITION_SCALED})
    yield Architecture("glm4_moe_lite", {**MOE, **MLA})
    yield Architecture(
        "hunyuan",
        {
            **MOE,
            "moe_topk": 2,
            "num_shared_expert": 1,
            "use_mixed_mlp_moe": True,
            "use_qk_norm": True,
            "use_cla": True,
            "cla_share_factor": 2,
            "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0},
        },
        notes="every second layer takes its keys and values from the one before it",
    )


LONGCAT: Config = {
    **MOE,
    **MLA,
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "zero_expert_num": 2,
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "num_layers": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}


def _unusual() -> Iterator[Architecture]:
    yield Architecture(
        "afm7",
        {
            "hidden_dim": 64,
            "num_layers": 4,
            "num_kv_reuse_layers": 1,
            "num_heads": 4,
            "num_kv_heads": 2,
            "hidden_dim_scale_factor": 2.0,
        },
        tweak=_fine_fake_quantization,
        notes="the last layer attends over the rows of the one before it",
    )
    yield Architecture("nanbeige", {"num_hidden_layers": 2, "num_loops": 2})
    yield Architecture(
        "nemotron-nas",
        {
            "block_configs": [
                {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}},
                {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
                {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
                {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}},
            ]
        },
        notes="four layers but three caches: where attention is left out there is none",
        inert={"1": "made for a linear layer in place of attention, never written"},
    )
    yield Architecture("longcat_flash", LONGCAT)
    yield Architecture(
        "longcat_flash_ngram",
        {**LONGCAT, "ngram_vocab_size_ratio": 4, "emb_neighbor_num": 4, "emb_split_num": 2},
        short_leaves=frozenset({"0"}),
        notes="its first cache holds token ids, not activations",
    )


def _fine_fake_quantization(model: Model) -> None:
    """A scale of one, where the model starts, would round keys and values to whole numbers."""
    for layer in model.model.layers:
        layer.self_attn.quant_key_scale = mx.array(1 / 32)
        layer.self_attn.quant_value_scale = mx.array(1 / 32)


def architectures() -> Iterator[Architecture]:
    yield from _dense()
    yield from _experts()
    yield from _unusual()
