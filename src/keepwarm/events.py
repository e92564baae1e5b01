"""What a request tells while it runs, and what it gives at the end. Plain data."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from keepwarm.cache.explain import Reason
from keepwarm.errors import BadInput

if TYPE_CHECKING:
    from keepwarm.prompt.parse import Reply


@dataclass(slots=True)
class Timings:
    """Seconds spent in each part of a request."""

    lookup_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    insert_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float = 0.0  # from the start to the first token

    @contextmanager
    def measuring(self, part: str) -> Iterator[None]:
        """Adds the time that the block takes to one part. Mutates."""
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + perf_counter() - start)


@dataclass(frozen=True, slots=True)
class Result:
    """What a request gave, what the cache did for it and how long each part took."""

    text: str  # as generated, thinking and tool calls included
    reply: Reply  # the same, taken apart
    tokens: list[int]
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    cached_tokens: int
    reason: Reason
    timings: Timings

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    def __str__(self) -> str:
        return (
            f"{self.cached_tokens} of {self.prompt_tokens} tokens cached ({self.reason}),"
            f" first token after {self.timings.first_token_s:.3f} s"
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Every event has a text, so that printing them all just works."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Reading(Event):
    """The prompt has been read up to `position`; `cached_tokens` came from the cache."""

    position: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Delta(Event):
    """A piece of the reply. The text may be empty while a character is incomplete."""

    token: int = 0


@dataclass(frozen=True, slots=True)
class Done(Event):
    """The last event of a request that ran to its end."""

    result: Result | None = None


class Stream(Iterator[Event]):
    """The events of one request; `result` runs it to its end when that is still ahead."""

    def __init__(self, events: Generator[Event, None, None]) -> None:
        self._events = events
        self._result: Result | None = None

    def __next__(self) -> Event:
        event = next(self._events)
        if isinstance(event, Done):
            self._result = event.result
        return event

    @property
    def result(self) -> Result:
        """Raises BadInput when the stream was closed before its end."""
        for _ in self:
            pass
        if self._result is None:
            raise BadInput("the stream was closed before its end")
        return self._result

    def close(self) -> None:
        """Give the request up. What was read until now stays in the cache."""
        self._events.close()
