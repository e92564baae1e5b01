"""What a request tells while it runs, and what it gives at the end. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Generic, TypeVar

from keepwarm.cache.explain import Reason
from keepwarm.prompt.kinds import Kind
from keepwarm.prompt.parse import Reply


@dataclass(slots=True)
class Timings:
    """Seconds spent in each part of a request."""

    queue_s: float = 0.0  # from the arrival to the first work on it, loading not included
    load_s: float = 0.0  # waiting for the disk
    lookup_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    insert_s: float = 0.0  # until the end is told: an engine stores the reply behind that
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


class Source(StrEnum):
    """Where the tokens that were not prefilled came from."""

    NONE = "none"
    RAM = "ram"
    DISK = "disk"
    INFLIGHT = "inflight"  # another request was computing them: this one waited for it


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How likely the model found a token of a prompt, after all tokens before it."""

    token: int
    logprob: float
    is_likeliest: bool
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token, logprob), the likeliest first


@dataclass(frozen=True, slots=True)
class Result:
    """What a request gave, what the cache did for it and how long each part took."""

    text: str  # as generated, thinking and tool calls included
    tokens: list[int]
    finish_reason: str  # "stop", "length" or "cancelled"
    prompt_tokens: int
    cached_tokens: int
    reason: Reason
    timings: Timings
    source: Source = Source.NONE
    scores: tuple[TokenScore, ...] = ()  # of the prompt's tokens, where asked for
    stop_text: str | None = None  # the stop text that ended it, which is not part of `text`
    disk_bytes: int = 0  # read from the disk for it

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    def __str__(self) -> str:
        return (
            f"{self.cached_tokens} of {self.prompt_tokens} tokens cached ({self.reason}),"
            f" first token after {self.timings.first_token_s:.3f} s"
        )


@dataclass(frozen=True, slots=True)
class Score:
    """How likely the model found the tokens of a prompt, from the first that was asked for."""

    tokens: tuple[TokenScore, ...]
    prompt_tokens: int
    cached_tokens: int

    @property
    def logprob(self) -> float:
        """The log probability of all of them together."""
        return sum(token.logprob for token in self.tokens)

    @property
    def is_greedy(self) -> bool:
        """Whether each was the likeliest in its place."""
        return all(token.is_likeliest for token in self.tokens)


@dataclass(frozen=True, slots=True)
class ChatResult(Result):
    """A result whose text was taken apart."""

    reply: Reply = field(default_factory=lambda: Reply(""))
    hygiene: tuple[str, ...] = ()  # the rules that changed the prompt, see prompt.hygiene


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
    """A piece of the reply: a token, or text that was held back. The text may be empty while a
    character, or what may be a tag, is incomplete. `kind` tells content, thoughts, calls and the
    markup around them apart; all texts together are the reply as it was generated."""

    kind: Kind = field(default=Kind.CONTENT, kw_only=True)
    token: int | None = None
    logprob: float | None = None  # of the token, when asked for
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token, logprob), the likeliest first


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The last event of a request that could not be served."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Done(Event):
    """The last event of a request that ran to its end."""

    result: Result | None = None


R = TypeVar("R", bound=Result)


class Stream(Iterator[Event], Generic[R]):
    """The events of one request; `result` runs it to its end when that is still ahead.

    As a context manager it is closed at the end of the block.
    """

    def __init__(
        self,
        events: Generator[Event, None, R],
        *,
        cancelled: Callable[[], R],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """`cancel` gives the request up where it runs elsewhere; `cancelled` is its result then."""
        self._events = events
        self._cancel = cancel
        self._cancelled = cancelled
        self._result: R | None = None
        self._error: BaseException | None = None
        self._is_over = False  # whether nothing runs any more

    def __next__(self) -> Event:
        try:
            return next(self._events)
        except StopIteration as end:
            self._is_over = True
            self._result = end.value if end.value is not None else self._result
            raise
        except BaseException as error:  # of the request, or an interrupt at the keyboard
            self._error = error
            self.close()
            raise

    def __enter__(self) -> Stream[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def result(self) -> R:
        """What the request gave. Of a stream that was closed: what there was until then, with the
        `finish_reason` "cancelled". Raises what the request failed of."""
        for _ in self:
            pass
        if self._error is not None:
            raise self._error
        if self._result is None:
            self._result = self._cancelled()
        return self._result

    def close(self) -> None:
        """Give the request up, if it has not ended. What was read until now stays in the cache."""
        if not self._is_over:
            self._is_over = True
            self._events.close()
            self._cancel()
