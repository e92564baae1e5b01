"""Answers that last: what is said meanwhile, and what happens when their client leaves."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from keepwarm.server import exchange
from keepwarm.server.stream import comment, data
from tests.server.serving import Served, events_of, served, tokenizer

# More than the model reads, or says, in the time that a test takes.
LONG = {"max_tokens": 100_000, "ignore_eos": True}
CONTEXT_LEN = 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(keep_alive_s=0.01, context_len=CONTEXT_LEN) as running:
        yield running


def long_prompt(first: int, num_tokens: int) -> list[int]:
    """Another one for every `first`."""
    size = len(tokenizer()) - 10
    return [(first * 31 + 7 * i) % size for i in range(num_tokens)]


def num_cancelled(server: Served) -> int:
    return server.engine.status().counters.requests.get("cancelled", 0)


def is_at_rest(server: Served) -> bool:
    status = server.engine.status()
    return not (status.num_queued or status.num_prefilling or status.num_decoding)


def begin(server: Served, path: str, body: dict[str, Any]) -> socket.socket:
    """A client that has asked and does not read."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def test_events_and_comments_are_lines_of_their_own() -> None:
    assert data({"a": "é\n"}) == 'data: {"a": "é\\n"}\n\n'.encode()
    assert comment("prefill 1/2") == b": prefill 1/2\n\n"


def test_long_prefill_is_told_in_comments(server: Served) -> None:
    response = server.complete(long_prompt(1, 600), stream=True)
    assert any(line.startswith(": prefill ") for line in response.text.splitlines())
    assert "/600" in response.text
    assert events_of(response)[-1]["choices"][0]["finish_reason"]


