"""Prefill: one sequence at a time, cut at its schedule, each stop a checkpoint.

Runs on the thread that owns the arrays.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx

from keepwarm.cache.explain import Inserted, Match, Reason
from keepwarm.cache.live import Live
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import SHORT_TURN, Stop, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.pace import CRUMB
from keepwarm.events import Timings
from keepwarm.model.head import last_logits, longest_end
from keepwarm.prompt.boundaries import Prompt, Tokens
from keepwarm.state.attention import make_room
from keepwarm.state.base import owned

# Room for a reply behind the prompt, in tokens: one step of mlx-lm's own buffers.
_REPLY_ROOM = 256


class Prefill:
    """Brings live caches to the end of a prompt: match, restore, read the rest, store.

    Use as a context manager, which holds what was matched until the end; call `advance` until
    it is done, or iterate `steps`.
    """

    _has_listener = True  # whether anyone asks what the model says behind the last token

    def __init__(
        self,
        model: Any,
        cache: PrefixCache,
        prompt: Prompt,
        *,
        namespace: str = "",
        match: Match | None = None,
        is_read_ahead: bool = False,
        on_known: Callable[[mx.array], None] | None = None,
    ) -> None:
        """`match` is what the cache was found to have, when that is known already. With
        `is_read_ahead` the next turn will be, while nobody waits. `on_known` is called with the
        logits when they are known, before anything is restored."""
        self.prompt = prompt
        self.timings = Timings()
        self.is_awaited = False  # whether other requests may wait for what it stores
        self._model = model
        self._cache = cache
        self._namespace = namespace
        self._is_read_ahead = is_read_ahead
        self._longest_end = max(SHORT_TURN, longest_end(model))
        with self.timings.measuring("lookup_s"):
            final = None if match is not None else cache.finals.get(namespace, prompt)
            find = cache.match if final is None else cache.match_to_end
            self.match: Match = match or find(prompt, namespace=namespace)
        if final is not None and on_known is not None and self.match.cached_len == len(prompt):
            on_known(final)
        self._pin: Pin = cache.pin(self.match)
        try:
            with self.timings.measuring("restore_s"):
                rest = len(prompt) - self.match.cached_len
                self.live: Live = cache.restore(self.match, reserve=rest + _REPLY_ROOM)
        except BaseException:
            self.close()
            raise
        # Not held on to: when the cache lets it go, it is gone.
        self.match = replace(self.match, end=None)
        self._logits = final if self.live.position == len(prompt) else None
        self.cached_len = self.live.position
        self.stored_len = self.live.position  # how far it is in the cache
        self._stops = self._plan()

    def __enter__(self) -> Prefill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is held in the cache. May be called again."""
        self._pin.release()

    @property
    def logits(self) -> mx.array:
        """What the model says after the last token: (1, vocab). Only after all steps."""
        assert self._logits is not None, "the prompt has not been read to its end"
        return self._logits

    @property
    def stops(self) -> list[int]:
        """The positions ahead where something will be stored."""
        return [stop.position for stop in self._stops if stop.kind is not StopKind.END]

    @property
    def is_done(self) -> bool:
        return not self._stops

    @property
    def num_ahead(self) -> int:
        """How many tokens are still to be read."""
        return self._stops[-1].position - self.live.position if self._stops else 0

    def stop_at(self, position: int) -> None:
        """Make one more checkpoint, where a waiting prompt parts from this one. Mutates.

        Not in exact mode, whose stops depend on nothing but the prompt.
        """
        is_ahead = self.live.position < position < len(self.prompt)
        if is_ahead and not self._cache.exact and position not in self.stops:
            insort(self._stops, Stop(position, StopKind.BRANCH))

    def steps(self) -> Iterator[int]:
        """Reads one chunk at a time; yields the position reached. Can be given up between."""
        while not self.is_done:
            self.advance()
            yield self.live.position

    def advance(self, max_tokens: int | None = None) -> None:
        """Read up to the next stop, and store there; or about `max_tokens`, to let others go on
        meanwhile: half as many more rather than leave a crumb that costs a pass of its own. In
        exact mode a chunk is never cut: its shape is part of the answer."""
        start, limit = self.live.position, None if self._cache.exact else max_tokens
        stop = next(stop for stop in self._stops if not stop.is_passed)
        if limit is None or stop.position - start <= CRUMB * limit:
            self._read(stop.position)
        else:
            self._read(start + limit)

    def keep(self) -> None:
        """Store what was read since the last stop, when the prefill ends early. Mutates."""
        if self.live.position > self.stored_len and not self._cache.exact:
            self.insert(self.prompt, StopKind.STEP)

    def keep_end(self) -> None:
        """Keep the state behind the last token, for the same prompt asked again. Only while the
        live caches stand there. Mutates the cache."""
        if self.cached_len < len(self.prompt):  # else it is from there
            self._cache.keep_end(self.prompt, self.live, namespace=self._namespace)

    def insert(self, prompt: Prompt, kind: StopKind, at: int | None = None) -> Inserted:
        """Store where the live caches stand now, or stood `at` some tokens before, and hold that
        instead."""
        with self.timings.measuring("insert_s"):
            done = self._cache.insert(
                prompt, self.live, kind=kind, namespace=self._namespace, pin=self._pin, at=at,
                is_awaited=self.is_awaited,
            )  # fmt: skip
        # What the insert waited for was the model.
        self.timings.insert_s -= done.wait_s
        self.timings.prefill_s += done.wait_s
        if done.is_stored:
            self.stored_len = done.position
        return done

    @property
    def reason(self) -> Reason:
        """Why as much came from the cache as did."""
        is_as_found = self.cached_len == self.match.cached_len
        return self.match.reason if is_as_found else Reason.FAULT

    def _plan(self) -> list[Stop]:
        # From where the caches really stand: a restore that fails leaves them at the start.
        start, is_ahead = self.live.position, self._is_read_ahead
        if start == len(self.prompt):
            return []
        return self._cache.stops(
            self.match, start=start, is_read_ahead=is_ahead, longest_end=self._longest_end
        )

    def _read(self, upto: int) -> None:
        """One call of the model; what is to be stored on the way is stored."""
        start, before = self.live.position, self.timings.prefill_s
        tokens = self.prompt.tokens[start:upto]
        with self.timings.measuring("prefill_s"):
            logits = self._last_logits(tokens)
            self.live.advance(tokens)
            if len(self.prompt) - upto >= self._cache.placement.prefill_step:  # more chunks come
                make_room(self.live.caches, len(self.prompt) + _REPLY_ROOM)
            if upto == len(self.prompt) and self._has_listener:
                self._logits = owned(logits)  # (1, vocab), not a view of the chunk's
            # Without logits: before the end they are never computed. Not waited for, so that
            # the copies to be stored are laid out meanwhile.
            mx.async_eval(self._states(), self._logits)  # type: ignore[no-untyped-call]
        while self._stops and self._stops[0].position <= upto:
            stop = self._stops.pop(0)
            if stop.kind is not StopKind.END:
                self.insert(self.prompt, stop.kind, at=stop.position)
        with self.timings.measuring("prefill_s"):
            mx.eval(self._states(), self._logits)
        self._cache.cost.observe(start, upto, self.timings.prefill_s - before)
        if self._logits is not None and self._cache.layout is not None and not self._cache.exact:
            self._cache.finals.put(self._namespace, self.prompt, self._logits)

    def _last_logits(self, tokens: Tokens) -> mx.array:
        """The model reads the tokens: its logits (1, vocab) behind the last one."""
        return last_logits(self._model, mx.array(tokens)[None], self.live.caches)

    def _states(self) -> list[Any]:
        return [cache.state for cache in self.live.caches]


class Warming(Prefill):
    """Reads a prompt only to have it stored: no logits, and a checkpoint at its very end (in
    exact mode at the last stop of its schedule)."""

    _has_listener = False

    def __init__(
        self, model: Any, cache: PrefixCache, prompt: Prompt, *, namespace: str = ""
    ) -> None:
        match = cache.peek(prompt, namespace=namespace, limit=len(prompt))
        super().__init__(model, cache, prompt, namespace=namespace, match=match)

    def _plan(self) -> list[Stop]:
        start, end = self.live.position, len(self.prompt)
        placement = self._cache.placement
        schedule = placement.exact_schedule if self._cache.exact else placement.schedule
        stops = [s for s in schedule(self.prompt) if s.position > start]
        if not self._cache.exact and start < end and (not stops or stops[-1].position < end):
            stops.append(Stop(end, StopKind.TAIL))
        return stops
