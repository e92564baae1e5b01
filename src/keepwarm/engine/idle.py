"""Idle prefill: while nothing runs, read what the next turn of a conversation will begin with.

Engine thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Warming
from keepwarm.prompt.boundaries import Prompt, shared_len

# Less is not worth a pass over the weights: the next request reads it along with its own.
_MIN_TOKENS = 16

# Conversations to come back to, and readings whose use is still to be seen.
_MAX_OFFERS = 32
_MAX_RECORDS = 256


@dataclass(frozen=True, slots=True)
class Offer:
    """The beginning of a turn that may come."""

    prompt: Prompt
    namespace: str


@dataclass(frozen=True, slots=True)
class _Record:
    """Tokens `start ... end - 1` of a prompt were read while nothing ran."""

    start: int
    end: int


class Idle:
    """What could be read, what is being read, and what it was good for."""

    def __init__(self, model: Any, cache: PrefixCache) -> None:
        self._model = model
        self._cache = cache
        self._offers: deque[Offer] = deque(maxlen=_MAX_OFFERS)
        self._current: tuple[Offer, Warming] | None = None
        self._records: OrderedDict[tuple[str, bytes], _Record] = OrderedDict()
        self.num_tokens = 0
        self.seconds = 0.0
        self.num_saved = 0

    @property
    def has_work(self) -> bool:
        return self._current is not None or bool(self._offers)

    @property
    def next_len(self) -> int:
        """The tokens that live caches will be made for by the next step; 0 when they are there."""
        return len(self._offers[-1].prompt) if self._offers and self._current is None else 0

    def drop_next(self) -> None:
        """There is no room for the newest offer. Mutates."""
        self._offers.pop()

    @property
    def reading(self) -> Prompt | None:
        """The prompt that live caches are held for."""
        return self._current[0].prompt if self._current else None

    def offer(self, prompt: Prompt, namespace: str) -> None:
        """The last conversation is read first. Mutates."""
        self._forget(prompt, namespace)
        self._offers.append(Offer(prompt, namespace))

    def step(self, max_tokens: int) -> None:
        """Read a small chunk of the newest offer. Mutates."""
        if self._current is None:
            offer = self._offers.pop()
            warming = Warming(self._model, self._cache, offer.prompt, namespace=offer.namespace)
            if warming.num_ahead < _MIN_TOKENS:
                warming.close()
                return
            self._current = (offer, warming)
        offer, warming = self._current
        began, start = perf_counter(), warming.live.position
        try:
            warming.advance(max_tokens)
        except Exception:
            self._end()
            raise
        self.seconds += perf_counter() - began
        self.num_tokens += warming.live.position - start
        if warming.is_done:
            self._end()

    def pause(self) -> None:
        """A request came: keep what was read, and come back later. Mutates."""
        if self._current is not None:
            offer, warming = self._current
            self.give_up()
            if not warming.is_done:
                self._offers.append(offer)

    def give_up(self) -> None:
        """Keep what was read, and leave the rest. Mutates."""
        if self._current is not None:
            self._current[1].keep()
            self._end()

    def _end(self) -> None:
        assert self._current is not None
        (offer, warming), self._current = self._current, None
        end = warming.stored_len
        if end > warming.cached_len:
            key = (offer.namespace, offer.prompt.digest(end))
            self._records[key] = _Record(warming.cached_len, end)
            while len(self._records) > _MAX_RECORDS:
                self._records.popitem(last=False)
        warming.close()
        if end == len(offer.prompt):
            self._cache.spare_tail(offer.prompt, namespace=offer.namespace)

    def came(self, prompt: Prompt, namespace: str, cached_len: int) -> None:
        """A request came: count what it found, and drop what it makes superfluous. Mutates."""
        self._forget(prompt, namespace)
        own = [(record.end, key) for key, record in self._records.items() if key[0] == namespace]
        for end, key in sorted(own):  # rising, so that each digest goes on from the last
            if end <= cached_len and prompt.digest(end) == key[1]:
                record = self._records.pop(key)
                self.num_saved += record.end - record.start

    def _forget(self, prompt: Prompt, namespace: str) -> None:
        """Drop offers of the conversation that `prompt` goes on with."""
        kept = [
            offer
            for offer in self._offers
            if offer.namespace != namespace
            or shared_len(offer.prompt.tokens, prompt.tokens) < 0.9 * len(offer.prompt)
        ]
        self._offers = deque(kept, maxlen=_MAX_OFFERS)
