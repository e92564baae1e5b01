"""Reading a prompt with the last logits of a chunk alone, and with all of them.

    python -m bench.head [--model qwen3-mini] [--lengths 30,100,200,2000] [--rounds 9]

Milliseconds until the first token is known, checkpoints stored, medians of rounds in turn. With all
logits the prompt is read in one pass more, unless it is short.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.bench.shapes import build
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.model.head import Head, head_of
from keepwarm.model.loader import prepared
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

GENERATION_LEN = 8


def timed_ms(model: Any, length: int, seed: int) -> float:
    tokens = np.random.default_rng(seed).integers(1, 1000, length).tolist()
    end = Boundary(length - GENERATION_LEN, BoundaryKind.MESSAGE)
    began = perf_counter()
    with Prefill(model, PrefixCache(model), Prompt(tokens, [end])) as prefill:
        for _ in prefill.steps():
            pass
        mx.eval(mx.argmax(prefill.logits, axis=-1))
    return 1e3 * (perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen3-mini", help="a shape")
    parser.add_argument("--lengths", default="30,100,200,2000", help="of prompts, in tokens")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    model = prepared(build(args.model))
    mx.eval(model.parameters())
    ways = {"all": Head(), "last": head_of(model)}
    print(f"{args.model} on {mx.default_device()}: ms")
    print(f"{'tokens':>8} {'all':>8} {'last':>8} {'ratio':>6}")
    for length in map(int, args.lengths.split(",")):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for i in range(args.rounds + 1):
            for way, head in ways.items():
                model._keepwarm_head = head
                times[way].append(timed_ms(model, length, i))
        before, after = (statistics.median(times[way][1:]) for way in ways)
        print(f"{length:>8,} {before:>8.1f} {after:>8.1f} {before / after:>5.2f}x", flush=True)


if __name__ == "__main__":
    main()
