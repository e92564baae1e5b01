"""Random lives of a cache, in every layout of layers, against a twin that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keepwarm.cache import insert, joining
from keepwarm.cache.explain import Match, Refusal
from keepwarm.cache.intervals import merged
from keepwarm.cache.live import Live
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import Placement, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from keepwarm.state.registry import Layout
from tests.cache.toy import SMALL, TOYS, UNTHINNED, Toy, chunks, prefill
from tests.cache.twin import Twin
from tests.state.feeding import are_same, contents

# Conversations that begin alike and part, with the ends of their messages.
STEMS = (
    ([0] * 6 + [1, 0, 1, 1] * 5, (6, 10, 15, 20)),
    ([0] * 6 + [1, 0, 1, 1, 1] * 4, (6, 10, 14, 21)),
    ([0, 0, 1] * 9, (3, 9, 18)),
)
SYSTEM_LEN = 6  # of the first two
NAMESPACES = st.sampled_from(["", "", "", "other"])


@pytest.fixture(autouse=True)
def small_blocks_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two or more, where there is room: these lives are short."""
    monkeypatch.setattr(joining, "NUM_JOINED", 2)
    monkeypatch.setattr(joining, "MAX_LEN", 16)
    monkeypatch.setattr(insert, "_MAX_SCRATCH", 2)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """A stem up to some place and something of its own behind it."""
    stem, ends = draw(st.sampled_from(STEMS))
    first = stem[: draw(st.integers(0, len(stem)))]
    tokens = first + draw(st.lists(st.integers(0, 1), min_size=not first, max_size=6))
    boundaries = [
        Boundary(end, BoundaryKind.SYSTEM if end == SYSTEM_LEN else BoundaryKind.MESSAGE)
        for end in ends
        if end <= len(first)
    ]
    if draw(st.integers(0, 3)) == 0:
        boundaries = boundaries[1:]  # the same tokens, read along other stops
    if draw(st.booleans()):
        kind = draw(st.sampled_from(BoundaryKind))
        boundaries.append(Boundary(draw(st.integers(1, len(tokens))), kind))
    return Prompt(tokens, boundaries)


@dataclass
class Held:
    """A pin, and the place that must stay as long as it is held."""

    pin: Pin
    prompt: Prompt
    namespace: str
    position: int


