"""Time to first token with a stored prefix, against a cold read, by length.

    python -m bench.prefix [--model qwen3-0.6b|qwen3.5-9b|tiny] [--lengths 2000,20000,100000]

Random weights in the real shape of the model, so that only sizes matter. Each row is one prompt:
read cold without a cache, cold with one, then asked again (exact), then with other last 23 tokens
(nearest). `step` is one decode step at that length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import qwen3, qwen3_5

from keepwarm.bench.shapes import QWEN3_06B, QWEN35_9B
from keepwarm.cache.live import Live
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.events import Timings
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

REPEATS = 5
GENERATION_LEN = 8  # tokens of the generation prompt
NEAREST_LEN = 23  # tokens that differ in the nearest prompt

TINY = {
    **QWEN3_06B, "hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
}  # fmt: skip


def build(name: str) -> Any:
    if name == "qwen3.5-9b":
        config = {"model_type": "qwen3_5", "text_config": QWEN35_9B}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    else:
        shape = QWEN3_06B if name == "qwen3-0.6b" else TINY
        model = qwen3.Model(qwen3.ModelArgs.from_dict(shape))
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny", choices=["tiny", "qwen3-0.6b", "qwen3.5-9b"])
    parser.add_argument("--lengths", default="2000,20000")
    options = parser.parse_args()
    model = build(options.model)
    print(f"{options.model} on {mx.default_device()}, mlx {mx.__version__}; medians in ms")
    print(f"{'tokens':>8} {'no cache':>9} {'cold':>9} {'exact':>8} {'nearest':>8} {'step':>7}"
          f" {'lookup':>7} {'restore':>8} {'insert':>7}")  # fmt: skip
    for length in map(int, options.lengths.split(",")):
        print(" ".join(row(model, length)), flush=True)


def row(model: Any, length: int) -> Iterator[str]:
    prompt = make_prompt(length, seed=length)
    nearest = make_prompt(length, seed=length, changed=NEAREST_LEN)
    vocab = int(model.args.vocab_size if hasattr(model.args, "vocab_size") else 1000)
    assert int(prompt.tokens.max()) < vocab
    read(model, PrefixCache(model, budget_bytes=0), prompt)  # warm up kernels
    none = [read(model, PrefixCache(model, budget_bytes=0), prompt) for _ in range(3)]
    cold, cache = [], PrefixCache(model)
    for _ in range(3):
        cache = PrefixCache(model)
        cold.append(read(model, cache, prompt))
    exact = [read(model, cache, prompt) for _ in range(REPEATS)]
    near = [read(model, cache, nearest) for _ in range(REPEATS)]
    with Prefill(model, cache, prompt) as prefill:
        for _ in prefill.steps():
            pass
        step = decode_step_ms(model, prefill.live)
    yield f"{length:>8,}"
    for runs, width in ((none, 9), (cold, 9), (exact, 8), (near, 8)):
        yield f"{median(t.first_token_s * 1e3 for t in runs):>{width}.1f}"
    yield f"{step:>7.1f}"
    yield f"{median(t.lookup_s * 1e3 for t in exact):>7.2f}"
    yield f"{median(t.restore_s * 1e3 for t in exact):>8.1f}"
    yield f"{median(t.insert_s * 1e3 for t in cold):>7.1f}"


def read(model: Any, cache: PrefixCache, prompt: Prompt) -> Timings:
    mx.synchronize()
    start = time.perf_counter()
    with Prefill(model, cache, prompt) as prefill:
        for _ in prefill.steps():
            pass
        mx.eval(mx.argmax(prefill.logits, axis=-1))
    prefill.timings.first_token_s = time.perf_counter() - start
    return prefill.timings


def decode_step_ms(model: Any, live: Live) -> float:
    token = mx.array([[1]])

    def step() -> None:
        mx.eval(mx.argmax(model(token, cache=live.caches)[:, -1, :], axis=-1))

    step()
    return median(timed_ms(step) for _ in range(REPEATS))


def timed_ms(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1e3


def median(values: Iterator[float]) -> float:
    return statistics.median(list(values))


def make_prompt(length: int, seed: int, changed: int = 0) -> Prompt:
    """One long message and a generation prompt; the last `changed` tokens are others."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, length)
    if changed:
        tokens[length - changed :] = rng.integers(0, 1000, changed)
    return Prompt(tokens, [Boundary(length - GENERATION_LEN, BoundaryKind.MESSAGE)])


if __name__ == "__main__":
    main()
