"""Runs a model through the cache, and a naive account of what the cache could reuse at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement, Stop, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.model.head import last_logits
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from keepwarm.state.registry import Layout
from keepwarm.state.window import ChunkedKV, RotatingKV
from tests.cache.toy import chunks

from .zoo import VOCAB_SIZE

# Small enough that a prompt of 150 tokens has every kind of stop, and windows are passed.
PLACEMENT = Placement(min_span=16, prefill_step=40, thinning=0.0)


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, count).tolist()


def prompt_of(spans: Sequence[Sequence[int]], tail: Sequence[int] = (1, 2, 3)) -> Prompt:
    """A system part and messages, each closed by a boundary, then a generation prompt."""
    tokens: list[int] = []
    boundaries = []
    for i, span in enumerate(spans):
        tokens += span
        kind = BoundaryKind.MESSAGE if i else BoundaryKind.SYSTEM
        boundaries.append(Boundary(len(tokens), kind))
    return Prompt([*tokens, *tail], boundaries)


@dataclass(frozen=True)
class Run:
    """A prompt that has been read to its end."""

    cached_len: int
    live: Live
    logits: mx.array  # (1, vocab)
    stored_at: list[int]  # the positions of the checkpoints it left


def read(model: Any, cache: PrefixCache, prompt: Prompt, limit: int | None = None) -> Run:
    """Match, restore, read along the stops and store; at most `limit` tokens from the cache."""
    match = cache.match(prompt, limit=limit)
    stored_at = []
    with cache.pin(match) as pin:
        live = cache.restore(match)
        assert live.position == match.cached_len
        for chunk in chunks(cache.stops(match)):
            logits = feed(model, live, prompt.tokens[live.position : chunk[-1].position])
            for stop in chunk:
                if stop.kind is not StopKind.END:
                    done = cache.insert(prompt, live, kind=stop.kind, pin=pin, at=stop.position)
                    assert done.is_stored
                    stored_at.append(stop.position)
    cache.check()
    return Run(match.cached_len, live, logits, stored_at)


def read_cold(model: Any, prompt: Prompt, stops: Sequence[Stop]) -> Run:
    """The same arithmetic with no cache at all."""
    live = PrefixCache(model, budget_bytes=0).fresh()
    for stop in stops:
        logits = feed(model, live, prompt.tokens[live.position : stop.position])
    return Run(0, live, logits, [])


def feed(model: Any, live: Live, tokens: Sequence[int] | np.ndarray) -> mx.array:
    """One call of the model, as prefill calls it; returns the last logits."""
    logits = last_logits(model, mx.array(np.asarray(tokens))[None], live.caches)
    mx.eval(logits, [cache.state for cache in live.caches])
    live.advance(tokens)
    return logits


def greedy(model: Any, run: Run, count: int) -> tuple[list[int], mx.array]:
    """The likeliest tokens after a run, and the logits after the last of them."""
    tokens, logits = [], run.logits
    for _ in range(count):
        tokens.append(int(mx.argmax(logits, axis=-1).item()))
        logits = feed(model, run.live, tokens[-1:])
    return tokens, logits


def bits(array: mx.array) -> bytes:
    """The array's exact content."""
    return bytes(memoryview(np.array(array.view(mx.uint8))))


@dataclass
class Account:
    """What was stored so far, and the deepest position that a new prompt could start from.

    Written without a look at the cache: it knows layer kinds, stops and tokens only.
    """

    layout: Layout
    exact: bool
    stored: list[tuple[Prompt, list[int]]] = field(default_factory=list)

    def add(self, prompt: Prompt, positions: Sequence[int]) -> None:
        self.stored.append((prompt, list(positions)))

    def bound(self, prompt: Prompt) -> int:
        limit = len(prompt) - 1
        if self.exact:
            return self._deepest_shared_stop(prompt, limit)
        if self.layout.whole:
            return max(
                (
                    place
                    for other, places in self.stored
                    for place in places
                    if place <= min(limit, shared_len(prompt, other))
                ),
                default=0,
            )
        return self._deepest_cut(prompt, limit)

    def _deepest_shared_stop(self, prompt: Prompt, limit: int) -> int:
        own = [s.position for s in PLACEMENT.exact_schedule(prompt)]
        best = 0
        for other, places in self.stored:
            theirs = [s.position for s in PLACEMENT.exact_schedule(other)]
            for place in places:
                same_cuts = [p for p in own if p <= place] == [p for p in theirs if p <= place]
                fits = place <= min(limit, shared_len(prompt, other))
                if same_cuts and fits and place in own:
                    best = max(best, place)
        return best

    def _deepest_cut(self, prompt: Prompt, limit: int) -> int:
        rows: set[int] = set()
        windows: dict[Any, set[int]] = {}
        for other, places in self.stored:
            shared = shared_len(prompt, other)
            for place in places:
                rows |= set(range(min(place, shared)))
                for state in self._windows():
                    kept = {i for lo, hi in state.needs(place) for i in range(lo, hi)}
                    windows.setdefault(id(state), set()).update(i for i in kept if i < shared)
        for position in range(min(limit, len(rows)), 0, -1):
            if all(
                set(range(lo, hi)) <= windows.get(id(state), set())
                for state in self._windows()
                for lo, hi in state.needs(position)
            ):
                return position
        return 0

    def _windows(self) -> list[RotatingKV | ChunkedKV]:
        return [s for s in self.layout.states if isinstance(s, RotatingKV | ChunkedKV)]


def shared_len(a: Prompt, b: Prompt) -> int:
    """The tokens that both prompts begin with."""
    count = min(len(a), len(b))
    differs = np.nonzero(a.tokens[:count] != b.tokens[:count])[0]
    return int(differs[0]) if len(differs) else count
