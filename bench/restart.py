"""The first token after a restart: cold, from disk and from RAM; and how many bytes that takes.

    python -m bench.restart [--tokens 2048 8192] [--shapes qwen3-small qwen3_5-small]

Each row reads one long prompt with a model of random weights: cold and written to disk, then with a
new cache on the same folder (a restart, as far as the cache knows), then once more from RAM. The
files' pages are given back to the system before; `read MB` is what /proc/self/io says came from the
drive, `floor ms` the time that reading these files takes by itself, their pages given back again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.bench.shapes import build
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.model import speedups
from keepwarm.prompt.boundaries import Prompt


def main() -> None:
    parser = argparse.ArgumentParser(description="First token after a restart.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--shapes", nargs="+", default=["qwen3-small", "qwen3_5-small"])
    args = parser.parse_args()
    speedups.install()
    print(
        f"{'shape':>14} {'tokens':>7} {'cold s':>8} {'disk s':>8} {'RAM s':>8} {'file MB':>8}"
        f" {'read MB':>8} {'floor ms':>9} {'limit s':>8}"
    )
    for shape in args.shapes:
        model = build(shape)
        for num_tokens in args.tokens:
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                print(row(model, shape, num_tokens, Path(folder)), flush=True)


def row(model: Any, shape: str, num_tokens: int, folder: Path) -> str:
    rng = np.random.default_rng(num_tokens)
    prompt = Prompt(rng.integers(0, 1000, num_tokens))
    asked = prompt.extended(rng.integers(0, 1000, 16))
    cache = opened(model, folder)
    first_token(model, cache, Prompt(rng.integers(0, 1000, 64)))  # kernels are compiled
    cold_s = first_token(model, cache, prompt)
    cache.close()
    give_pages_back(folder)
    cache = opened(model, folder)
    before = from_drive()
    disk_s = first_token(model, cache, asked)
    read = from_drive() - before
    assert cache.disk is not None
    stats = cache.disk.stats()
    ram_s = first_token(model, cache, asked.extended([7]))
    cache.close()
    give_pages_back(folder)
    floor_s = read_all(folder)
    return (
        f"{shape:>14} {num_tokens:>7} {cold_s:>8.2f} {disk_s:>8.2f} {ram_s:>8.2f}"
        f" {stats.read_bytes / 1e6:>8.1f} {read / 1e6:>8.1f} {1000 * floor_s:>9.1f}"
        f" {1.3 * (floor_s + ram_s):>8.2f}"
    )


def opened(model: Any, folder: Path) -> PrefixCache:
    cache = PrefixCache(model, budget_bytes=4 << 30, disk=Disk(folder, idle_s=0, min_spared_s=0))
    assert cache.disk is not None
    assert cache.disk.wait_open(), cache.disk.off_because
    return cache


def first_token(model: Any, cache: PrefixCache, prompt: Prompt) -> float:
    """Seconds until it is known, from disk where there is something."""
    began = perf_counter()
    assert cache.disk is not None
    cache.disk.load_now(prompt, cache.peek(prompt))
    with Prefill(model, cache, prompt) as prefill:
        list(prefill.steps())
        mx.argmax(prefill.logits).item()
        return perf_counter() - began


def files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.glob("*/*") if path.suffix in (".rows", ".state"))


def give_pages_back(folder: Path) -> None:
    for path in files(folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_all(folder: Path) -> float:
    """Seconds for reading all files once, one after the other."""
    buffer = bytearray(16 << 20)
    began = perf_counter()
    for path in files(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return perf_counter() - began


def from_drive() -> int:
    """Bytes that this process had the drive read, where Linux tells."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


if __name__ == "__main__":
    main()
