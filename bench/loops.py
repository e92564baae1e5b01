"""How fast models are read that mlx-lm loops over token by token where there is no Metal.

    python -m bench.loops [--tokens 512] [--repeats 3] [--clock wall|cpu] [names ...]

Each architecture in a middle size (hidden 512, about four layers) reads one prompt with mlx-lm's
own functions and with those of `keepwarm.model.speedups`, turn about, each as it runs by default.
Both use the same BLAS (say OPENBLAS_NUM_THREADS=1 where others use the cores: its threads wait for
one another). The difference is the largest of any logit, over their standard deviation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from rich.console import Console
from rich.progress import track
from rich.table import Table

from keepwarm.model import speedups
from tests.architectures.zoo import ARCHITECTURES, VOCAB_SIZE, Architecture

SIZES: Mapping[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 2048,
}
MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
DELTA = {
    "linear_num_value_heads": 8,
    "linear_num_key_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
KIMI_DELTA = {
    "kda_layers": [1, 2],
    "full_attn_layers": [3],
    "num_heads": 8,
    "head_dim": 64,
    "short_conv_kernel_size": 4,
}
LOW_RANKS = {f"{name}_low_rank_dim": 64 for name in ("a", "v", "gate", "decay")}

# What is computed, and what of the zoo's small config is larger here.
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mamba": ("selective scan", {"num_hidden_layers": 4, "state_size": 16}),
    "falcon_mamba": ("selective scan", {"num_hidden_layers": 4, "state_size": 16}),
    "jamba": ("selective scan", {"num_hidden_layers": 4, "mamba_d_state": 16}),
    "mamba2": (
        "mamba 2",
        {"num_hidden_layers": 4, "num_heads": 16, "head_dim": 64, "state_size": 128, "n_groups": 1},
    ),
    "falcon_h1": ("mamba 2", {**MAMBA, "num_hidden_layers": 4, "mamba_d_ssm": 1024}),
    "granitemoehybrid": ("mamba 2", {**MAMBA, "shared_intermediate_size": 512}),
    "nemotron_h": ("mamba 2", {"mamba_num_heads": 16, "mamba_head_dim": 64, "ssm_state_size": 128}),
    "plamo2": (
        "mamba 2",
        {"hidden_size_per_head": 64, "mamba_num_heads": 16, "mamba_d_state": 64},
    ),
    "rwkv7": ("RWKV-7", {**LOW_RANKS, "num_hidden_layers": 4}),
    "recurrent_gemma": ("RG-LRU", {"attention_window_size": 2048}),
    "bailing_moe_linear": ("lightning attention", {}),
    "bailing_hybrid": ("lightning attention", {}),
    "qwen3_5": ("gated delta rule", DELTA),
    "qwen3_next": ("gated delta rule", DELTA),
    "olmo_hybrid": ("gated delta rule", {**DELTA, "linear_num_key_heads": 8}),
    "kimi_linear": ("gated delta rule", {"linear_attn_config": KIMI_DELTA}),
    "lfm2": ("convolution", {"block_dim": 512}),
    "gear": ("convolution", {}),
    "dbrx": ("experts", {}),
}
DBRX = Architecture(
    "dbrx",
    {
        "d_model": 512,
        "n_layers": 4,
        "n_heads": 8,
        "ffn_config": {"ffn_hidden_size": 512, "moe_num_experts": 8, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 4, "clip_qkv": 8, "rope_theta": 10000.0},
    },
)
Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": perf_counter, "cpu": process_time}


@dataclass(frozen=True)
class Result:
    name: str
    computes: str
    theirs_s: float
    ours_s: float
    difference: float


def build(name: str) -> Any:
    if name == DBRX.name:
        return DBRX.build()
    small = ARCHITECTURES[name]
    return replace(small, config={**small.config, **SIZES, **CONFIGS[name][1]}).build()


def read(model: Any, tokens: mx.array, clock: Clock) -> tuple[float, mx.array]:
    """Seconds for one prompt from nothing, and its logits."""
    caches = make_prompt_cache(model)
    began = clock()
    logits = model(tokens, cache=caches)
    mx.eval(logits, [cache.state for cache in caches])
    return clock() - began, logits


def read_theirs(model: Any, tokens: mx.array, clock: Clock) -> tuple[float, mx.array]:
    with speedups.mlx_lms_own():
        mx.enable_compile()
        return read(model, tokens, clock)


def read_ours(model: Any, tokens: mx.array, clock: Clock) -> tuple[float, mx.array]:
    speedups.install("keepwarm")
    return read(model, tokens, clock)


def measure(name: str, num_tokens: int, repeats: int, clock: Clock) -> Result:
    model = build(name)
    tokens = mx.random.randint(0, VOCAB_SIZE, (1, num_tokens), key=mx.random.key(0))
    sides = (read_theirs, read_ours)
    (_, theirs), (_, ours) = (side(model, tokens, clock) for side in sides)  # and warms up
    difference = mx.abs(ours - theirs).max() / mx.std(theirs)
    times = [[side(model, tokens, clock)[0] for side in sides] for _ in range(repeats)]
    theirs_s, ours_s = (min(column) for column in zip(*times))
    return Result(name, CONFIGS[name][0], theirs_s, ours_s, float(difference.item()))


def show(results: list[Result], num_tokens: int, console: Console) -> None:
    table = Table(title=f"{num_tokens} tokens, {mx.default_device()}, float32")
    for column in ("model", "computes"):
        table.add_column(column)
    for column in ("mlx-lm tok/s", "keepwarm tok/s", "ratio", "difference"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result.name,
            result.computes,
            f"{num_tokens / result.theirs_s:,.0f}",
            f"{num_tokens / result.ours_s:,.0f}",
            f"{result.theirs_s / result.ours_s:.1f}",
            f"{result.difference:.0e}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(CONFIGS)}")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of this process")
    options = parser.parse_args()
    if unknown := set(options.names) - set(CONFIGS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    errors = Console(stderr=True)
    names = options.names or list(CONFIGS)
    clock = CLOCKS[options.clock]
    results = [
        measure(name, options.tokens, options.repeats, clock)
        for name in track(names, "reading", console=errors)
    ]
    show(results, options.tokens, Console(width=100))


if __name__ == "__main__":
    main()
