"""The gated delta rule beside mlx-lm's own: one layer, and a whole model's prefill and decode.

    python -m bench.delta [--shape qwen3_5-9b|qwen3_5-mini|qwen3_5-small] [--tokens 2048] [--rounds 5]

Both sides have the same weights (float32 on a CPU), in one process and in turn; chunks of 2,048 tokens, no cache of
prefixes. mlx-lm's side walks over the tokens in Python off Metal, so it is measured once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.models import gated_delta as released
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.bench.shapes import SHAPES, build
from keepwarm.model import speedups
from keepwarm.model.loader import prepared

STEP = 2048


def timed(act: Callable[[], Any]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def layer_inputs(length: int, num_heads: int, num_key_heads: int, dim: int) -> list[mx.array]:
    def normal(*shape: int) -> mx.array:
        return mx.random.normal(shape)

    q, k = normal(1, length, num_key_heads, dim) / dim, normal(1, length, num_key_heads, dim)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    v = normal(1, length, num_heads, dim)
    g = mx.exp(-mx.exp(normal(1, length, num_heads) - 3))
    beta = mx.sigmoid(normal(1, length, num_heads))
    made = [q, k, v, g, beta, normal(1, num_heads, dim, dim)]
    mx.eval(made)
    return made


def prefill(model: Any, num_tokens: int) -> float:
    caches = make_prompt_cache(model)

    def read() -> None:
        for start in range(0, num_tokens, STEP):
            length = min(STEP, num_tokens - start)
            model(mx.arange(length)[None] % 1000, cache=caches)
            mx.eval([cache.state for cache in caches])

    return num_tokens / timed(read)


def decode_ms(model: Any, num_steps: int = 20) -> float:
    caches = make_prompt_cache(model)
    mx.eval(model(mx.arange(64)[None], cache=caches))
    times = [timed(lambda: mx.eval(model(mx.array([[5]]), cache=caches))) for _ in range(num_steps)]
    return 1e3 * sorted(times)[num_steps // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--shape", choices=[s for s in SHAPES if "3_5" in s], default="qwen3_5-mini"
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{mx.default_device()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}, {args.shape}")
    speedups.install("keepwarm")
    model, shape = prepared(build(args.shape)), SHAPES[args.shape]
    inputs = layer_inputs(
        min(args.tokens, STEP),
        shape["linear_num_value_heads"],
        shape["linear_num_key_heads"],
        shape["linear_key_head_dim"],
    )

    def layer() -> None:
        mx.eval(released.gated_delta_ops(*inputs))

    layer()
    prefill(model, args.tokens)
    ours = [prefill(model, args.tokens) for _ in range(args.rounds)]
    our_layer, our_step = min(timed(layer) for _ in range(args.rounds)), decode_ms(model)
    with speedups.mlx_lms_own():
        layer()
        their_layer, theirs, their_step = (
            timed(layer),
            prefill(model, args.tokens),
            decode_ms(model),
        )
    print(f"{'':28}{'keepwarm':>12}{'mlx-lm':>12}{'ratio':>8}")
    best = max(ours)
    print(f"{'one layer, ms':28}{1e3 * our_layer:12.2f}{1e3 * their_layer:12.2f}"
          f"{their_layer / our_layer:8.1f}")  # fmt: skip
    print(
        f"{f'prefill of {args.tokens}, tok/s':28}{best:12,.0f}{theirs:12,.0f}{best / theirs:8.1f}"
    )
    print(f"{'decode step, ms':28}{our_step:12.2f}{their_step:12.2f}{their_step / our_step:8.1f}")
    print(f"prefill, slowest of {args.rounds} rounds: {min(ours):,.0f} tok/s")


if __name__ == "__main__":
    main()