class StoreMachine(RuleBasedStateMachine):
    """Inserts, matches, restores, pins, evictions and clears in any order."""

    toy: ClassVar[Toy]
    exact: ClassVar[bool]
    placement: ClassVar[Placement]
    is_tight: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.layout = Layout.of(self.toy.make())
        self.budget_bytes = two_prompts_bytes(self) if self.is_tight else 1 << 20
        self.cache = self.new_cache(self.budget_bytes)
        self.held: list[Held] = []
        self.has_released = False
        self.matches: list[Match] = []
        self.known: set[tuple[str, bytes]] = set()  # prompts that were read to their end
        self.forget_all()

    def new_cache(self, budget_bytes: int) -> PrefixCache:
        return PrefixCache(
            self.toy.make,
            budget_bytes=budget_bytes,
            exact=self.exact,
            placement=self.placement,
            clock=lambda: self.now,
        )

    def forget_all(self) -> None:
        self.twins = {name: Twin(self.toy, self.exact, self.placement) for name in ("", "other")}
        self.held.clear()
        self.lost_before = self._num_lost()

    def _num_lost(self) -> int:
        events = self.cache.stats().events
        lost = ("evict", "thin", "discard")
        return sum(count for name, count in events.items() if name.startswith(lost))

    @property
    def is_complete(self) -> bool:
        """Whether nothing was dropped since the last clear."""
        return self._num_lost() == self.lost_before

    # What happens

    @rule(prompt=prompts(), namespace=NAMESPACES)
    def look(self, prompt: Prompt, namespace: str) -> None:
        self.match(prompt, namespace)

    def match(self, prompt: Prompt, namespace: str) -> Match:
        is_known = not self.exact and (namespace, prompt.digest(len(prompt))) in self.known
        find = self.cache.match_to_end if is_known else self.cache.match
        match = find(prompt, namespace=namespace)
        self.matches.append(match)
        assert match.cached_len <= match.parted_at
        if match.end is not None:
            assert match.cached_len == len(prompt)
            return match
        bound = self.twins[namespace].bound(prompt, len(prompt) - (not is_known))
        assert match.cached_len <= bound
        if self.is_complete:
            assert match.cached_len == bound
        if self.exact:
            assert match.cached_len in [0, *self.twins[namespace].cuts(prompt, len(prompt))]
        return match

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """However old the match is."""
        match = data.draw(st.sampled_from(self.matches))
        live = self.cache.restore(match)
        assert live.position <= match.cached_len
        self.assert_right(match.prompt, live)

    @rule(
        prompt=prompts(),
        namespace=NAMESPACES,
        reply=st.lists(st.integers(0, 1), max_size=4),
        is_held=st.booleans(),
        is_alone=st.booleans(),
    )
    def run(
        self, prompt: Prompt, namespace: str, reply: list[int], is_held: bool, is_alone: bool
    ) -> None:
        """A request from match to reply, as the engine does it."""
        match = self.match(prompt, namespace)
        held = Held(self.cache.pin(match), prompt, namespace, match.tree_len)
        self.held.append(held)
        live = self.cache.restore(match)
        assert live.position == match.cached_len
        self.assert_right(prompt, live)
        if live.position < len(prompt):
            for chunk in chunks(self.cache.stops(match)):
                self.toy.read(live, prompt, chunk[-1].position)
                for stop in chunk:
                    if stop.kind is not StopKind.END:
                        self.insert(prompt, live, stop.kind, held, at=stop.position)
            self.known.add((namespace, prompt.digest(len(prompt))))
            if is_alone:
                self.cache.keep_end(prompt, live, namespace=namespace)
                self.cache.check()
                if (namespace, len(prompt), prompt.digest(len(prompt))) in self.checkpoints():
                    self.twins[namespace].add(prompt, live)
        self.assert_right(prompt, live)
        for token in reply:
            held.prompt = held.prompt.extended([token])
            self.toy.read(live, held.prompt, len(held.prompt))
        if reply:
            self.insert(held.prompt, live, StopKind.REPLY, held)
        if not is_held:
            self.release(held)
            if is_alone:  # the next turn does not begin with the reply
                self.cache.discard(held.prompt, len(prompt), namespace=namespace)

    def insert(
        self, prompt: Prompt, live: Live, kind: StopKind, held: Held, at: int | None = None
    ) -> None:
        twin = self.twins[held.namespace]
        before = self.checkpoints()
        done = self.cache.insert(
            prompt, live, kind=kind, namespace=held.namespace, pin=held.pin, at=at
        )
        if done.is_stored:
            held.position = live.position if at is None else at
            assert done.position == held.position
            twin.add(prompt, live, held.position)
        elif done.refusal is Refusal.OVER_BUDGET:
            assert self.is_tight
            assert self.checkpoints() == before
        elif done.refusal is Refusal.WORTH_LESS:  # what is worth still less may have gone
            assert self.is_tight
            assert self.checkpoints() <= before
        else:
            # Only a reply, which was not read along the schedule.
            assert (self.exact, done.refusal, kind) == (
                True, Refusal.OFF_SCHEDULE, StopKind.REPLY
            )  # fmt: skip

    @rule(prompt=prompts(), namespace=NAMESPACES, data=st.data())
    def insert_anywhere(self, prompt: Prompt, namespace: str, data: st.DataObject) -> None:
        """A checkpoint where none was planned, from caches that read in steps of any size."""
        live = Live(self.toy.make())
        position = data.draw(st.integers(1, len(prompt)))
        while live.position < position:
            self.toy.read(live, prompt, data.draw(st.integers(live.position + 1, position)))
        held = Held(Pin(), prompt, namespace, 0)
        on_schedule = live.cuts == self.twins[namespace].cuts(prompt, position)
        if not self.exact or (on_schedule and live.cuts[-1] == position):
            self.insert(prompt, live, StopKind.MESSAGE, held)
        else:
            done = self.cache.insert(prompt, live, namespace=namespace)
            assert done.refusal is Refusal.OFF_SCHEDULE
        held.pin.release()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(self.held)))

    def release(self, held: Held) -> None:
        # What only a pin took stays until the next one looks there.
        self.has_released = True
        held.pin.release()
        self.held = [other for other in self.held if other is not held]

    @precondition(lambda self: self.cache.stats().num_checkpoints > 6)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.has_released = False
        assert self.cache.ledger.held_bytes == 0
        self.forget_all()

    @rule(seconds=st.floats(0, 1000))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # What always holds

    def assert_right(self, prompt: Prompt, live: Live) -> None:
        """The caches are what they would be if nothing were ever cached, bit for bit."""
        reference = self.twins[""].reference(prompt, live.position)
        assert are_same(contents(live.caches), contents(reference))
        assert live.digest == prompt.digest(live.position)

    def checkpoints(self) -> set[tuple[str, int, bytes]]:
        return {
            (space.name, node.end, node.checkpoint.digest)
            for space in self.cache._spaces.values()
            for node in space.tree.nodes()
            if node.checkpoint is not None
        }

    @invariant()
    def all_is_well(self) -> None:
        self.cache.check()
        ledger, events = self.cache.ledger, self.cache.stats().events
        assert 0 <= ledger.held_bytes <= ledger.peak_bytes <= self.budget_bytes
        assert not [name for name in events if "fault" in name or "mismatch" in name]

    @invariant()
    def what_is_pinned_can_be_restored(self) -> None:
        for held in self.held:
            found = self.cache.match(held.prompt, namespace=held.namespace, limit=held.position)
            assert found.cached_len == held.position

    @precondition(lambda self: not self.has_released)
    @invariant()
    def no_window_row_is_held_that_no_checkpoint_or_pin_takes(self) -> None:
        for space in self.cache._spaces.values():
            for node in space.tree.nodes():
                for group in space.window_groups:
                    rows = merged((span.lo, span.hi) for span in node.spans[group])
                    assert rows == space.needed_rows(node, group, rows)

    @invariant()
    def each_row_is_stored_once(self) -> None:
        if self.is_complete and not self.exact:
            twins = self.twins.values()
            ledger, end = self.cache.ledger, self.cache.last_end.end
            beside = (end.rows_bytes, end.checkpoint.nbytes) if end is not None else (0, 0)
            assert ledger.rows_bytes - beside[0] == sum(t.rows_bytes for t in twins)
            assert ledger.snapshot_bytes - beside[1] == sum(t.snapshot_bytes for t in twins)


