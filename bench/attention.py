"""Attention of new tokens over many keys, on CUDA: MLX's own and ours.

    python -m bench.attention [--lengths 2000,20000,100000]

Milliseconds for one layer, medians; for NUM_LAYERS of them the first time that these lengths are
seen, when MLX plans. Keys lie in a larger buffer, as those of a cache do. A `*` is at what is taken
when a model runs. About a minute on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.metadata import version
from time import perf_counter

import mlx.core as mx

from keepwarm.model import attention, attention_cuda

# (heads, key heads, head size)
HEADS = {"Qwen3-0.6B": (16, 8, 128), "Qwen3.5-9B": (16, 4, 256), "Nemotron 30B": (32, 2, 128)}
NUM_QUERIES = (1, 2, 8, 31, 200, 1000, 2048)
SPARE = 256
# In one evaluation, as the layers of a model are: what starts it is shared.
NUM_LAYERS = 8
REPEATS = 5
MAX_SCORES = 4 * 10**9  # where MLX has no fused kernel it keeps them all

Attention = Callable[..., mx.array]


def ours(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: str) -> mx.array:
    return attention_cuda.run(q, k, v, scale, is_causal=mask == "causal")


WAYS: dict[str, Attention] = {"mlx": attention._mlx_attention, "ours": ours}


def arrays(heads: tuple[int, int, int], num_queries: int, num_keys: int) -> list[mx.array]:
    num_heads, num_key_heads, depth = heads
    q = mx.random.normal((1, num_heads, num_queries, depth)).astype(mx.bfloat16)
    k, v = (
        mx.random.normal((1, num_key_heads, num_keys + SPARE, depth)).astype(mx.bfloat16)
        for _ in range(2)
    )
    mx.eval(q, k, v)
    return [q, k[:, :, :num_keys], v[:, :, :num_keys]]


def timed_ms(attend: Attention, qkv: list[mx.array], scale: float) -> tuple[float, float]:
    """For one layer; and for all of them when these lengths are first seen."""
    q, k, v = qkv
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        # One after the other, as layers come.
        out = q
        for _ in range(NUM_LAYERS):
            out = attend(q + 0 * out, k, v, scale=scale, mask="causal")
        mx.eval(out)
        times.append(perf_counter() - began)
    return 1e3 * statistics.median(times[1:]) / NUM_LAYERS, 1e3 * times[0]


def cell(way: str, qkv: list[mx.array], scale: float) -> str:
    q, k, _ = qkv
    num_scores = q.shape[1] * q.shape[2] * k.shape[2]
    if way == "mlx" and q.shape[3] not in attention.FUSED and num_scores > MAX_SCORES:
        return f"{'-':>8} {'-':>7} "
    ms, first_ms = timed_ms(WAYS[way], qkv, scale)
    is_taken = attention.is_ours_sooner(q.shape, k.shape[2]) == (way == "ours")
    return f"{ms:>8.3f} {first_ms:>7.1f}{'*' if is_taken else ' '}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="2000,20000,100000", help="numbers of keys")
    lengths = [int(part) for part in parser.parse_args().lengths.split(",")]
    if not attention_cuda.can_run(*arrays((2, 2, 128), 2, 2)):
        parser.error("this needs a CUDA device")
    names = "  ".join(f"{way:>8} {'first':>7} " for way in WAYS)
    print(f"{mx.default_device()}, mlx {version('mlx')}; ms for one layer, bfloat16")
    for model, heads in HEADS.items():
        scale = heads[2] ** -0.5
        print(f"\n{model:<12} {'keys':>7} {'queries':>7}  {names}")
        for num_keys in lengths:
            for num_queries in (n for n in NUM_QUERIES if n <= num_keys):
                qkv = arrays(heads, num_queries, num_keys)
                cells = "  ".join(cell(way, qkv, scale) for way in WAYS)
                print(f"{'':<12} {num_keys:>7} {num_queries:>7}  {cells}", flush=True)


if __name__ == "__main__":
    main()
