"""Models without attention: every layer holds one state of fixed size."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Architecture, Config


def architectures() -> Iterator[Architecture]:
    mamba: Config = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": "auto",
    }
    yield Architecture("mamba", mamba)
    yield Architecture("falcon_mamba", {**mamba, "model_type": "falcon_mamba"}, module="mamba")
    yield Architecture(
        "mamba2",
        {
            **mamba,
            "num_heads": 4,
            "head_dim": 16,
            "state_size": 32,
            "n_groups": 2,
            "layer_norm_epsilon": 1e-5,
            "time_step_limit": (0.0, 100.0),
        },
    )
    yield Architecture(
        "rwkv7",
        {
            "num_hidden_layers": 2,
            "a_low_rank_dim": 8,
            "v_low_rank_dim": 8,
            "gate_low_rank_dim": 8,
            "decay_low_rank_dim": 8,
        },
    )
