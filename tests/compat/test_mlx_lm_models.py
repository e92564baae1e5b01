"""Real models of every kind behind mlx-lm's interface: answers as without a cache, less read
again and less held than with mlx-lm's own class."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import LRUPromptCache as PlainPromptCache

from keepwarm.compat.mlx_lm import LRUPromptCache

from ..architectures.zoo import ARCHITECTURES
from .turns import Turn, cold, serve

# Attention only; recurrent layers and attention; sliding windows (of 16) and attention.
NAMES = ("llama", "qwen3_5", "gpt_oss")
SYSTEM_LEN = 50


@functools.cache
def build(name: str) -> Any:
    return ARCHITECTURES[name].build(mx.float32)


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture
def cache() -> Iterator[LRUPromptCache]:
    made = LRUPromptCache()
    yield made
    made.store.check()
    assert not made.refused
    stats = made.stats_by_type().values()
    assert sum(share["n_bytes"] for share in stats) == made.nbytes
    assert sum(share["n_sequences"] for share in stats) == len(made)


def words(seed: int, count: int) -> list[int]:
    return [random.Random(1000 * seed + i).randrange(128) for i in range(count)]


def assert_as_cold(model: Any, turn: Turn, prompt: list[int]) -> None:
    """Up to what another cut of the same prompt into chunks changes."""
    assert mx.allclose(turn.logits, cold(model, prompt), rtol=1e-3, atol=1e-4)


def test_growing_chat_reads_only_what_is_new(model: Any, cache: LRUPromptCache) -> None:
    tokens = words(0, SYSTEM_LEN)
    stored_len = 0
    for turn in range(4):
        prompt = [*tokens, *words(turn + 1, 20)]
        answer = serve(cache, model, prompt, SYSTEM_LEN)
        assert answer.cached_len == stored_len
        assert_as_cold(model, answer, prompt)
        tokens, stored_len = answer.tokens, len(answer.tokens)
    assert len(cache) == 1


def test_other_question_starts_from_the_system_prompt(model: Any, cache: LRUPromptCache) -> None:
    system = words(0, SYSTEM_LEN)
    serve(cache, model, [*system, 1, *words(1, 20)], SYSTEM_LEN)
    prompt = [*system, 2, *words(2, 20)]
    answer = serve(cache, model, prompt, SYSTEM_LEN)
    assert answer.cached_len == SYSTEM_LEN
    assert_as_cold(model, answer, prompt)
    assert len(cache) == 2


def test_reply_asked_for_again_reads_one_token_and_gives_the_same_bits(
    model: Any, cache: LRUPromptCache
) -> None:
    prompt = words(0, SYSTEM_LEN + 30)
    first = serve(cache, model, prompt, SYSTEM_LEN)
    again = serve(cache, model, prompt, SYSTEM_LEN)
    assert again.cached_len == len(prompt) - 1
    assert mx.array_equal(first.logits, again.logits)
    assert first.tokens == again.tokens


def test_turn_whose_reply_was_edited_starts_before_it(model: Any, cache: LRUPromptCache) -> None:
    prompt = words(0, SYSTEM_LEN + 30)
    serve(cache, model, prompt, SYSTEM_LEN, reply_len=20)
    edited = [*prompt, *words(5, 30)]
    answer = serve(cache, model, edited, SYSTEM_LEN)
    assert answer.cached_len >= len(prompt) - 1
    assert_as_cold(model, answer, edited)


@dataclass(frozen=True)
class Outcome:
    """Of six chats that take turns."""

    cached_share: float  # of all prompt tokens
    chats: list[list[int]]
    nbytes: int


def take_turns(cache: Any, model: Any) -> Outcome:
    """Six chats of two turns, each with a system prompt of its own."""
    chats = [words(chat, SYSTEM_LEN + 20) for chat in range(6)]
    num_cached = num_tokens = 0
    for turn in range(2):
        for chat in range(6):
            prompt = [*chats[chat], *words(10 * turn + chat, 20)]
            answer = serve(cache, model, prompt, SYSTEM_LEN, reply_len=3)
            num_cached += answer.cached_len
            num_tokens += len(prompt)
            chats[chat] = answer.tokens
    return Outcome(num_cached / num_tokens, chats, cache.nbytes)


@functools.cache
def with_mlx_lm(name: str) -> Outcome:
    return take_turns(PlainPromptCache(), build(name))


@pytest.mark.parametrize("name", NAMES)
def test_six_chats_that_take_turns_find_all_they_left(name: str, cache: LRUPromptCache) -> None:
    outcome = take_turns(cache, build(name))
    assert outcome.cached_share == pytest.approx(93 / (90 + 113))
    assert outcome.chats == with_mlx_lm(name).chats
    assert outcome.nbytes < with_mlx_lm(name).nbytes
    assert len(cache) == 6


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_mlx_lm_finds_nothing_of_six_chats_that_take_turns(name: str) -> None:
    """The reason for the test above: should this fail one day, mlx-lm has become better."""
    assert with_mlx_lm(name).cached_share == 0


def test_long_chat_holds_less_than_in_mlx_lm(model: Any, cache: LRUPromptCache) -> None:
    plain = PlainPromptCache()
    for made in (plain, cache):
        tokens = words(0, SYSTEM_LEN)
        for turn in range(8):
            prompt = [*tokens, *words(turn + 1, 20)]
            tokens = serve(made, model, prompt, SYSTEM_LEN, reply_len=2).tokens
    assert cache.nbytes < plain.nbytes


@pytest.mark.parametrize("name", NAMES)
def test_budget_holds_while_chats_grow(name: str) -> None:
    budget = with_mlx_lm(name).nbytes // 4
    cache = LRUPromptCache(max_bytes=budget)
    take_turns(cache, build(name))
    assert 0 < cache.store.stats().peak_bytes <= budget
    assert any(key.startswith("evicted") for key in cache.store.stats().events)
    cache.store.check()
