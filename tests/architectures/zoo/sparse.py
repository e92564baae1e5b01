"""Models that pick the rows they attend to: an indexer with a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator

from .attention import MLA, MOE
from .base import WINDOW_LEN, Architecture, Config

# The second cache of a layer holds the indexer's keys.
INDEXER: Config = {"index_head_dim": 32, "index_n_heads": 8, "index_topk": WINDOW_LEN}

UNUSED_VALUES = {
    f"{layer}.1.values": "the indexer has keys only and fills its values with zeros"
    for layer in range(4)
}


def architectures() -> Iterator[Architecture]:
    yield Architecture("deepseek_v32", {**MOE, **MLA, **INDEXER}, inert=UNUSED_VALUES)
    yield Architecture(
        "glm_moe_dsa",
        {
            **MOE,
            **MLA,
            **INDEXER,
            "moe_layer_freq": 1,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        inert=UNUSED_VALUES,
    )
    yield Architecture(
        "minimax_m3_vl",
        {
            **MOE,
            "dense_intermediate_size": 64,
            "shared_intermediate_size": 32,
            "layer_types": ["full_attention", "sparse", "sparse"],
            "num_hidden_layers": 3,
            "moe_layer_freq": [0, 1, 1],
            "index_n_heads": 2,
            "index_head_dim": 32,
            "index_block_size": 8,
            "index_topk_blocks": 3,
        },
        is_nested=True,
        notes="its indexer's KVCache has values of width zero",
    )
    yield Architecture(
        "deepseek_v41",
        {
            **MOE,
            "num_hidden_layers": 5,
            "head_dim": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "o_groups": 2,
            "o_lora_rank": 16,
            "scoring_func": "sqrtsoftplus",
            "rms_norm_eps": 1e-6,
            # Window only; rows as they are; the pooled source; its index again; its choice again.
            "compress_ratios": (0, 1, 4, 4, 4),
            "kv_source_layer_ids": (1, 2),
            "index_source_layer_ids": (1, 2, 3),
            "candidate_source_layer_id": 2,
            "candidate_topk_blocks": 3,
            "candidate_block_size": 4,
            "index_n_heads": 8,
            "index_head_dim": 32,
            "index_topk": 8,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 4,
        },
        notes=(
            "a cache class of its own: a window, and in the layers that feed the others groups "
            "of four rows pooled into one, with the rows of the group still open"
        ),
        short_leaves=frozenset({"0"}),
    )