def two_prompts_bytes(machine: StoreMachine) -> int:
    """What the cache holds for two short prompts that share nothing."""
    cache = machine.new_cache(1 << 20)
    for token in (2, 3):
        prompt = Prompt([token] * 12, [Boundary(5, BoundaryKind.MESSAGE)])
        prefill(cache, machine.toy, prompt)
    return cache.ledger.held_bytes


MODES: dict[str, dict[str, Any]] = {
    "roomy": {"exact": False, "placement": UNTHINNED, "is_tight": False},
    "tight": {"exact": False, "placement": SMALL, "is_tight": True},
    "exact": {"exact": True, "placement": UNTHINNED, "is_tight": False},
    "exact_tight": {"exact": True, "placement": SMALL, "is_tight": True},
}


def machine_of(toy: Toy, mode: str) -> type[StoreMachine]:
    chosen = replace(toy, mixes_chunks=MODES[mode]["exact"])
    return type(f"Store_{toy.name}_{mode}", (StoreMachine,), {"toy": chosen, **MODES[mode]})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TOYS)
def test_cache_agrees_with_its_twin(name: str, mode: str) -> None:
    run_state_machine_as_test(machine_of(TOYS[name], mode), settings=settings(max_examples=6))


@pytest.mark.stress
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TOYS)
def test_cache_agrees_with_its_twin_for_long(name: str, mode: str) -> None:
    num_examples = max(1, settings().max_examples // 20)
    run_state_machine_as_test(
        machine_of(TOYS[name], mode), settings=settings(max_examples=num_examples)
    )
