"""A conversation that rests keeps its end, what others start from, and little else."""

from __future__ import annotations

import pytest

from keepwarm.cache.placement import Placement, Stop, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.thinning import Thinning
from keepwarm.prompt.boundaries import Prompt
from tests.cache.stores import cache_for, checkpoints
from tests.cache.toy import TOYS, store_at

NAME = "rows_snapshot"
TOY = TOYS[NAME]
# Every checkpoint of a growing path stays, since all are among the last ones; of one that rests all
# lie too close together.
PLACEMENT = Placement(min_span=20, prefill_step=20, keep_recent=9)
FINE = Placement(min_span=4, prefill_step=20)
FIRST = list(range(40))
OTHER = [99] * 20


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> PrefixCache:
    """Its snapshots are as dear as can be."""
    monkeypatch.setattr(Thinning, "_spacing", lambda self, path: 40)
    return cache_for(NAME, placement=PLACEMENT)


def stops(*places: tuple[int, StopKind]) -> list[Stop]:
    return [Stop(position, kind) for position, kind in places]


def test_it_keeps_its_end_once_another_goes_on(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6, 9, 12])
    assert checkpoints(cache) == [3, 6, 9, 12]
    store_at(cache, TOY, OTHER, [5])
    cache.check()
    assert checkpoints(cache) == [5, 12]
    assert cache.match(Prompt(FIRST)).cached_len == 12
    assert cache.stats().events["thinned"] == 3


def test_where_there_are_no_rows_nothing_is_dear() -> None:
    cache = cache_for("snapshot", placement=FINE)
    store_at(cache, TOYS["snapshot"], FIRST, [3, 8, 12, 18, 24])
    store_at(cache, TOYS["snapshot"], OTHER, [5])
    cache.check()
    assert checkpoints(cache) == [3, 5, 8, 12, 18, 24]


def test_it_goes_on_from_there_and_rests_again(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6])
    store_at(cache, TOY, OTHER, [5])
    store_at(cache, TOY, FIRST, [9, 12])
    assert checkpoints(cache) == [5, 6, 9, 12]
    store_at(cache, TOY, OTHER, [8])
    cache.check()
    assert checkpoints(cache) == [5, 8, 12]


def test_what_a_request_holds_is_not_at_rest(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6])
    with cache.pin(cache.match(Prompt(FIRST))):
        store_at(cache, TOY, OTHER, [5])
        assert checkpoints(cache) == [3, 5, 6]
    store_at(cache, TOY, OTHER, [8])
    cache.check()
    assert checkpoints(cache) == [5, 6, 8]


def test_what_two_paths_hang_on_stays(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6, 9])
    store_at(cache, TOY, [*FIRST[:6], 77, 77, 77], [9])
    store_at(cache, TOY, OTHER, [5])
    cache.check()
    assert checkpoints(cache) == [5, 6, 9, 9]


def test_one_that_was_evicted_meanwhile_is_forgotten(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6])
    cache.evict_to(0)
    store_at(cache, TOY, OTHER, [5])
    cache.check()
    assert checkpoints(cache) == [5]


def test_one_of_another_namespace_rests_too(cache: PrefixCache) -> None:
    store_at(cache, TOY, FIRST, [3, 6], namespace="one")
    store_at(cache, TOY, FIRST, [5], namespace="two")
    cache.check()
    assert (checkpoints(cache, "one"), checkpoints(cache, "two")) == ([6], [5])


def test_where_snapshots_are_cheap_the_last_ones_stay() -> None:
    """The same prompt may be asked again."""
    path = stops(*((position, StopKind.MESSAGE) for position in (2, 3, 4, 6, 8)))
    assert [s.position for s in FINE.superfluous_at_rest(path, spacing=4)] == [2, 3]
    assert [s.position for s in FINE.superfluous_at_rest(path, spacing=30)] == [2, 3, 4, 6]


def test_end_of_a_reply_does_not_stand_for_that_of_its_prompt() -> None:
    """It is dropped when the next turn turns out not to begin with it."""
    path = stops((2, StopKind.MESSAGE), (6, StopKind.TAIL), (8, StopKind.REPLY))
    assert [s.position for s in FINE.superfluous_at_rest(path, spacing=30)] == [2]


def test_dear_snapshots_lie_further_apart_than_cheap_ones() -> None:
    """As far as rows weigh as much as a snapshot."""
    path = stops(*((position, StopKind.MESSAGE) for position in range(5, 41, 5)))
    kept = {
        spacing: [s.position for s in path if s not in FINE.superfluous_at_rest(path, spacing)]
        for spacing in (0, 12, 30)
    }
    assert kept == {0: [5, 10, 15, 20, 25, 30, 35, 40], 12: [10, 20, 30, 35, 40], 30: [10, 40]}


@pytest.mark.parametrize(
    ("position", "kind", "stays"),
    [
        (8, StopKind.SYSTEM, True),  # other conversations start from it
        (3, StopKind.SYSTEM, False),  # so short that nobody would miss it
        (3, StopKind.MARK, True),  # a client asked for it
        (3, StopKind.BRANCH, True),
        (8, StopKind.MESSAGE, False),
    ],
)
def test_kinds_that_stay(position: int, kind: StopKind, stays: bool) -> None:
    path = stops((position, kind), (10, StopKind.TAIL))
    assert (FINE.superfluous_at_rest(path, spacing=100) == []) is stays


def test_without_thinning_nothing_goes() -> None:
    placement = Placement(min_span=20, prefill_step=20, thinning=0.0)
    cache = cache_for(NAME, placement=placement)
    store_at(cache, TOY, FIRST, [3, 6, 9])
    store_at(cache, TOY, OTHER, [5])
    assert checkpoints(cache) == [3, 5, 6, 9]
