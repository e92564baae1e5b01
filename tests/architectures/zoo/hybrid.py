"""Models that mix attention with recurrent layers or short convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mlx.core as mx
from mlx_lm.models.prism_hadamard_qwen35 import HadamardQuantizedLinear

from .attention import MLA, MOE
from .base import WINDOW_LEN, Architecture, Config
from .weights import Model
from .windowed import FULL, SLIDING

LINEAR = "linear_attention"
DELTA: Config = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.5,
}
MAMBA: Config = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_n_groups": 2,
    "mamba_proj_bias": False,
    "mamba_conv_bias": True,
}


def _mamba() -> Iterator[Architecture]:
    yield Architecture(
        "jamba",
        {
            **MOE,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "attn_layer_offset": 1,
            "attn_layer_period": 3,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 8,
            "mamba_expand": 2,
        },
    )
    yield Architecture(
        "falcon_h1",
        {**MAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 64, "mamba_rms_norm": True},
        notes="every layer runs attention and mamba side by side",
    )
    yield Architecture(
        "granitemoehybrid",
        {
            **MAMBA,
            **MOE,
            "num_hidden_layers": 3,
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 32,
            "embedding_multiplier": 1.0,
            "attention_multiplier": 0.18,
            "logits_scaling": 1.0,
            "residual_multiplier": 0.5,
        },
    )
    yield Architecture(
        "nemotron_h",
        {
            **MOE,
            "hybrid_override_pattern": ["M", "*", "-", "M", "E"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "mamba_proj_bias": False,
            "ssm_state_size": 32,
            "conv_kernel": 4,
            "n_groups": 2,
            "mlp_bias": False,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "moe_shared_expert_intermediate_size": 32,
        },
        notes="five layers but only three caches: feed-forward layers have none",
    )
    yield Architecture(
        "plamo2",
        {"hidden_size_per_head": 16, "mamba_d_state": 32, "mamba_num_heads": 4, "mamba_step": 2},
    )


def _delta() -> Iterator[Architecture]:
    yield Architecture("qwen3_next", {**MOE, **DELTA})
    yield Architecture("qwen3_5", DELTA)
    yield Architecture("qwen3_5_moe", {**DELTA, **MOE})
    yield Architecture(
        "olmo_hybrid",
        {
            **DELTA,
            "num_hidden_layers": 3,
            "layer_types": [LINEAR, LINEAR, FULL],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_allow_neg_eigval": True,
        },
    )
    kimi_delta = {
        "kda_layers": [1, 2],
        "full_attn_layers": [3],
        "num_heads": 2,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
    }
    kimi = {
        **MOE,
        **MLA,
        "num_hidden_layers": 3,
        "model_max_length": 4096,
        "num_experts_per_token": 2,
        "linear_attn_config": kimi_delta,
    }
    yield Architecture("kimi_linear", kimi)
    yield Architecture(
        "kimi_k3",
        {
            **kimi,
            "linear_attn_config": {**kimi_delta, "gate_lower_bound": -5.0},
            "attn_res_block_size": 2,
            "mla_use_output_gate": True,
            "routed_expert_hidden_size": 32,
            "latent_moe_use_norm": True,
        },
        tweak=_slow_bounded_gates,
    )
    yield Architecture(
        "bailing_moe_v3",
        {
            **MOE,
            **MLA,
            "num_hidden_layers": 3,
            "layer_group_size": 3,
            "moe_shared_expert_intermediate_size": 32,
            "num_attention_heads": 2,
        },
        tweak=_slow_bounded_gates,
    )
    yield _hadamard()


def _slow_bounded_gates(model: Model) -> None:
    """Decays of the form exp(bound * sigmoid(exp(A_log) * (a + dt_bias))) need another range."""
    for layer in model.layers:
        mixer = getattr(layer, "self_attn", None) or layer.attention
        if "A_log" in mixer:
            mixer.A_log = mx.zeros_like(mixer.A_log)
            mixer.dt_bias = mixer.dt_bias - 4.0


def _hadamard() -> Architecture:
    packed = [("model.layers.0.mlp.down_proj", 512), ("model.layers.3.self_attn.q_proj", 0)]
    manifest = [
        {"path": path, "block": block, "embedding": False, "dtype": "float16"}
        for path, block in packed
    ]
    return Architecture(
        "prism_hadamard_qwen35",
        {
            **DELTA,
            "hidden_size": 128,
            "intermediate_size": 512,
            "schema_version": 1,
            "tensor_namespace": "mlx-lm-text",
            "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
            "modules": manifest,
        },
        is_nested=True,
        tweak=_fill_packs,
        notes="two linear layers hold 2-bit weights, one of them behind a Hadamard rotation",
    )


def _fill_packs(model: Model) -> None:
    for pack in model.modules():
        if isinstance(pack, HadamardQuantizedLinear):
            key = mx.random.key(pack.weight.size)
            pack.weight = mx.random.randint(0, 2**32, pack.weight.shape, mx.uint32, key=key)
            # Centred: two bits give 0..3, so -1.5, -0.5, 0.5 and 1.5 times the scale.
            scale = 1 / math.sqrt(16 * pack.weight.shape[-1])
            pack.scales = mx.full(pack.scales.shape, scale, mx.float16)
            pack.biases = -1.5 * pack.scales


def _linear() -> Iterator[Architecture]:
    bailing = {
        **MOE,
        "num_hidden_layers": 4,
        "layer_group_size": 4,
        "group_norm_size": 2,
    }
    yield Architecture("bailing_hybrid", {**bailing, **MLA})
    yield Architecture("bailing_moe_linear", bailing)
    yield Architecture(
        "recurrent_gemma",
        {
            "num_hidden_layers": 3,
            "block_types": ["recurrent", "recurrent", "attention"],
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "attention_window_size": WINDOW_LEN,
        },
    )


def _convolution() -> Iterator[Architecture]:
    lfm2 = {
        **MOE,
        "layer_types": ["conv", FULL, "conv", FULL],
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "use_expert_bias": True,
        "num_dense_layers": 1,
    }
    convolutions = frozenset({"0", "2"})
    yield Architecture("lfm2", lfm2, short_leaves=convolutions)
    yield Architecture("lfm2-vl", lfm2, is_nested=True, short_leaves=convolutions)
    yield Architecture("lfm2_moe", lfm2, short_leaves=convolutions)
    yield Architecture(
        "gear",
        {"layer_types": ["conv_mixer", SLIDING, FULL, "conv_mixer"]},
        short_leaves=frozenset({"0", "3"}),
    )
    yield Architecture(
        "baichuan_m1",
        {"sliding_window_layers": [0, 2], "conv_window": 2},
        tweak=_attend_to_self,
        short_leaves=frozenset({"0.0", "1.0", "2.0", "3.0"}),
        notes="a convolution over two keys and values before each layer's rows",
    )


def _attend_to_self(model: Model) -> None:
    """The convolution's state reaches the newest row only, so let queries look for that row."""
    for layer in model.layers:
        attention = layer.self_attn
        kv_size = attention.num_kv_heads * attention.head_dim
        query_size = attention.num_heads * attention.head_dim
        _, keys, values = mx.split(attention.W_pack.weight, [query_size, query_size + kv_size])
        heads = keys.reshape(attention.num_kv_heads, attention.head_dim, -1)
        groups = attention.num_heads // attention.num_kv_heads
        queries = mx.repeat(heads, groups, axis=0).reshape(query_size, -1)
        attention.W_pack.weight = mx.concatenate([queries, keys, values])


def architectures() -> Iterator[Architecture]:
    yield from _mamba()
    yield from _delta()
    yield from _linear()
    yield from _convolution()
