"""What a chunk costs the first time its shape is seen, and when it is seen again.

    python -m bench.shapes [--model qwen3-0.6b|qwen3-small] [--start 4096]

On CUDA, attention over a new pair of lengths is planned anew, which takes longer than to compute
it; elsewhere the columns hardly differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.bench.shapes import SHAPES, build

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


def alone(act: Callable[[int], mx.array], lengths: Sequence[int]) -> str:
    """Milliseconds of one operation by itself, each time with another length."""
    times = []
    for length in lengths:
        began = perf_counter()
        mx.eval(act(length))
        times.append(1e3 * (perf_counter() - began))
    return ", ".join(f"{ms:.1f}" for ms in times)


def show_alone() -> None:
    dtype, lengths = mx.bfloat16, range(5000, 5200, 37)
    queries = mx.random.normal((1, 16, 512, 128)).astype(dtype)
    rows = mx.random.normal((1, 8, max(lengths), 128)).astype(dtype)
    weights = mx.random.normal((1024, 3072)).astype(dtype)
    inputs = mx.random.normal((max(lengths), 1024)).astype(dtype)
    mx.eval(queries, rows, weights, inputs)

    def attention(length: int) -> mx.array:
        past = rows[:, :, :length]
        return mx.fast.scaled_dot_product_attention(queries, past, past, scale=1.0, mask="causal")

    def plain(length: int) -> mx.array:
        past = rows[:, :, None, :length]
        grouped = queries.reshape(1, 8, 2, 512, 128)
        seen = mx.arange(length) <= mx.arange(512)[:, None] + (length - 512)
        scores = mx.where(seen, grouped @ past.swapaxes(-1, -2), -1e9)
        return mx.softmax(scores, axis=-1, precise=True) @ past

    print(f"attention of 512 over 5,000 and more: {alone(attention, lengths)} ms")
    print(f"the same in plain operations: {alone(plain, lengths)} ms")
    print(f"a product of 5,000 and more rows: {alone(lambda n: inputs[:n] @ weights, lengths)} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=SHAPES)
    parser.add_argument("--start", type=int, default=4096, help="tokens before the first chunk")
    args = parser.parse_args()
    is_on_cpu = mx.default_device() == mx.cpu
    if is_on_cpu:
        mx.disable_compile()  # there mlx starts a C++ compiler for every new shape
    name = args.model or ("qwen3-small" if is_on_cpu else "qwen3-0.6b")
    model = build(name)
    passes(model, 16, 64)  # kernels are made, caches are warm
    print(f"{name} on {mx.default_device()}: ms for a chunk behind {args.start:,} tokens")
    print(f"{'tokens':>8}{'first':>10}{'again':>10}{'and again':>12}")
    for length in LENGTHS:
        first, again, third = passes(model, length, args.start)
        print(f"{length:>8}{first:>10.1f}{again:>10.1f}{third:>12.1f}")
    if not is_on_cpu:
        show_alone()


if __name__ == "__main__":
    main()
