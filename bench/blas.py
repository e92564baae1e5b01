"""What operations cost on the CPU: with MLX's own BLAS and a fast one, MLX's own way and ours.

    python -m bench.blas [--repeats 9]

The columns: MLX as released (KEEPWARM_BLAS=off), MLX with the BLAS that was found, and with that
the operations of `keepwarm.model.cpu_ops`. Each BLAS in a process of its own; best of the repeats,
in ms. OPENBLAS_NUM_THREADS=1 gives steadier figures on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import mlx.core as mx

from keepwarm.model import blas, cpu_ops
from keepwarm.model.backend import ENV

Act = Callable[[], mx.array]
FLOAT32, BFLOAT16 = mx.float32, mx.bfloat16


def name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def normal(*shape: int, dtype: Any = FLOAT32) -> mx.array:
    made = mx.random.normal(shape).astype(dtype)
    mx.eval(made)
    return made


def products() -> Iterator[tuple[str, Act, Act | None]]:
    """Name, MLX's own and ours, as all below."""
    for dtype in (FLOAT32, BFLOAT16):
        for num_rows in (1, 1024):
            x, w = normal(num_rows, 256, dtype=dtype), normal(1024, 256, dtype=dtype)
            yield (
                f"product {num_rows}x256x1024, {name_of(dtype)}",
                lambda x=x, w=w: x @ w.T,
                lambda x=x, w=w: (x.astype(FLOAT32) @ w.astype(FLOAT32).T).astype(x.dtype),
            )
        for num_rows in (1, 8, 512):
            x = normal(num_rows, 1024, dtype=dtype)
            packed = mx.quantize(normal(1024, 1024, dtype=dtype), 64, 4)
            how: Any = {"transpose": True, "group_size": 64, "bits": 4}
            yield (
                f"4-bit product {num_rows}x1024x1024, {name_of(dtype)}",
                partial(mx.quantized_matmul, x, *packed, **how),
                partial(cpu_ops.quantized_matmul, x, *packed, **how),
            )


def attentions() -> Iterator[tuple[str, Act, Act | None]]:
    for dtype in (FLOAT32, BFLOAT16):
        for num_rows, num_keys in ((1, 1024), (1024, 1024), (512, 2048), (128, 4096)):
            q, kv = normal(1, 4, num_rows, 64, dtype=dtype), normal(1, 2, num_keys, 64, dtype=dtype)
            more: Any = {"scale": 0.125, "mask": "causal"}
            yield (
                f"attention {num_rows} over {num_keys}, 4 heads of 64, {name_of(dtype)}",
                partial(mx.fast.scaled_dot_product_attention, q, kv, kv, **more),
                partial(cpu_ops.scaled_dot_product_attention, q, kv, kv, **more),
            )


def others() -> Iterator[tuple[str, Act, Act | None]]:
    scores, x, weight = normal(4, 1024, 1024), normal(1, 1024, 768), normal(768, 4, 1)
    heads, ones = normal(1, 4, 1024, 64), mx.ones(768)
    yield "softmax 4x1024x1024", lambda: mx.softmax(scores, axis=-1), None
    yield "exp 4x1024x1024", lambda: mx.exp(scores), None
    yield "sigmoid 1024x768", lambda: mx.sigmoid(x), lambda: cpu_ops.sigmoid(x)
    yield (
        "depthwise conv 1024x768, 4 taps",
        lambda: mx.conv1d(x, weight, groups=768),
        lambda: cpu_ops.conv1d(x, weight, groups=768),
    )
    yield "rms_norm 1024x768", lambda: mx.fast.rms_norm(x, ones, 1e-6), None
    rope: Any = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": 0}
    yield "rope 4x1024x64", lambda: mx.fast.rope(heads, 64, **rope), None
    yield "sum 1024x768", lambda: x + x, None


def best_ms(act: Act, repeats: int) -> float:
    mx.eval(act())
    times = []
    for _ in range(repeats):
        began = perf_counter()
        mx.eval(act())
        times.append(perf_counter() - began)
    return 1e3 * min(times)


def measure(repeats: int) -> dict[str, tuple[float, float | None]]:
    return {
        name: (best_ms(theirs, repeats), None if ours is None else best_ms(ours, repeats))
        for group in (products, attentions, others)
        for name, theirs, ours in group()
    }


def measure_with(choice: str, repeats: int) -> Any:
    command = [sys.executable, "-m", "bench.blas", "--measure", "--repeats", str(repeats)]
    env = {**os.environ, ENV: choice}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    if args.measure:
        print(json.dumps(measure(args.repeats)))
        return
    library = blas.open_library("auto")
    if library is None:
        sys.exit(f"no fast BLAS found: {blas.INSTALL}")
    slow, fast = measure_with("off", args.repeats), measure_with("auto", args.repeats)
    print(f"mlx {mx.__version__}, {os.cpu_count()} cores, {blas.file_of(library).name}; ms")
    print(f"{'':52}{'released':>10}{'BLAS':>10}{'ours':>10}{'gain':>9}")
    for name, (theirs, ours) in fast.items():
        last = "" if ours is None else f"{ours:10.2f}"
        gain = slow[name][0] / (theirs if ours is None else min(theirs, ours))
        print(f"{name:52}{slow[name][0]:10.2f}{theirs:10.2f}{last:>10}{gain:8.1f}x")


if __name__ == "__main__":
    main()
