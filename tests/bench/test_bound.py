"""The most that any cache could have spared."""

from __future__ import annotations

from keepwarm.bench.bound import Seen


def test_nothing_is_spared_of_the_first_prompt() -> None:
    assert Seen().max_cached_len([1, 2, 3]) == 0


def test_longest_beginning_counts_whichever_prompt_had_it() -> None:
    seen = Seen()
    seen.add([1, 2, 3, 4, 5])
    seen.add([1, 2, 9])
    assert seen.max_cached_len([1, 2, 3, 4, 7, 8]) == 4
    assert seen.max_cached_len([1, 2, 9, 9]) == 3
    assert seen.max_cached_len([2, 3]) == 0


def test_replies_were_seen_too() -> None:
    seen = Seen()
    seen.add([1, 2], [3, 4])
    assert seen.max_cached_len([1, 2, 3, 4, 5]) == 4


def test_one_token_is_always_read() -> None:
    seen = Seen()
    seen.add([1, 2, 3])
    assert seen.max_cached_len([1, 2, 3]) == 2
    assert seen.max_cached_len([1, 2]) == 1
