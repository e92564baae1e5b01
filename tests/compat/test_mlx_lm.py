"""mlx-lm's interface over our store, with caches made by hand: what is fetched and what is
refused. The behaviours that mlx-lm's own tests of its class check are among them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.cache import KVCache

from keepwarm.compat import mlx_lm as compat
from keepwarm.compat.mlx_lm import LRUPromptCache
from keepwarm.errors import BadInput

from .handmade import MODEL, hybrid, is_stored, kv, read_tokens, rows, words


@pytest.fixture
def cache() -> Iterator[LRUPromptCache]:
    made = LRUPromptCache(max_size=10)
    yield made
    made.store.check()


# The interface


@pytest.mark.parametrize(
    "name",
    ["__init__", "__len__", "fetch_nearest_cache", "insert_cache", "trim_to", "stats_by_type"],
)
def test_parameters_are_those_of_mlx_lm(name: str) -> None:
    ours = inspect.signature(getattr(LRUPromptCache, name)).parameters.values()
    theirs = inspect.signature(getattr(mlx_cache.LRUPromptCache, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


def test_unknown_type_is_bad_input(cache: LRUPromptCache) -> None:
    with pytest.raises(BadInput, match="assistant, user, system, not 'tool'"):
        cache.insert_cache(MODEL, [1, 2], kv([1, 2]), cache_type="tool")


# Fetching


def test_fetch_from_empty_cache_gives_all_tokens_back(cache: LRUPromptCache) -> None:
    assert cache.fetch_nearest_cache(MODEL, [1, 2, 3]) == (None, [1, 2, 3])


def test_fetch_gives_rows_of_the_stored_beginning(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2, 3]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, 3, 4, 5])
    assert read_tokens(caches) == [1, 2, 3]
    assert rest == [4, 5]
    assert len(cache) == 1


def test_fetch_cuts_rows_where_sequences_part(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3, 4], kv([1, 2, 3, 4]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, 8, 9])
    assert read_tokens(caches) == [1, 2]
    assert rest == [8, 9]


def test_fetch_of_a_stored_beginning_leaves_one_token(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3, 4], kv([1, 2, 3, 4]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, 3])
    assert read_tokens(caches) == [1, 2]
    assert rest == [3]


def test_exact_hit_leaves_one_token_to_read(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2, 3]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, 3])
    assert read_tokens(caches) == [1, 2]
    assert rest == [3]


def test_exact_hit_on_recurrent_state_falls_back_to_checkpoint(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], hybrid([1, 2]), cache_type="user")
    cache.insert_cache(MODEL, [1, 2, 3, 4], hybrid([1, 2, 3, 4]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, 3, 4])
    assert read_tokens(caches) == [1, 2]
    assert caches[1][0].item() == 3
    assert rest == [3, 4]


def test_exact_hit_on_lone_recurrent_state_is_a_miss(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], hybrid([1, 2]))
    assert cache.fetch_nearest_cache(MODEL, [1, 2]) == (None, [1, 2])
    assert cache.fetch_nearest_cache(MODEL, [1, 2, 3])[1] == [3]


def test_single_token_is_always_left_to_read(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], kv([1, 2]))
    assert cache.fetch_nearest_cache(MODEL, [1]) == (None, [1])


def test_models_share_nothing(cache: LRUPromptCache) -> None:
    one, other = object(), object()
    cache.insert_cache(one, [1, 2, 3], kv([1, 2, 3]))
    cache.insert_cache(other, [7, 8, 9], kv([7, 8, 9]))
    assert is_stored(cache, [1, 2, 3], one)
    assert not is_stored(cache, [1, 2, 3], other)
    assert not is_stored(cache, [1, 2, 3], "0")


def test_writes_to_fetched_caches_do_not_reach_the_store(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], hybrid([1, 2]))
    caches, _ = cache.fetch_nearest_cache(MODEL, [1, 2, 3])
    caches[0].keys[...] = 7
    caches[0].update_and_fetch(*rows([9]))
    caches[1][0][...] = 7
    mx.eval([c.state for c in caches])
    caches, _ = cache.fetch_nearest_cache(MODEL, [1, 2, 3])
    assert read_tokens(caches) == [1, 2]
    assert caches[1][0].item() == 3


def test_writes_to_inserted_caches_do_not_reach_the_store(cache: LRUPromptCache) -> None:
    live = hybrid([1, 2])
    cache.insert_cache(MODEL, [1, 2], live)
    live[0].keys[...] = 7
    live[1][0][...] = 7
    mx.eval([c.state for c in live])
    caches, _ = cache.fetch_nearest_cache(MODEL, [1, 2, 3])
    assert read_tokens(caches) == [1, 2]
    assert caches[1][0].item() == 3


def test_fetched_buffers_have_room_for_what_comes(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, 2], kv([1, 2]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [1, 2, *words(3, 300)])
    num_rows = caches[0].keys.shape[2]
    caches[0].update_and_fetch(*rows([*rest, *words(4, 256)]))
    assert caches[0].keys.shape[2] == num_rows


# Refusing


@pytest.mark.parametrize("num_read", [2, 4])
def test_caches_that_read_something_else_are_refused(
    cache: LRUPromptCache, num_read: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "keepwarm.compat"):
        cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2, 3, 4][:num_read]))
    assert cache.refused == {"mismatch": 1}
    assert f"layer 0 stands at {num_read}, not at 3" in caplog.text
    assert (len(cache), cache.nbytes) == (0, 0)


def test_key_that_is_one_token_longer_is_warned_of_once(
    cache: LRUPromptCache, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "keepwarm.compat"):
        cache.insert_cache(MODEL, [1, 2, 3], kv([1, 2]))
        cache.insert_cache(MODEL, [1, 2, 3, 4], kv([1, 2, 3]))
    assert cache.refused == {"mismatch": 2}
    assert len(caplog.records) == 1
    assert "was drawn, but not read" in caplog.text


def test_caches_of_a_batch_are_refused(cache: LRUPromptCache) -> None:
    batch = KVCache()
    batch.update_and_fetch(*(mx.concatenate([a, a]) for a in rows([1, 2])))
    cache.insert_cache(MODEL, [1, 2], [batch])
    assert cache.refused == {"mismatch": 1}
    assert len(cache) == 0


def test_no_tokens_are_refused_and_never_found(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [], [KVCache()])
    assert cache.refused == {"tokens": 1}
    assert cache.fetch_nearest_cache(MODEL, []) == (None, [])


def test_tokens_that_cannot_be_told_apart_are_refused(cache: LRUPromptCache) -> None:
    strange = [1, [2, 3], 4]
    cache.insert_cache(MODEL, strange, kv([1, 2, 3]))
    assert cache.refused == {"tokens": 1}
    assert cache.fetch_nearest_cache(MODEL, strange) == (None, strange)


# What is not a token id


@pytest.mark.parametrize("image", [-123456789012345678, 1 << 40, "image", ("image", 5), 2.5])
def test_images_are_cached_like_tokens(cache: LRUPromptCache, image: Any) -> None:
    tokens = [1, image, image, 2]
    cache.insert_cache(MODEL, tokens, kv([1, 2, 3, 4]))
    caches, rest = cache.fetch_nearest_cache(MODEL, [*tokens, 5])
    assert read_tokens(caches) == [1, 2, 3, 4]
    assert rest == [5]


def test_image_never_seen_before_is_no_hit(cache: LRUPromptCache) -> None:
    cache.insert_cache(MODEL, [1, -77, 2], kv([1, 2, 3]))
    assert cache.fetch_nearest_cache(MODEL, [1, -78, 2])[1] == [-78, 2]
    assert cache.fetch_nearest_cache(MODEL, [1, "x", "y", 2])[1] == ["x", "y", 2]
    cache.insert_cache(MODEL, [1, -78, 2], kv([1, 5, 6]))
    assert len(cache) == 2


def test_names_of_images_do_not_pile_up(
    cache: LRUPromptCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat.TokenReader, "_MOST", 3)
    for image in range(-10, 0):
        cache.insert_cache(MODEL, [1, image, 2], kv([1, 100 + image, 2]))
        caches, _ = cache.fetch_nearest_cache(MODEL, [1, image, 2, 3])
        assert read_tokens(caches) == [1, 100 + image, 2]  # none that had the same name before
        assert len(cache) <= 3


# Caches that change their kind


def test_quantized_and_plain_caches_of_one_model_live_side_by_side(cache: LRUPromptCache) -> None:
    wide = mx.arange(40 * 32, dtype=mx.float32).reshape(1, 1, 40, 32)
    plain = KVCache()
    plain.update_and_fetch(wide[:, :, :10], wide[:, :, :10])
    cache.insert_cache(MODEL, words(1, 10), [plain])
    plain.update_and_fetch(wide[:, :, 10:], wide[:, :, 10:])
    quantized = plain.to_quantized(group_size=32, bits=8)
    cache.insert_cache(MODEL, words(1, 40), [quantized])

    caches, rest = cache.fetch_nearest_cache(MODEL, words(1, 50))
    assert type(caches[0]) is mlx_cache.QuantizedKVCache
    assert (caches[0].offset, len(rest)) == (40, 10)
    plain = KVCache()
    plain.update_and_fetch(wide[:, :, :10], wide[:, :, :10])
    cache.insert_cache(MODEL, words(2, 10), [plain])
    assert type(cache.fetch_nearest_cache(MODEL, words(2, 20))[0][0]) is KVCache
    assert not cache.refused
