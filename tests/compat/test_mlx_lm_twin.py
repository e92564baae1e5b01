"""Any order of inserts, fetches and trims, against a list of what was inserted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.compat.mlx_lm import LRUPromptCache

from .handmade import MODEL, ROW_BYTES, hybrid, kv, read_tokens

# Few different tokens, so that many sequences begin alike.
SEQUENCES = st.lists(st.integers(1, 2), min_size=1, max_size=9)
TYPES = st.sampled_from(["assistant", "user", "system"])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), SEQUENCES, TYPES),
        st.tuples(st.just("fetch"), SEQUENCES, st.none()),
        st.tuples(st.just("sequences"), st.integers(0, 6), st.none()),
        st.tuples(st.just("bytes"), st.integers(0, 1500), st.none()),
    ),
    max_size=25,
)


def check_fetch(cache: LRUPromptCache, tokens: list[int]) -> int:
    """What a fetch gives is the state after the tokens it says were read; how many that is."""
    caches, rest = cache.fetch_nearest_cache(MODEL, tokens)
    cached_len = len(tokens) - len(rest)
    assert rest == tokens[cached_len:]
    if caches is None:
        assert cached_len == 0
        return 0
    assert 0 < cached_len < len(tokens)
    assert read_tokens(caches) == tokens[:cached_len]
    if len(caches) == 2:
        assert caches[1][0].item() == sum(tokens[:cached_len])
    return cached_len


def check_sums(cache: LRUPromptCache) -> None:
    cache.store.check()
    assert not cache.refused
    stats = cache.stats_by_type().values()
    assert sum(share["n_sequences"] for share in stats) == len(cache)
    assert sum(share["n_bytes"] for share in stats) == cache.nbytes


@pytest.mark.parametrize("make", [kv, hybrid], ids=["rows", "hybrid"])
@given(acts=ACTS, max_size=st.integers(1, 4))
def test_no_order_of_calls_gives_a_wrong_state(
    make: Callable[[list[int]], Any], acts: list[tuple[str, Any, str]], max_size: int
) -> None:
    cache = LRUPromptCache(max_size)
    for act, what, cache_type in acts:
        if act == "insert":
            cache.insert_cache(MODEL, what, make(what), cache_type=cache_type)
            assert check_fetch(cache, [*what, 3]) == len(what)
        elif act == "fetch":
            check_fetch(cache, what)
        elif act == "sequences":
            cache.trim_to(n_sequences=what)
            assert len(cache) <= what
        else:
            cache.trim_to(n_bytes=what)
            assert cache.nbytes <= what
        assert len(cache) <= max_size
        check_sums(cache)


@given(inserts=st.lists(SEQUENCES, max_size=12), tokens=SEQUENCES)
def test_rows_are_found_as_far_as_any_sequence_begins_alike(
    inserts: list[list[int]], tokens: list[int]
) -> None:
    cache = LRUPromptCache(max_size=100)
    for sequence in inserts:
        cache.insert_cache(MODEL, sequence, kv(sequence))
    expected = max((shared_len(sequence, tokens) for sequence in inserts), default=0)
    assert check_fetch(cache, tokens) == min(expected, len(tokens) - 1)
    tips = {tuple(s) for s in inserts if not any(is_beginning(s, other) for other in inserts)}
    assert len(cache) == len(tips)
    nodes = {tuple(s[:end]) for s in inserts for end in range(1, len(s) + 1)}
    assert cache.nbytes == len(nodes) * ROW_BYTES
    check_sums(cache)


def shared_len(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def is_beginning(sequence: list[int], other: list[int]) -> bool:
    return len(sequence) < len(other) and other[: len(sequence)] == sequence
