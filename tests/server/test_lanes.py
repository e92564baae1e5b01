"""Short prompts, and replies that run, never wait for a stranger's long prompt; one whose client has
left ends early."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from keepwarm.errors import Abandoned
from keepwarm.server import intake
from tests.server.serving import Served, events_of, served

LONG = [{"role": "user", "content": "a"}] * 1001


class Gate:
    """Holds the rendering of long chats until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.num_waiting = threading.Semaphore(0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, cleaned = Gate(), intake.clean

    def clean(tokenizer: Any, messages: Any, **options: Any) -> Any:
        if len(messages) > 1000:
            made.num_waiting.release()
            assert made.is_open.wait(60)
        return cleaned(tokenizer, messages, **options)

    monkeypatch.setattr(intake, "clean", clean)
    yield made
    made.is_open.set()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(context_len=50_000) as running:
        yield running


def test_short_chat_passes_long_ones(server: Served, gate: Gate) -> None:
    with ThreadPoolExecutor(6) as pool:
        body = {"messages": LONG, "max_tokens": 1}
        long = [pool.submit(server.post, "/v1/chat/completions", body) for _ in range(6)]
        assert gate.num_waiting.acquire(timeout=30)
        assert gate.num_waiting.acquire(timeout=30)
        for _ in range(5):
            assert server.chat("Hello").status_code == 200
            assert events_of(server.chat("Hello", stream=True))
        assert not any(asked.done() for asked in long)
        gate.is_open.set()
        assert {asked.result().status_code for asked in long} == {200}


def test_rendering_ends_when_its_client_has_left(
    server: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[BaseException | None] = []
    is_over, rendered = threading.Event(), intake.render_chat

    def render_chat(*given: Any, **options: Any) -> Any:
        try:
            prompt = rendered(*given, **options)
            ends.append(None)
            return prompt
        except BaseException as error:
            ends.append(error)
            raise
        finally:
            is_over.set()

    monkeypatch.setattr(intake, "render_chat", render_chat)
    body = {"messages": LONG, "max_tokens": 1}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.5)
    assert gate.num_waiting.acquire(timeout=30)
    server.wait_for(lambda: True)
    threading.Event().wait(0.3)  # the server hears that the connection is closed
    gate.is_open.set()
    assert is_over.wait(30)
    assert isinstance(ends[0], Abandoned)
    assert server.chat("Hello").status_code == 200


def test_prompt_far_beyond_the_context_is_refused_in_the_usual_form(server: Served) -> None:
    text = "The user asks a question. " * 100_000
    for answer in (server.chat(text), server.complete(text)):
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "more than" in answer.json()["error"]["message"]
