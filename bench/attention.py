"""Attention of new tokens over many keys, on CUDA: MLX's own and ours.

    python -m bench.attention [--lengths 2000,20000,100000]

Milliseconds for one layer, medians; for NUM_LAYERS of them the first time that these lengths are
seen, when MLX plans. Keys lie in a larger buffer, as those of a cache do. Of several sequences each
begins at another place, as a mask says. A `*` is at what is taken when a model runs. A minute and a
half on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.metadata import version
from math import ceil
from time import perf_counter

import mlx.core as mx

from keepwarm.model import attention, attention_cuda
from keepwarm.model.attention import Way

# (heads, key heads, head size)
HEADS = {"Qwen3-0.6B": (16, 8, 128), "Qwen3.5-9B": (16, 4, 256), "Nemotron 30B": (32, 2, 128)}
# (sequences, queries of each)
QUERIES = ((1, 1), (1, 2), (1, 8), (1, 31), (1, 200), (1, 1000), (1, 2048), (6, 1), (32, 1))
STEP = 256  # by which buffers grow
# In one evaluation, as the layers of a model are: what starts it is shared.
NUM_LAYERS = 8
REPEATS = 5
MAX_SCORES = 4 * 10**9  # where MLX has no fused kernel it keeps them all
MAX_KEYS = 10**6  # of all sequences

WAYS: dict[Way, Callable[..., mx.array]] = {
    Way.MLX: lambda q, k, v, scale, mask: attention._mlx_attention(q, k, v, scale=scale, mask=mask),
    Way.BESIDE: lambda q, k, v, scale, _: attention.beside(q, k, v, scale),
    Way.OURS: attention_cuda.run,
}
Arguments = tuple[mx.array, mx.array, mx.array, float, mx.array | str]


def arguments(
    heads: tuple[int, int, int], batch: int, num_queries: int, num_keys: int
) -> Arguments:
    num_heads, num_key_heads, depth = heads
    q = mx.random.normal((batch, num_heads, num_queries, depth)).astype(mx.bfloat16)
    shape = (batch, num_key_heads, ceil((num_keys + 1) / STEP) * STEP, depth)
    k, v = (mx.random.normal(shape).astype(mx.bfloat16) for _ in range(2))
    mask: mx.array | str = "causal"
    if batch > 1:
        mask = mx.arange(num_keys) >= 10 * mx.arange(batch)[:, None, None, None]
    mx.eval(q, k, v, mask)
    return q, k[:, :, :num_keys], v[:, :, :num_keys], depth**-0.5, mask


def timed_ms(attend: Callable[..., mx.array], asked: Arguments) -> tuple[float, float]:
    """For one layer; and for all of them when these lengths are first seen."""
    q, *others = asked
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        # One after the other, as layers come.
        out = q
        for _ in range(NUM_LAYERS):
            out = attend(q + 0 * out, *others)
        mx.eval(out)
        times.append(perf_counter() - began)
    return 1e3 * statistics.median(times[1:]) / NUM_LAYERS, 1e3 * times[0]


def cell(way: Way, asked: Arguments) -> str:
    q, k, *_, mask = asked
    is_alone = q.shape[0] == q.shape[2] == 1
    num_scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    is_too_large = q.shape[3] not in attention.FUSED and num_scores > MAX_SCORES
    if (way is Way.BESIDE and not is_alone) or (way is Way.MLX and is_too_large):
        return f"{'-':>8} {'-':>7} "
    ms, first_ms = timed_ms(WAYS[way], asked)
    is_taken = attention.chosen(q.shape, k.shape, has_mask=isinstance(mask, mx.array)) is way
    return f"{ms:>8.3f} {first_ms:>7.1f}{'*' if is_taken else ' '}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="2000,20000,100000", help="numbers of keys")
    lengths = [int(part) for part in parser.parse_args().lengths.split(",")]
    if not attention_cuda.can_run(*arguments((2, 2, 128), 1, 2, 2)[:3]):
        parser.error("this needs a CUDA device")
    names = "  ".join(f"{way.value:>8} {'first':>7} " for way in WAYS)
    print(f"{mx.default_device()}, mlx {version('mlx')}; ms for one layer, bfloat16")
    for model, heads in HEADS.items():
        print(f"\n{model:<12} {'keys':>7} {'queries':>7}  {names}")
        for num_keys in lengths:
            for batch, num_queries in QUERIES:
                if num_queries <= num_keys and batch * num_keys <= MAX_KEYS:
                    asked = arguments(heads, batch, num_queries, num_keys)
                    cells = "  ".join(cell(way, asked) for way in WAYS)
                    queries = f"{batch} x {num_queries}" if batch > 1 else str(num_queries)
                    print(f"{'':<12} {num_keys:>7} {queries:>7}  {cells}", flush=True)


if __name__ == "__main__":
    main()
