"""How long the tree itself takes, without a model: match, insert and bookkeeping by length.

    python -m bench.tree

Prints one row for each length and shape of the path. All of it should grow linearly.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from keepwarm.cache.placement import Placement
from keepwarm.cache.tree import Tree
from keepwarm.prompt.boundaries import Prompt

LENGTHS = (1_000, 10_000, 100_000)
EDGES = (100_000, 512, 64)  # tokens an edge: one long edge, schedule stops, short messages
REPEATS = 20


def main() -> None:
    print(
        f"{'tokens':>8} {'edge':>8} {'match ms':>9} {'part ms':>9} {'insert ms':>10} {'bytes/token':>12}"
    )
    for length in LENGTHS:
        for edge in EDGES:
            print(row(length, min(edge, length)))


def row(length: int, edge: int) -> str:
    tokens = np.random.default_rng(length).integers(0, 150_000, length)
    prompt = Prompt(tokens)
    placement = Placement()
    keys = placement.keys(prompt)
    tracemalloc.start()
    tree = path_of(keys, edge)
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    parted = Prompt(np.concatenate([tokens[: length - 10], tokens[:10] + 1]))
    match_ms = median_ms(lambda: tree.walk(placement.keys(prompt)))
    part_ms = median_ms(lambda: tree.walk(placement.keys(parted)))
    insert_ms = median_ms(lambda: path_of(placement.keys(prompt), edge))
    return (
        f"{length:>8,} {edge:>8,} {match_ms:>9.3f} {part_ms:>9.3f} {insert_ms:>10.3f}"
        f" {nbytes / length:>12.1f}"
    )


def path_of(keys: bytes, edge: int) -> Tree:
    """A tree with one path, grown edge by edge as prefill grows it."""
    tree = Tree(width=4, num_groups=1)
    node, at = tree.root, 0
    while at < len(keys):
        end = min(len(keys), at + edge * tree.width)
        node = tree.append(node, keys[at:end])
        at = end
    return tree


def median_ms(act: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
