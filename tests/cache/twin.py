"""The naive twin of the cache: what was stored, by its tokens, with nothing shared or forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state.base import RowState
from keepwarm.state.registry import Layout, rows_of
from tests.cache.toy import Toy

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A position of a prompt; in exact mode the chunks that lead to it tell places apart."""

    tokens: Prefix
    cuts: tuple[int, ...] = ()


@dataclass
class Twin:
    """All checkpoints of one namespace since it was last cleared."""

    toy: Toy
    exact: bool
    placement: Placement
    places: dict[Place, int] = field(default_factory=dict)  # with the bytes of their snapshots
    layout: Layout = field(init=False)
    weights: list[int] = field(init=False)  # bytes of one row, for each group

    def __post_init__(self) -> None:
        self.layout = Layout.of(self.toy.make())
        rows = rows_of(self.layout, self.layout.leaves(self.toy.cold([0])))
        self.weights = [
            sum(rows[leaf].row_bytes for leaf in group.leaves) for group in self.layout.groups
        ]

    def place(self, prompt: Prompt, position: int) -> Place:
        tokens = tuple(prompt.tokens[:position].tolist())
        return Place(tokens, tuple(self.cuts(prompt, position)) if self.exact else ())

    def cuts(self, prompt: Prompt, position: int) -> list[int]:
        return [s.position for s in self.placement.exact_schedule(prompt) if s.position <= position]

    def reference(self, prompt: Prompt, position: int) -> list[Any]:
        """Caches that have read the prompt up to `position` with no help from any cache."""
        cuts = self.cuts(prompt, position) if self.exact else []
        return self.toy.cold(prompt.tokens[:position].tolist(), cuts)

    def add(self, prompt: Prompt, live: Live, at: int | None = None) -> None:
        leaves = self.layout.leaves(live.caches)
        self.places[self.place(prompt, live.position if at is None else at)] = sum(
            self.layout.snapshot_state(leaf).measure(leaves[leaf]) for leaf in self.layout.whole
        )

    def bound(self, prompt: Prompt, limit: int) -> int:
        """The deepest position that could be restored if nothing had ever been dropped."""
        rows = self.rows()
        return max(p for p in range(limit + 1) if not p or self._has(prompt, p, rows))

    def _has(self, prompt: Prompt, position: int, rows: Sequence[set[Prefix]]) -> bool:
        if self.exact:
            on_schedule = self.cuts(prompt, position)[-1:] == [position]
            return on_schedule and self.place(prompt, position) in self.places
        if not self.layout.can_cut:
            return self.place(prompt, position) in self.places
        tokens = tuple(prompt.tokens[:position].tolist())
        return all(
            tokens[: row + 1] in stored
            for group, stored in zip(self.layout.groups, rows)
            for row in rows_in(group.state, position)
        )

    def rows(self) -> list[set[Prefix]]:
        """For each group the rows that the checkpoints take, each named by its prefix.

        Only for the default mode: in exact mode rows of other chunks are other rows.
        """
        return [
            {
                place.tokens[: row + 1]
                for place in self.places
                for row in rows_in(group.state, len(place.tokens))
            }
            for group in self.layout.groups
        ]

    @property
    def rows_bytes(self) -> int:
        """What all rows weigh when each is stored once."""
        return sum(len(rows) * weight for rows, weight in zip(self.rows(), self.weights))

    @property
    def snapshot_bytes(self) -> int:
        """What all snapshots weigh."""
        return sum(self.places.values())


def rows_in(state: RowState, position: int) -> Iterator[int]:
    """The rows that a restore at `position` takes."""
    for lo, hi in state.needs(position):
        yield from range(lo, hi)
