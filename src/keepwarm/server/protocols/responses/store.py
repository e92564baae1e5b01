"""Responses that later requests go on from: in memory, bounded, each key by itself. Event loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from keepwarm.server.errors import ApiError, refused
from keepwarm.server.protocols.responses.schema import Item

MOST_KEYS = 256
MOST_RESPONSES = 1000  # of one key
MOST_BYTES = 32 << 20  # of one key, as JSON
MOST_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Stored:
    """One response: what it was asked, what it answered, and what it went on from."""

    response: dict[str, Any]
    items: list[Item]  # its own input and output
    previous: str | None
    num_bytes: int
    since: float


@dataclass(slots=True)
class _Shelf:
    """Those of one key, the oldest first."""

    kept: OrderedDict[str, Stored] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def drop(self, name: str) -> None:
        self.num_bytes -= self.kept.pop(name).num_bytes


class Store:
    """What is too old, or too much, is forgotten; the oldest first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()

    def put(
        self,
        namespace: str,
        response: dict[str, Any],
        items: list[Item],
        previous: str | None,
        num_bytes: int,
    ) -> None:
        """Mutates."""
        shelf = self._shelf(namespace)
        shelf.kept[response["id"]] = Stored(response, items, previous, num_bytes, self._clock())
        shelf.num_bytes += num_bytes
        while len(shelf.kept) > MOST_RESPONSES or shelf.num_bytes > MOST_BYTES:
            shelf.drop(next(iter(shelf.kept)))

    def get(self, namespace: str, name: str) -> Stored:
        """Raises ApiError where it is not kept."""
        stored = self._shelf(namespace).kept.get(name)
        if stored is None:
            words = "there is no such response; responses are kept in memory, for a while"
            raise ApiError(404, words, param="response_id", code="response_not_found")
        return stored

    def delete(self, namespace: str, name: str) -> None:
        """Raises ApiError where it is not kept. Mutates."""
        self.get(namespace, name)
        self._shelf(namespace).drop(name)

    def past(self, namespace: str, name: str | None) -> list[Item]:
        """All items of the conversation that ended with this response. Raises ApiError where some
        of it is forgotten. Mutates: it counts as new again."""
        chain: list[Stored] = []
        shelf = self._shelf(namespace)
        while name is not None:
            stored = shelf.kept.get(name)
            if stored is None:
                words = (
                    "the previous response is not kept any more: send the whole conversation as"
                    " input, or store less"
                )
                raise refused(words, "previous_response_id", "previous_response_not_found")
            shelf.kept.move_to_end(name)
            chain.append(stored)
            name = stored.previous
        return [item for stored in reversed(chain) for item in stored.items]

    def _shelf(self, namespace: str) -> _Shelf:
        """That of one key, without what is too old. Mutates."""
        shelf = self._shelves.setdefault(namespace, _Shelf())
        self._shelves.move_to_end(namespace)
        while len(self._shelves) > MOST_KEYS:
            self._shelves.popitem(last=False)
        oldest = self._clock() - MOST_AGE_S
        for name in [name for name, stored in shelf.kept.items() if stored.since < oldest]:
            shelf.drop(name)
        return shelf
