"""The case of mlx-lm's PR 1006: six translations at once under one system prompt. There, parts
of the system prompt were lost; here each says what it says when asked alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .serving import Served, served

NUM_REQUESTS = 6
WORDS = ("the", "weather", "in", "Paris", "today", "is", "and", "a", "helpful", "assistant")


def chats() -> list[list[dict[str, str]]]:
    """One system prompt, about 300 other tokens each."""
    rng = random.Random(5)
    system = "Translate what the user says. " + " ".join(rng.choices(WORDS, k=80))
    texts = [" ".join(random.Random(i).choices(WORDS, k=280)) for i in range(NUM_REQUESTS)]
    return [
        [{"role": "system", "content": system}, {"role": "user", "content": text}] for text in texts
    ]


def ask(server: Served, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 24, "temperature": 0}
    answer: dict[str, Any] = server.post("/v1/chat/completions", body).raise_for_status().json()
    return answer


def words_of(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]["message"]


@pytest.mark.parametrize("architecture", ["qwen3_5", "nemotron_h"])
def test_translations_at_once_are_those_asked_one_by_one(architecture: str) -> None:
    asked = chats()
    with served(architecture, cache_bytes=1) as alone:  # room for nothing: cold every time
        wanted = [ask(alone, messages) for messages in asked]
        assert {a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in wanted} == {0}
    with served(architecture) as server, ThreadPoolExecutor(NUM_REQUESTS) as pool:
        for _ in range(4):
            answers = list(pool.map(lambda messages: ask(server, messages), asked))
            assert [words_of(a) for a in answers] == [words_of(a) for a in wanted]
        # All but the generation prompt comes from the cache.
        assert max(a["keepwarm"]["prefilled_tokens"] for a in answers) <= 4
        assert min(a["usage"]["prompt_tokens"] for a in answers) > 350
        server.engine.call(lambda cache: cache.check())
