"""The prompts that were read lately, each caller's apart: a new one is compared with these.

Tokens, not texts; bounded. Event loop and its worker threads: a lock keeps the list whole.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from keepwarm.prompt.boundaries import BoundaryKind, Prompt, Tokens, shared_len
from keepwarm.prompt.messages import Message, num_leading_system
from keepwarm.prompt.template import digest

# A long conversation is compared with its own last turns; agents run a few side by side.
_MAX_PROMPTS = 16  # of one caller
_MAX_BYTES = 32 << 20  # of all callers
_MAX_ANSWERS = 100  # of one caller; these hold no tokens
_MAX_CALLERS = 256


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and what it was written from: what a cause is proven by."""

    prompt: Prompt
    messages: Sequence[Message] = ()
    tools: tuple[tuple[str, bytes], ...] = ()  # name and digest of each
    template: bytes = b""  # digest of the template's arguments

    @classmethod
    def chat(
        cls,
        prompt: Prompt,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        template_kwargs: dict[str, Any],
    ) -> Asked:
        named = [
            (str((t.get("function") or t).get("name", "")), digest(repr(t))) for t in tools or ()
        ]
        return cls(prompt, messages, tuple(named), digest(repr(sorted(template_kwargs.items()))))

    @property
    def system_end(self) -> int | None:
        """Where the system part ends, if that is proven."""
        ends = [b.position for b in self.prompt.boundaries if b.kind is BoundaryKind.SYSTEM]
        return ends[0] if ends else None

    def place(self, position: int) -> str:
        """What the token at `position` belongs to, as far as boundaries are proven."""
        ends = [b for b in self.prompt.boundaries if b.kind in _MESSAGES]
        system_end = self.system_end
        if system_end is not None and position < system_end:
            return "the system part"
        index = sum(b.position <= position for b in ends)
        if index >= len(ends):
            return "the generation prompt" if ends else "the prompt"
        first = num_leading_system(self.messages) if system_end is not None else 0
        if len(ends) + first != len(self.messages):
            return "a message"  # which one is not certain
        return f"message {index + first + 1} ({self.messages[index + first].get('role')})"


_MESSAGES = (BoundaryKind.MESSAGE, BoundaryKind.USER)


@dataclass(frozen=True, slots=True)
class Seen:
    """A prompt that was read, and the reply to it. No texts."""

    tokens: Tokens  # of both
    prompt_len: int
    num_messages: int
    tools: tuple[tuple[str, bytes], ...]
    template: bytes
    has_thought: bool = False
    at: float = field(default_factory=monotonic)

    @classmethod
    def of(cls, asked: Asked, reply: Sequence[int], *, has_thought: bool = False) -> Seen:
        prompt = asked.prompt
        tokens = prompt.extended(reply).tokens if len(reply) else prompt.tokens
        about = (len(asked.messages), asked.tools, asked.template)
        return cls(tokens, len(prompt), *about, has_thought=has_thought)


class Recent:
    """What was read lately, by namespace."""

    def __init__(self) -> None:
        self._by_namespace: OrderedDict[str, deque[Seen]] = OrderedDict()
        self._answers: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0

    def answered(self, caller: str, told: dict[str, Any]) -> None:
        """Remember what was said of a request. Mutates."""
        with self._lock:
            answers = self._answers.setdefault(caller, deque(maxlen=_MAX_ANSWERS))
            self._answers.move_to_end(caller)
            answers.append(told)
            if len(self._answers) > _MAX_CALLERS:
                self._answers.popitem(last=False)

    def last(self, caller: str, count: int) -> list[dict[str, Any]]:
        """What was said of this caller's last requests, the oldest first."""
        with self._lock:
            return list(self._answers.get(caller, ()))[-count:]

    def add(self, namespace: str, seen: Seen) -> None:
        """Mutates; the oldest ones go where there are too many."""
        with self._lock:
            prompts = self._by_namespace.setdefault(namespace, deque())
            self._by_namespace.move_to_end(namespace)
            prompts.append(seen)
            self.nbytes += seen.tokens.nbytes
            if len(prompts) > _MAX_PROMPTS:
                self._drop_oldest(namespace)
            while self.nbytes > _MAX_BYTES and self._by_namespace:
                self._drop_oldest(next(iter(self._by_namespace)))

    def nearest(self, namespace: str, tokens: Tokens) -> tuple[Seen, int] | None:
        """The one that begins with the most of `tokens`, the latest of several, and with how many;
        None where there is none of this namespace."""
        with self._lock:
            prompts = list(self._by_namespace.get(namespace, ()))
        found = [(shared_len(seen.tokens, tokens), i) for i, seen in enumerate(prompts)]
        if not found:
            return None
        shared, i = max(found)
        return prompts[i], shared

    def _drop_oldest(self, namespace: str) -> None:
        prompts = self._by_namespace[namespace]
        self.nbytes -= prompts.popleft().tokens.nbytes
        if not prompts:
            del self._by_namespace[namespace]


_GRAM = 16
_FACTORS = np.random.default_rng(7).integers(1, 2**63, _GRAM, dtype=np.uint64) | np.uint64(1)


def num_seen(tokens: Tokens, before: Tokens) -> int:
    """How many of `tokens` stand in runs of 16 or more that stand somewhere in `before` too."""
    if len(tokens) < _GRAM or len(before) < _GRAM:
        return 0
    grams, stored = _grams(tokens), np.sort(_grams(before))
    known = stored[np.searchsorted(stored, grams) % len(stored)] == grams
    # A run that is known covers all its tokens.
    starts = np.zeros(len(tokens) + 1, dtype=np.int64)
    places = np.nonzero(known)[0]
    np.add.at(starts, places, 1)
    np.add.at(starts, places + _GRAM, -1)
    return int((np.cumsum(starts[:-1]) > 0).sum())


def _grams(tokens: Tokens) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of each run of so many tokens. In long vectors: numpy lets go of the interpreter."""
    wide = tokens.astype(np.uint64)
    hashed = np.zeros(len(tokens) - _GRAM + 1, dtype=np.uint64)
    for i, factor in enumerate(_FACTORS):
        hashed += factor * wide[i : i + len(hashed)]
    return hashed
