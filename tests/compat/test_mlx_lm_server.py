"""mlx-lm's own server with our prompt cache, over a real socket: in this process with models of
every kind, and as the example in examples/ starts it."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import mlx_lm.server
import pytest

from keepwarm.compat.mlx_lm import LRUPromptCache

from .serving import Client, save_small_model, say, served, text

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mlx_lm_server.py"
NAMES = ("llama", "qwen3_5", "gpt_oss")

SYSTEM = text(0, 40)
FIRST = say(SYSTEM, text(1, 20))


@pytest.fixture
def cache() -> Iterator[LRUPromptCache]:
    made = LRUPromptCache()
    yield made
    made.store.check()
    assert not made.refused


def go_on(messages: list[dict[str, str]], reply: str, question: str) -> list[dict[str, str]]:
    return [
        *messages,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": question},
    ]


@pytest.mark.parametrize("name", NAMES)
def test_second_turn_is_cached_and_answered_as_by_a_fresh_server(
    name: str, cache: LRUPromptCache
) -> None:
    with served(name, cache) as client:
        first = client.chat(FIRST)
        second = go_on(FIRST, first.text, text(2, 12))
        hot = client.chat(second)
    with served(name, LRUPromptCache()) as fresh:
        expected = fresh.chat(second)
    assert (first.cached_tokens, expected.cached_tokens) == (0, 0)
    assert hot.cached_tokens >= first.prompt_tokens
    assert hot.text == expected.text


@pytest.mark.parametrize("name", NAMES)
def test_same_request_twice_is_answered_twice(name: str, cache: LRUPromptCache) -> None:
    with served(name, cache) as client:
        first, again = client.chat(FIRST), client.chat(FIRST)
    assert again.cached_tokens == again.prompt_tokens - 1
    assert again.text == first.text


@pytest.mark.parametrize("name", NAMES)
def test_prompt_that_is_stored_to_its_last_token_is_answered(
    name: str, cache: LRUPromptCache
) -> None:
    """With mlx-lm's class nothing is left to read, and its generation thread dies of that."""
    prompt = text(0, 30)
    with served(name, cache) as client:
        first = client.complete(prompt)
        again = client.complete(f"{prompt} {first.text}")
    with served(name, LRUPromptCache()) as fresh:
        expected = fresh.complete(f"{prompt} {first.text}")
    assert again.prompt_tokens == 38
    assert again.cached_tokens >= 29
    assert again.text == expected.text


@pytest.mark.parametrize("name", NAMES)
def test_requests_at_once_are_answered_as_alone(name: str, cache: LRUPromptCache) -> None:
    chats = [say(SYSTEM, text(10 + i, 12 + 5 * i)) for i in range(3)]
    with served(name, cache) as client:
        client.chat(FIRST)
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(client.chat, chats))
        seconds = [go_on(m, a.text, text(3, 9)) for m, a in zip(chats, answers)]
        with ThreadPoolExecutor() as pool:
            hot = list(pool.map(client.chat, seconds))
    with served(name, LRUPromptCache()) as fresh:
        alone = [fresh.chat(messages) for messages in seconds]
    assert all(answer.cached_tokens >= 42 for answer in answers)
    assert all(h.cached_tokens >= a.prompt_tokens for h, a in zip(hot, answers))
    assert [answer.text for answer in hot] == [answer.text for answer in alone]


def test_request_with_a_seed_is_cached_too(cache: LRUPromptCache) -> None:
    with served("llama", cache) as client:
        first = client.chat(FIRST, seed=5)
        hot = client.chat(go_on(FIRST, first.text, text(2, 12)), seed=5)
    assert hot.cached_tokens >= first.prompt_tokens


def test_caches_that_are_quantized_as_they_grow_are_cached(cache: LRUPromptCache) -> None:
    flags = ("--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "80")
    with served("llama", cache, *flags) as client:
        messages, stored_len = FIRST, 0
        for turn in range(3):
            answer = client.chat(messages)
            assert answer.cached_tokens >= stored_len
            messages = go_on(messages, answer.text, text(20 + turn, 12))
            stored_len = answer.prompt_tokens
    assert cache.store.stats().num_namespaces == 2


def test_bytes_of_the_command_line_reach_the_cache(cache: LRUPromptCache) -> None:
    with served("llama", cache, "--prompt-cache-bytes", "1") as client:
        first = client.chat(FIRST)
        assert cache.nbytes > 1
        hot = client.chat(go_on(FIRST, first.text, text(2, 12)))
        assert hot.cached_tokens >= first.prompt_tokens  # trimmed after the fetch
        assert client.chat(FIRST).cached_tokens > 0
    assert cache.store.stats().events["evicted_leaves"] > 0


@contextmanager
def example(folder: Path) -> Iterator[Client]:
    """The example's server, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(EXAMPLE), "--model", str(folder), "--port", str(port)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(port, process)
            yield Client(port)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def _wait_for(port: int, process: subprocess.Popen[str], limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except urllib.error.URLError:
            time.sleep(0.1)
    process.kill()
    raise AssertionError(process.communicate()[1])


def test_example_puts_our_class_in_the_place_of_mlx_lms(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[type] = []
    monkeypatch.setattr(mlx_lm.server, "LRUPromptCache", mlx_lm.server.LRUPromptCache)
    monkeypatch.setattr(mlx_lm.server, "main", lambda: used.append(mlx_lm.server.LRUPromptCache))
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert used == [LRUPromptCache]


def test_example_serves_a_chat_from_its_cache(tmp_path: Path) -> None:
    with example(save_small_model(tmp_path / "small")) as client:
        first = client.chat(FIRST)
        hot = client.chat(go_on(FIRST, first.text, text(2, 12)))
        again = client.chat(FIRST)
    assert hot.cached_tokens >= first.prompt_tokens
    assert again.cached_tokens == first.prompt_tokens - 1
    assert again.text == first.text