def test_stream_says_what_the_whole_answer_says(server: Served) -> None:
    whole = server.chat("Tell me.", max_tokens=8, logprobs=True).json()
    events = events_of(server.chat("Tell me.", max_tokens=8, logprobs=True, stream=True))
    choices = [event["choices"][0] for event in events]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    logprobs = [entry["token"] for choice in choices for entry in choice["logprobs"]["content"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert said == whole["choices"][0]["message"]["content"]
    expected = whole["choices"][0]["logprobs"]["content"]
    assert logprobs == [entry["token"] for entry in expected]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert {event["id"] for event in events} == {events[0]["id"]}


def test_last_chunk_says_what_the_cache_did(server: Served) -> None:
    events = events_of(server.chat("Say so.", stream=True))
    assert events[-1]["choices"][0]["finish_reason"]
    assert events[-1]["keepwarm"]["prefilled_tokens"] > 0
    assert all("keepwarm" not in event and "usage" not in event for event in events[:-1])


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(server: Served) -> None:
    events = events_of(server.chat(stream=True, stream_options={"include_usage": True}, n=2))
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert "cached_tokens" in events[-1]["usage"]["prompt_tokens_details"]
    assert events[-1]["keepwarm"]["timings_ms"].keys() == {
        "queue", "load", "lookup", "restore", "prefill", "insert", "decode",
    }  # fmt: skip
    assert all("keepwarm" not in event for event in events[:-1])


def test_completions_stream_as_their_whole_says(server: Served) -> None:
    whole = server.complete(["One", "Two"], max_tokens=6, logprobs=1).json()
    events = events_of(server.complete(["One", "Two"], max_tokens=6, logprobs=1, stream=True))
    for index in (0, 1):
        choices = [c for event in events for c in event["choices"] if c["index"] == index]
        expected = whole["choices"][index]
        assert "".join(choice["text"] for choice in choices) == expected["text"]
        offsets = [at for choice in choices for at in choice["logprobs"]["text_offset"]]
        assert offsets == expected["logprobs"]["text_offset"]
    assert "keepwarm" in events[-1]


def test_client_that_leaves_a_stream_is_not_served_on(server: Served) -> None:
    before = num_cancelled(server)
    body = {"messages": [{"role": "user", "content": "Go on."}], "stream": True, "n": 2, **LONG}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(line for line in response.iter_lines() if '"content"' in line)
    server.wait_for(lambda: num_cancelled(server) == before + 2 and is_at_rest(server))
    assert server.chat().status_code == 200


def test_client_that_leaves_without_a_stream_is_not_served_on(server: Served) -> None:
    before = num_cancelled(server)
    body = {"messages": [{"role": "user", "content": "Stay."}], **LONG}
    with begin(server, "/v1/chat/completions", body):
        server.wait_for(lambda: server.engine.status().num_decoding == 1)
    server.wait_for(lambda: num_cancelled(server) == before + 1 and is_at_rest(server))


@pytest.mark.parametrize("streams", [True, False])
def test_client_that_leaves_while_its_prompt_is_read(server: Served, streams: bool) -> None:
    before = num_cancelled(server)
    prompt = long_prompt(5 + streams, 100_000)
    with begin(server, "/v1/completions", {"prompt": prompt, "stream": streams, "max_tokens": 1}):
        server.wait_for(lambda: server.engine.status().num_prefilling == 1)
    server.wait_for(lambda: num_cancelled(server) == before + 1 and is_at_rest(server))
    # What was read until then is kept.
    kept = server.complete(prompt[:300], max_tokens=1).json()["keepwarm"]
    assert kept["cached_tokens"] > 0


def test_engine_that_stops_ends_streams_with_an_error() -> None:
    with served(context_len=CONTEXT_LEN) as server:
        body = {"prompt": "Go", "stream": True, **LONG}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line and line[0] != ":")
            assert next(lines).startswith("data: ")
            server.engine.stop()
            last = [line for line in lines if line.startswith("data: ")][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["type"] == "server_error"
        assert error["code"] == "unavailable"


def test_full_queue_is_told_with_a_time_to_come_back() -> None:
    with served(max_queue=1, max_running=1, context_len=CONTEXT_LEN) as server:
        bodies = [{"prompt": long_prompt(i, 20_000), **LONG} for i in (1, 2)]
        with begin(server, "/v1/completions", bodies[0]):
            server.wait_for(lambda: not is_at_rest(server))
            with begin(server, "/v1/completions", bodies[1]):
                server.wait_for(lambda: server.engine.status().num_queued == 1)
                refused = server.chat()
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        server.wait_for(lambda: is_at_rest(server))
        assert server.chat().status_code == 200


def test_next_turn_sent_at_once_finds_the_reply(server: Served) -> None:
    opening = [{"role": "user", "content": "A long story, please. " * 10}]
    first = server.post(
        "/v1/chat/completions", {"messages": opening, "max_tokens": 40, "ignore_eos": True}
    ).json()
    history = [*opening, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = server.post("/v1/chat/completions", {"messages": history, "max_tokens": 1}).json()
    usage = first["usage"]
    assert second["keepwarm"]["cached_tokens"] >= usage["prompt_tokens"]


def test_engine_reads_ahead_what_the_conversation_goes_on_with() -> None:
    # A recurrent state cannot be cut back, and this template writes a thought in another way
    # once it is the past: without reading ahead the next turn starts from the last question.
    with served("qwen3_5") as hybrid:
        question = {"role": "user", "content": "Think about it. " * 8}
        asked = {"chat_template_kwargs": {"thinks": True}, "max_tokens": 24, "ignore_eos": True}
        first = hybrid.post("/v1/chat/completions", {"messages": [question], **asked}).json()
        hybrid.wait_for(lambda: hybrid.engine.status().counters.idle_tokens > 0)
        hybrid.wait_for(lambda: is_at_rest(hybrid))
        history = [question, first["choices"][0]["message"], {"role": "user", "content": "So?"}]
        second = hybrid.post("/v1/chat/completions", {"messages": history, **asked}).json()
        assert second["keepwarm"]["cached_tokens"] > first["usage"]["prompt_tokens"]


@pytest.mark.parametrize("sent_back", [{}, {"reasoning_content": "Hm."}])
def test_thought_is_read_ahead_only_where_the_client_sends_thoughts_back(
    server: Served, sent_back: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseen: list[dict[str, Any]] = []
    monkeypatch.setattr(exchange, "follow_up", lambda *args, **_: foreseen.append(args[2]))
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    loop = [
        {"role": "user", "content": "Think about it."},
        {"role": "assistant", "content": "", "tool_calls": calls, **sent_back},
        {"role": "tool", "tool_call_id": "call00001", "content": "Nothing."},
    ]
    asked = {"chat_template_kwargs": {"thinks": True}, "max_tokens": 8, "ignore_eos": True}
    said = server.post("/v1/chat/completions", {"messages": loop, **asked}).json()
    assert "reasoning_content" in said["choices"][0]["message"]
    assert ["reasoning_content" in message for message in foreseen] == [bool(sent_back)]


def test_slow_reader_gets_all_of_it(server: Served) -> None:
    body = {"prompt": "Go", "stream": True, "max_tokens": 50, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        text = "".join(response.iter_text(chunk_size=7))
    assert text.endswith("data: [DONE]\n\n")
