"""Attention of new tokens over many keys: MLX's own, and in plain products (where it is ours).

    python -m bench.short_queries

Milliseconds for one layer, medians; for NUM_LAYERS of them the first time that these lengths are
seen, when MLX plans; and how far each is from float32. Keys lie in a larger buffer,
as those of a cache do. Under half a minute on a GPU; on a CPU with `--lengths 2000` only.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

import mlx.core as mx

from keepwarm.model import short_queries

# (heads, key heads, head size)
HEADS = {"Qwen3-0.6B": (16, 8, 128), "Qwen3.5-9B": (16, 4, 256)}
NUM_QUERIES = (1, 2, 8, 31, 200, 1000)
SPARE = 256
# In one evaluation, as the layers of a model are: what starts it is shared.
NUM_LAYERS = 8
REPEATS = 5

Attention = Callable[..., mx.array]


def ways() -> dict[str, Attention]:
    return {
        "mlx": short_queries._mlx_attention,
        "products": short_queries.scaled_dot_product_attention,
    }


def arrays(heads: tuple[int, int, int], num_queries: int, num_keys: int) -> list[mx.array]:
    num_heads, num_key_heads, depth = heads
    q = mx.random.normal((1, num_heads, num_queries, depth)).astype(mx.bfloat16)
    k, v = (
        mx.random.normal((1, num_key_heads, num_keys + SPARE, depth)).astype(mx.bfloat16)
        for _ in range(2)
    )
    mx.eval(q, k, v)
    return [q, k[:, :, :num_keys], v[:, :, :num_keys]]


def timed_ms(attend: Attention, qkv: list[mx.array], scale: float) -> tuple[float, float, mx.array]:
    """For one layer; for all of them when these lengths are first seen; and what came of it."""
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
    return 1e3 * statistics.median(times[1:]) / NUM_LAYERS, 1e3 * times[0], out


def error_of(out: mx.array, exact: mx.array) -> float:
    return float(mx.abs(out.astype(mx.float32) - exact).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="2000,20000,100000")
    lengths = [int(part) for part in parser.parse_args().lengths.split(",")]
    attentions = ways()
    names = "  ".join(f"{name:>8} {'first':>6} {'error':>7}" for name in attentions)
    print(f"{mx.default_device()}, mlx {mx.__version__}; ms for one layer, bfloat16")
    for model, heads in HEADS.items():
        scale = heads[2] ** -0.5
        print(f"\n{model:<12} {'keys':>7} {'queries':>7}  {names}")
        for num_keys in lengths:
            for num_queries in NUM_QUERIES:
                qkv = arrays(heads, num_queries, num_keys)
                wide = [a.astype(mx.float32) for a in qkv]
                exact = short_queries._by_products(*wide, scale, is_causal=True)
                cells = []
                for attend in attentions.values():
                    ms, first_ms, out = timed_ms(attend, qkv, scale)
                    cells.append(f"{ms:>8.3f} {first_ms:>6.1f} {error_of(out, exact):>7.4f}")
                print(f"{'':<12} {num_keys:>7} {num_queries:>7}  {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
