"""What a chunk costs the first time its shape is seen, and when it is seen again.

    python -m bench.shapes [--model qwen3-0.6b|qwen3-small] [--start 4096]

On CUDA, attention over a new pair of lengths is planned anew, which takes longer than to compute
it; elsewhere the columns hardly differ.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from bench.streams import SHAPES, build, is_on_cpu, prepare

LENGTHS = (1, 8, 64, 512, 2048)
NUM_CHUNKS = 3  # after one another, so that each has another length before it


def read(model: Any, caches: list[Any], num_tokens: int) -> float:
    """Milliseconds for one chunk."""
    began = perf_counter()
    model(mx.full((1, num_tokens), 5, dtype=mx.int32), cache=caches)
    mx.eval([cache.state for cache in caches])
    return 1e3 * (perf_counter() - began)


def passes(model: Any, length: int, start: int) -> list[float]:
    """The mean time of a chunk in each of three passes over the same places."""
    caches = make_prompt_cache(model)
    read(model, caches, start)
    means = []
    for _ in range(3):
        for cache in caches:
            cache.trim(cache.offset - start)
        means.append(sum(read(model, caches, length) for _ in range(NUM_CHUNKS)) / NUM_CHUNKS)
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=SHAPES)
    parser.add_argument("--start", type=int, default=4096, help="tokens before the first chunk")
    args = parser.parse_args()
    device = prepare()
    name = args.model or ("qwen3-small" if is_on_cpu() else "qwen3-0.6b")
    model = build(name)
    passes(model, 16, 64)  # kernels are made, caches are warm
    print(f"{name} on {device}: ms for a chunk behind {args.start:,} tokens")
    print(f"{'tokens':>8}{'first':>10}{'again':>10}{'and again':>12}")
    for length in LENGTHS:
        first, again, third = passes(model, length, args.start)
        print(f"{length:>8}{first:>10.1f}{again:>10.1f}{third:>12.1f}")


if __name__ == "__main__":
    main()
