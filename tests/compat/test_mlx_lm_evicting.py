"""What the cache with mlx-lm's interface counts, and what goes first when there is too much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepwarm.compat import mlx_lm as compat
from keepwarm.compat.mlx_lm import LRUPromptCache
from keepwarm.errors import BadInput

from .handmade import MODEL, ROW_BYTES, hybrid, is_stored, kv, words


@pytest.fixture
def cache() -> Iterator[LRUPromptCache]:
    made = LRUPromptCache(max_size=10)
    yield made
    made.store.check()


# Counting


def test_longer_sequence_takes_the_place_of_its_beginning(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], kv([1, 2]))
    assert (len(cache), cache.nbytes) == (1, 2 * ROW_BYTES)
    cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2, 3]))
    assert (len(cache), cache.nbytes) == (1, 3 * ROW_BYTES)


def test_sequence_that_parts_is_another_and_shares_rows(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2, 3]))
    cache.insert_cache(MODEL, [1, 2, 4], kv([1, 2, 4]))
    assert (len(cache), cache.nbytes) == (2, 4 * ROW_BYTES)


def test_checkpoints_on_the_way_belong_to_their_sequence(cache: LRUPromptCache) -> None:
    for end, kind in ((2, "system"), (4, "user"), (6, "assistant")):
        tokens = words(1, end)
        cache.insert_cache(MODEL, tokens, hybrid(tokens), cache_type=kind)
    assert len(cache) == 1
    assert cache.nbytes == 6 * ROW_BYTES + 3 * 4


def test_checkpoints_of_a_long_chat_are_thinned(cache: LRUPromptCache) -> None:
    for end in range(8, 488, 8):
        cache.insert_cache(MODEL, words(1, end), hybrid(words(1, end)))
    assert cache.store.stats().num_checkpoints == cache.store.placement.keep_recent
    assert cache.fetch_nearest_cache(MODEL, words(1, 488))[1] == words(1, 488)[480:]


def test_types_add_up_and_shared_bytes_count_once(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3, 4], kv([1, 2, 3, 4]))
    cache.insert_cache(MODEL, [1, 2, 5], kv([1, 2, 5]), cache_type="user")
    cache.insert_cache(MODEL, [7], kv([7]), cache_type="system")
    assert cache.stats_by_type() == {
        "assistant": {"n_sequences": 1, "n_bytes": 2 * ROW_BYTES},
        "user": {"n_sequences": 1, "n_bytes": 3 * ROW_BYTES},
        "system": {"n_sequences": 1, "n_bytes": ROW_BYTES},
    }
    assert cache.nbytes == 6 * ROW_BYTES


def test_empty_cache_counts_nothing(cache: LRUPromptCache) -> None:
    nothing = {"n_sequences": 0, "n_bytes": 0}
    assert cache.stats_by_type() == {"assistant": nothing, "user": nothing, "system": nothing}
    assert (len(cache), cache.nbytes) == (0, 0)


# Evicting by number


def test_least_recently_used_goes_first() -> None:
    cache = LRUPromptCache(max_size=2)
    for first in (1, 2, 1, 3):  # the second insert of 1 is a use of it
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    assert [is_stored(cache, words(first)) for first in (1, 2, 3)] == [True, False, True]
    cache.store.check()


def test_sequence_that_was_hit_often_is_not_next_to_go() -> None:
    cache = LRUPromptCache(max_size=10)
    for first in range(10):
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    for _ in range(50):
        assert is_stored(cache, words(0))
    cache.insert_cache(MODEL, words(10), kv(words(10)))
    assert len(cache) == 10
    assert [is_stored(cache, words(first)) for first in range(11)] == [True, False, *[True] * 9]
    cache.store.check()


def test_prompts_outlive_replies() -> None:
    cache = LRUPromptCache(max_size=2)
    cache.insert_cache(MODEL, words(1), kv(words(1)), cache_type="user")
    for first in (2, 3, 4):
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    assert [is_stored(cache, words(first)) for first in (1, 2, 3, 4)] == [True, False, False, True]
    assert cache.stats_by_type()["user"]["n_sequences"] == 1
    cache.store.check()


def test_new_sequence_is_never_the_one_to_go() -> None:
    cache = LRUPromptCache(max_size=1)
    cache.insert_cache(MODEL, words(1), kv(words(1)), cache_type="system")
    cache.insert_cache(MODEL, words(2), kv(words(2)), cache_type="assistant")
    assert [is_stored(cache, words(first)) for first in (1, 2)] == [False, True]
    cache.store.check()


def test_evicted_sequence_takes_its_checkpoints_along() -> None:
    cache = LRUPromptCache(max_size=1)
    cache.insert_cache(MODEL, words(1, 4), hybrid(words(1, 4)), cache_type="user")
    cache.insert_cache(MODEL, words(1, 8), hybrid(words(1, 8)))
    cache.insert_cache(MODEL, words(2), hybrid(words(2)))
    assert len(cache) == 1
    assert cache.nbytes == 8 * ROW_BYTES + 4
    cache.store.check()


def test_checkpoint_on_the_way_stays_as_long_as_its_sequence() -> None:
    cache = LRUPromptCache(max_size=2)
    # The checkpoint at 600 is the oldest; it lies too far from the end to be thinned.
    for first, count in ((1, 600), (2, 8), (1, 1200), (3, 8)):
        cache.insert_cache(MODEL, words(first, count), hybrid(words(first, count)))
    assert not is_stored(cache, [*words(2), 5])
    assert is_stored(cache, [*words(1, 600), 5])
    cache.store.check()


def test_shared_checkpoint_outlives_the_sequences_that_went_on_from_it() -> None:
    cache = LRUPromptCache(max_size=2)
    system = words(0)
    cache.insert_cache(MODEL, system, hybrid(system), cache_type="system")
    for first in range(1, 6):
        tokens = [*system, *words(first)]
        cache.insert_cache(MODEL, tokens, hybrid(tokens))
    assert len(cache) == 2
    assert cache.fetch_nearest_cache(MODEL, [*system, 5])[1] == [5]
    cache.store.check()


def test_size_of_zero_keeps_nothing() -> None:
    cache = LRUPromptCache(max_size=0)
    cache.insert_cache(MODEL, [1, 2], kv([1, 2]))
    assert (len(cache), cache.nbytes) == (0, 0)


# Evicting by bytes


def test_budget_is_never_passed_and_the_oldest_goes() -> None:
    room = 3 * 8 * ROW_BYTES + 8 * ROW_BYTES  # three sequences, and what cutting one may take
    cache = LRUPromptCache(max_size=100, max_bytes=room)
    for first in range(1, 5):
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    assert [is_stored(cache, words(first)) for first in range(1, 5)] == [False, True, True, True]
    assert cache.store.stats().peak_bytes <= room
    cache.store.check()


def test_sequence_over_the_budget_is_refused_and_evicts_nothing() -> None:
    cache = LRUPromptCache(max_bytes=20 * ROW_BYTES)
    cache.insert_cache(MODEL, words(1), kv(words(1)))
    cache.insert_cache(MODEL, words(2, 100), kv(words(2, 100)))
    assert is_stored(cache, words(1))
    assert cache.refused == {"over_budget": 1}
    cache.store.check()


def test_unbounded_budget_is_a_share_of_the_memory_left_when_first_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = LRUPromptCache()
    monkeypatch.setattr(compat, "default_budget_bytes", lambda: 1000)
    assert cache.store.ledger.budget_bytes == 1000
    assert LRUPromptCache(max_bytes=10).store.ledger.budget_bytes == 10


def test_negative_budget_is_bad_input() -> None:
    with pytest.raises(BadInput, match="cannot be negative"):
        LRUPromptCache(max_bytes=-1)


@pytest.mark.parametrize(
    ("num_kept", "stored"), [(2, [3, 4]), (0, []), (-5, []), (9, [1, 2, 3, 4])]
)
def test_trim_to_sequences_keeps_the_most_recent(
    cache: LRUPromptCache, num_kept: int, stored: list[int]
) -> None:
    for first in range(1, 5):
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    cache.trim_to(n_sequences=num_kept)
    assert [f for f in range(1, 5) if is_stored(cache, words(f))] == stored


@pytest.mark.parametrize(("num_rows", "num_kept"), [(31, 3), (16, 2), (0, 0), (-5, 0), (32, 4)])
def test_trim_to_bytes_stops_as_soon_as_it_may(
    cache: LRUPromptCache, num_rows: int, num_kept: int
) -> None:
    for first in range(1, 5):
        cache.insert_cache(MODEL, words(first), kv(words(first)))
    cache.trim_to(n_bytes=num_rows * ROW_BYTES)
    assert (len(cache), cache.nbytes) == (num_kept, num_kept * 8 * ROW_BYTES)


def test_trim_to_nothing_in_particular_keeps_all(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], kv([1, 2]))
    cache.trim_to()
    assert len(cache) == 1


def test_nothing_that_fits_is_refused_however_much_the_rest_is_worth() -> None:
    cache = LRUPromptCache(max_size=10, max_bytes=8 * ROW_BYTES)
    for end in range(1, 8):
        cache.insert_cache(MODEL, words(1, end), kv(words(1, end)))
        cache.fetch_nearest_cache(MODEL, [*words(1, end), 99])
    cache.insert_cache(MODEL, [50, 51, 52], kv([50, 51, 52]))
    assert is_stored(cache, [50, 51, 52])
    assert not cache.refused
    cache.store.check()
