"""What was learned of a tokenizer and its templates, kept as long as the tokenizer. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from keepwarm.prompt.beginnings import Beginnings
from keepwarm.prompt.blocks import Remembered
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.template import Tokenizer

T = TypeVar("T")


class Latest:
    """The last few long prompts, each with all that it was made from: the same conversation comes
    again when a reply is to be another one, or a client tries once more."""

    MAX_ENTRIES = 4
    MIN_CHARS = 1 << 14  # shorter ones are made as fast
    MAX_CHARS = 1 << 22

    def __init__(self) -> None:
        self._known: list[tuple[str, object, Prompt]] = []  # the newest last
        self._lock = threading.Lock()

    def get(self, text: str, made_from: object) -> Prompt | None:
        """One for the caller alone, or None."""
        with self._lock:
            found = next((p for t, m, p in self._known if m == made_from and t == text), None)
        return found.twin() if found is not None else None

    def put(self, text: str, made_from: object, prompt: Prompt) -> None:
        """Mutates. None of the three may be changed afterwards."""
        if self.MIN_CHARS <= len(text) <= self.MAX_CHARS:
            with self._lock:
                self._known = [*self._known, (text, made_from, prompt)][-self.MAX_ENTRIES :]


class Memory:
    """What was learned of one tokenizer's templates, the oldest forgotten first, and the blocks of
    text it encoded lately."""

    MAX_ENTRIES = 4096

    def __init__(self) -> None:
        self.blocks = Remembered()
        self.beginnings = Beginnings()
        self.latest = Latest()
        self._known: dict[object, Any] = {}
        self._lock = threading.Lock()

    def recall(self, key: object, learn: Callable[[], T]) -> T:
        """What is known under `key`, learned now if it is not."""
        with self._lock:
            if key in self._known:
                known: T = self._known[key]
                return known
        return self.learn_anew(key, learn)

    def learn_anew(self, key: object, learn: Callable[[], T]) -> T:
        learned = learn()
        with self._lock:
            self._known[key] = learned
            if len(self._known) > self.MAX_ENTRIES:
                del self._known[next(iter(self._known))]
        return learned


_memories: WeakKeyDictionary[Any, Memory] = WeakKeyDictionary()


def memory_of(tokenizer: Tokenizer) -> Memory:
    try:
        return _memories.setdefault(tokenizer, Memory())
    except TypeError:
        return Memory()  # not hashable, or it takes no weak reference: learn each time
