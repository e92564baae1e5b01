"""Many clients at once over a socket: whatever runs beside it, is evicted or given up, every
answer is the one computed alone and cold.

In exact mode, decoding in turn: the claim is about bits. `make soak` runs it for 20 minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import mlx.core as mx
import pytest

from keepwarm import PrefixCache
from keepwarm.engine.decode import decode
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.reply import ReplyText
from keepwarm.engine.request import Sampling
from keepwarm.engine.sampling import Draw
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat

from .serving import PLACEMENT, Served, load, served, tokenizer

NUM_CLIENTS = 32
MAX_TOKENS = 10
SOAK_S = float(os.environ.get("KEEPWARM_SOAK_S", "1200"))


@dataclass(frozen=True)
class Question:
    """A request, and the answer computed alone and cold."""

    path: str
    body: dict[str, Any]
    answers: tuple[Any, ...]  # by the number of tokens asked for


@dataclass
class Tally:
    num_answers: int = 0
    num_cancelled: int = 0
    num_cached: int = 0
    wrong: list[str] = field(default_factory=list)


class Reference:
    """The same model in this thread, with no cache at all."""

    def __init__(self, architecture: str) -> None:
        self._model, self._tokenizer = load(architecture)
        self._cold = PrefixCache(self._model, exact=True, budget_bytes=0, placement=PLACEMENT)

    def answers(self, prompt: Prompt, sampling: Sampling) -> tuple[str, ...]:
        """The text after 0, 1, ... tokens; the last ones alike when the reply ends early."""
        with Prefill(self._model, self._cold, prompt) as prefill:
            list(prefill.steps())
            draw = Draw(sampling, prompt=prompt.tokens)
            tokens = decode(self._model, prefill.live, prefill.logits, draw)
            drawn = [token.value for _, token in zip(range(MAX_TOKENS), tokens)]
        eos = self._tokenizer.eos_token_ids
        texts = []
        for count in range(MAX_TOKENS + 1):
            reply = ReplyText(self._tokenizer.detokenizer)
            for token in drawn[:count]:
                if token in eos:
                    break
                reply.push(token)
            reply.end()
            texts.append(reply.text)
        return tuple(texts)


def questions(reference: Reference, seed: int, count: int) -> list[Question]:
    """Prompts that share beginnings of all lengths."""
    rng = random.Random(seed)
    words = ("the", "weather", "in", "Paris", "today", "is", "and", "a", "helpful", "assistant")
    systems = [" ".join(rng.choices(words, k=rng.randint(5, 60))) for _ in range(3)]
    histories: list[list[int]] = [[]]
    found = []
    for i in range(count):
        options: dict[str, Any] = {"temperature": 0}
        if i % 4 == 3:
            options = {"temperature": 1.0, "seed": rng.randint(0, 2**40), "top_p": 0.9}
        sampling = Sampling(**options)
        if i % 2:
            said = " ".join(rng.choices(words, k=rng.randint(1, 40)))
            messages = [
                {"role": "system", "content": rng.choice(systems)},
                {"role": "user", "content": said},
            ]
            prompt = render_chat(tokenizer(), messages)
            body = {"messages": messages}
            path = "/v1/chat/completions"
        else:
            more = [rng.randrange(len(tokenizer())) for _ in range(rng.randint(3, 90))]
            histories.append([*rng.choice(histories)[: rng.randint(0, 200)], *more])
            prompt, body = Prompt(histories[-1]), {"prompt": histories[-1]}
            path = "/v1/completions"
        answers: tuple[Any, ...] = reference.answers(prompt, sampling)
        if "messages" in body:
            replies = [parse_reply(tokenizer(), text, prompt=prompt) for text in answers]
            answers = tuple(without_ids(reply.as_message()) for reply in replies)
        found.append(Question(path, body | options, answers))
    return found


async def client(
    url: str, pool: list[Question], rng: random.Random, tally: Tally, goes_on: Callable[[], bool]
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        while goes_on():
            question = rng.choice(pool)
            max_tokens = rng.randint(1, MAX_TOKENS)
            body = question.body | {"max_tokens": max_tokens}
            if rng.random() < 0.15:
                await leave_early(http, question.path, body, rng)
                tally.num_cancelled += 1
                continue
            answer = (await http.post(question.path, json=body)).raise_for_status().json()
            choice = answer["choices"][0]
            said = choice["text"] if "text" in choice else without_ids(choice["message"])
            tally.num_answers += 1
            tally.num_cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            if said != question.answers[max_tokens]:
                tally.wrong.append(f"{said!r} for {question.answers[max_tokens]!r}")


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Calls get a new id each time."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message | {"tool_calls": calls}


async def leave_early(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], rng: random.Random
) -> None:
    """Streaming or not, in the queue, in prefill or in decode."""
    if rng.random() < 0.5:
        with suppress(TimeoutError):
            await asyncio.wait_for(http.post(path, json=body), rng.random() * 0.2)
        return
    async with http.stream("POST", path, json=body | {"stream": True}) as response:
        async for _ in response.aiter_lines():
            if rng.random() < 0.4:
                break


def phase(server: Served, pool: list[Question], seed: int, goes_on: Callable[[], bool]) -> Tally:
    tally = Tally()

    async def all_clients() -> None:
        rngs = [random.Random(f"{seed}/{i}") for i in range(NUM_CLIENTS)]
        await asyncio.gather(*(client(server.url, pool, rng, tally, goes_on) for rng in rngs))

    asyncio.run(all_clients())
    server.wait_for(lambda: server.engine.status().num_decoding == 0)
    server.engine.call(lambda cache: cache.check())
    return tally


def serve_exactly(architecture: str, cache_bytes: int) -> Any:
    return served(architecture, exact=True, decode="turn", cache_bytes=cache_bytes, max_running=8)


@pytest.mark.parametrize(("architecture", "cache_bytes"), [("qwen3_5", 400_000)])
def test_every_answer_is_the_one_computed_alone_and_cold(
    architecture: str, cache_bytes: int
) -> None:
    pool = questions(Reference(architecture), 1, 24)
    with serve_exactly(architecture, cache_bytes) as server:
        left = iter(range(300))
        tally = phase(server, pool, 1, lambda: next(left, None) is not None)
        assert tally.wrong == []
        assert tally.num_answers > 200
        assert tally.num_cancelled > 10
        assert tally.num_cached > 50
        stats = server.engine.status().cache
        assert stats is not None
        assert stats.events["evicted_leaves"] > 0
        assert stats.peak_bytes <= cache_bytes


@pytest.mark.soak
@pytest.mark.parametrize("architecture", ["qwen3_5", "llama", "gpt_oss", "nemotron_h"])
def test_twenty_minutes_of_it_change_no_answer_and_no_memory(architecture: str) -> None:
    reference, began, num_phases = Reference(architecture), time.monotonic(), 0
    sizes: list[tuple[int, int]] = []
    with serve_exactly(architecture, 400_000) as server:
        while time.monotonic() - began < SOAK_S / 4:
            pool = questions(reference, num_phases, 32)
            ends = time.monotonic() + 20
            tally = phase(server, pool, num_phases, lambda ends=ends: time.monotonic() < ends)  # type: ignore[misc]
            assert tally.wrong == []
            assert tally.num_answers > 0
            num_phases += 1
            active = server.engine.call(lambda _: (mx.clear_cache(), mx.get_active_memory())[1])
            sizes.append((active, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
            print(f"phase {num_phases}: {tally.num_answers} answers, {sizes[-1]}")
    # Flat: after the first phases nothing grows but by what a pool of questions differs.
    active = [size for size, _ in sizes]
    assert max(active[1:]) - min(active[1:]) < 4_000_000, sizes
    assert sizes[-1][1] < 1.2 * sizes[len(sizes) // 2][1], sizes
