"""What was learned of a tokenizer and its templates, kept as long as the tokenizer. Any thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
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
    MAX_CHARS = 1 << 21  # of the text, and of what it was made from

    def __init__(self) -> None:
        self._known: list[tuple[str, object, Prompt]] = []  # the one used last at the end
        self._lock = threading.Lock()

    def get(self, text: str, made_from: object) -> Prompt | None:
        """One for the caller alone, or None. Mutates: it counts as used."""
        with self._lock:
            at = self._place(text, made_from)
            if at is None:
                return None
            self._known.append(self._known.pop(at))
            return self._known[-1][2].twin()

    def put(self, text: str, made_from: object, prompt: Prompt) -> None:
        """Mutates. None of the three may be changed afterwards."""
        is_worth_it = self.MIN_CHARS <= len(text) <= self.MAX_CHARS
        if not is_worth_it or num_chars(made_from, self.MAX_CHARS) > self.MAX_CHARS:
            return
        with self._lock:
            at = self._place(text, made_from)
            if at is not None:  # others asked the same meanwhile
                del self._known[at]
            self._known = [*self._known, (text, made_from, prompt)][-self.MAX_ENTRIES :]

    def _place(self, text: str, made_from: object) -> int | None:
        for i, (its_text, its_origin, _) in enumerate(self._known):
            try:
                if its_origin == made_from and its_text == text:
                    return i
            except ValueError:  # what cannot be compared, such as an array in a message
                continue
        return None


def num_chars(value: object, at_most: int) -> int:
    """Of all strings in it; when it is more than that, not all are counted."""
    if isinstance(value, str | bytes):
        return len(value)
    items: Iterable[object] = ()
    if isinstance(value, Mapping):
        items = itertools.chain(value, value.values())
    elif isinstance(value, list | tuple):
        items = value
    total = 1
    for item in items:
        total += num_chars(item, at_most)
        if total > at_most:
            break
    return total


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
