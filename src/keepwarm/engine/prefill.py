"""Prefill: one sequence at a time, cut at its schedule, each stop a checkpoint.

Runs on the thread that owns the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from keepwarm.cache.explain import Inserted, Match, Reason
from keepwarm.cache.live import Live
from keepwarm.cache.placement import Stop, StopKind
from keepwarm.cache.store import Pin, PrefixCache
from keepwarm.events import Timings
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.base import owned


class Prefill:
    """Brings live caches to the end of a prompt: match, restore, read the rest, store.

    Use as a context manager, which holds what was matched until the end; iterate `steps`.
    """

    def __init__(
        self, model: Any, cache: PrefixCache, prompt: Prompt, *, namespace: str = ""
    ) -> None:
        self.prompt = prompt
        self.timings = Timings()
        self._model = model
        self._cache = cache
        self._namespace = namespace
        self._logits: mx.array | None = None
        with self.timings.measuring("lookup_s"):
            self.match: Match = cache.match(prompt, namespace=namespace)
        self._pin: Pin = cache.pin(self.match)
        with self.timings.measuring("restore_s"):
            self.live: Live = cache.restore(self.match)
        self.cached_len = self.live.position

    def __enter__(self) -> Prefill:
        return self

    def __exit__(self, *_: object) -> None:
        self._pin.release()

    @property
    def logits(self) -> mx.array:
        """What the model says after the last token: (1, vocab). Only after all steps."""
        assert self._logits is not None, "the prompt has not been read to its end"
        return self._logits

    def steps(self) -> Iterator[int]:
        """Reads one chunk at a time; yields the position reached. Can be given up between."""
        for stop in self._stops():
            self._step(stop)
            yield stop.position

    def insert(self, prompt: Prompt, kind: StopKind) -> Inserted:
        """Store where the live caches stand now, and hold that instead."""
        with self.timings.measuring("insert_s"):
            done = self._cache.insert(
                prompt, self.live, kind=kind, namespace=self._namespace, pin=self._pin
            )
        # What the insert waited for was the model.
        self.timings.insert_s -= done.wait_s
        self.timings.prefill_s += done.wait_s
        return done

    @property
    def reason(self) -> Reason:
        """Why as much came from the cache as did."""
        is_as_found = self.cached_len == self.match.cached_len
        return self.match.reason if is_as_found else Reason.FAULT

    def _stops(self) -> list[Stop]:
        # From where the caches really stand: a restore that fails leaves them at the start.
        start = self.live.position
        return self._cache.stops(self.match, start=start) if start < len(self.prompt) else []

    def _step(self, stop: Stop) -> None:
        start, before = self.live.position, self.timings.prefill_s
        tokens = self.prompt.tokens[start : stop.position]
        with self.timings.measuring("prefill_s"):
            logits = self._model(mx.array(tokens)[None], cache=self.live.caches)
            self.live.advance(tokens)
            if stop.kind is StopKind.END:
                self._logits = owned(logits[:, -1, :])  # (1, vocab), not a view of the chunk's
            # Without logits: before the end they are never computed. Not waited for, so that
            # the copies to be stored are laid out meanwhile.
            mx.async_eval(self._states(), self._logits)  # type: ignore[no-untyped-call]
        if stop.kind is not StopKind.END:
            self.insert(self.prompt, stop.kind)
        with self.timings.measuring("prefill_s"):
            mx.eval(self._states(), self._logits)
        self._cache.cost.observe(start, stop.position, self.timings.prefill_s - before)

    def _states(self) -> list[Any]:
        return [cache.state for cache in self.live.caches]
