"""A model without weights, in every layout of layers, and the way an engine uses the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from keepwarm.cache.live import Live
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import Placement, Stop, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.state.feeding import Tape, feed, prefix_hashes

# Short enough that a handful of tokens has several stops, branches and thinned checkpoints.
SMALL = Placement(min_span=3, prefill_step=6, keep_recent=2, thinning=0.5)
UNTHINNED = Placement(min_span=3, prefill_step=6, keep_recent=2, thinning=0.0)


@dataclass(frozen=True)
class Toy:
    """One model: how its caches are made, which layers it never fills, and its arithmetic."""

    name: str
    make: Callable[[], list[Any]]
    unused: tuple[int, ...] = ()
    # As with mixtures of experts: what a row holds depends on all tokens of its chunk.
    mixes_chunks: bool = False

    def read(self, live: Live, prompt: Prompt, end: int) -> None:
        """Read the prompt up to `end` in one call. Mutates the live caches."""
        tokens = prompt.tokens[live.position : end]
        self.fill(live.caches, prompt.tokens[:end], live.position)
        live.advance(tokens)

    def fill(self, caches: Sequence[Any], tokens: Sequence[int], start: int) -> None:
        """Fill caches that have seen `tokens[:start]` with the rest. Mutates."""
        hashes = prefix_hashes(tokens)[start:]
        if self.mixes_chunks:
            hashes = hashes ^ (hashes[-1] >> np.uint64(1))
        for layer, cache in enumerate(caches):
            if layer not in self.unused:
                feed(cache, hashes, layer + 1)
                mx.eval(cache.state)

    def cold(self, tokens: Sequence[int], cuts: Sequence[int] = ()) -> list[Any]:
        """Caches that have seen `tokens`, in chunks that end at `cuts`."""
        caches, at = self.make(), 0
        for cut in [*cuts, len(tokens)]:
            if at < cut <= len(tokens):
                self.fill(caches, tokens[:cut], at)
                at = cut
        return caches


def chunks(stops: Sequence[Stop]) -> Iterator[list[Stop]]:
    """What is read at once: up to each stop, with those that are passed on the way."""
    passed: list[Stop] = []
    for stop in stops:
        passed.append(stop)
        if not stop.is_passed:
            yield passed
            passed = []


def prefill(
    cache: PrefixCache, toy: Toy, prompt: Prompt, *, namespace: str = "", pin: Pin | None = None
) -> Live:
    """Match, restore, read the rest along the stops and store each of them, as an engine does."""
    match = cache.match(prompt, namespace=namespace)
    live = cache.restore(match)
    if live.position != match.cached_len:
        match = cache.match(prompt, namespace=namespace, limit=live.position)
    for chunk in chunks(cache.stops(match)):
        if chunk[-1].position <= live.position:
            continue
        toy.read(live, prompt, chunk[-1].position)
        for stop in chunk:
            if stop.kind is not StopKind.END:
                cache.insert(
                    prompt, live, kind=stop.kind, namespace=namespace, pin=pin, at=stop.position
                )
    return live


def live_at(toy: Toy, prompt: Prompt, position: int) -> Live:
    """Live caches that have read `position` tokens of the prompt in one call."""
    live = Live(toy.make())
    toy.read(live, prompt, position)
    return live


def store_at(
    cache: PrefixCache,
    toy: Toy,
    tokens: Sequence[int],
    positions: Sequence[int],
    *,
    kind: StopKind = StopKind.MESSAGE,
    namespace: str = "",
) -> None:
    """Read `tokens` from the start, storing a checkpoint at each position."""
    prompt, live = Prompt(tokens), Live(toy.make())
    for position in positions:
        toy.read(live, prompt, position)
        assert cache.insert(prompt, live, kind=kind, namespace=namespace).is_stored


def messages(tokens: Sequence[int], *ends: int) -> Prompt:
    """A prompt with message boundaries."""
    return Prompt(tokens, [Boundary(end, BoundaryKind.MESSAGE) for end in ends])


TOYS = {
    toy.name: toy
    for toy in (
        Toy("rows", lambda: [KVCache(), KVCache()]),
        Toy("concatenated", lambda: [ConcatenateKVCache(), KVCache()]),
        Toy("quantized", lambda: [QuantizedKVCache(32, 8)]),
        Toy("rows_window", lambda: [KVCache(), RotatingKVCache(5)]),
        Toy("window_keep", lambda: [RotatingKVCache(6, keep=2)]),
        Toy("windows", lambda: [RotatingKVCache(3), KVCache(), RotatingKVCache(7, keep=1)]),
        Toy("chunked", lambda: [ChunkedKVCache(4), KVCache()]),
        Toy("snapshot", lambda: [ArraysCache(3)]),
        Toy("rows_snapshot", lambda: [ArraysCache(2), KVCache()]),
        Toy("window_snapshot", lambda: [RotatingKVCache(5, keep=1), ArraysCache(1)]),
        Toy(
            "nested",
            lambda: [
                CacheList(ArraysCache(2), KVCache()),
                CacheList(CacheList(RotatingKVCache(4), ArraysCache(1)), KVCache()),
            ],
        ),
        Toy("opaque", lambda: [Tape(), KVCache()]),
        Toy("unused", lambda: [KVCache(), KVCache(), ArraysCache(2)], unused=(1,)),
    )
}
