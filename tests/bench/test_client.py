"""What a client makes of what a server sends: a real server, with replies that are known."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from keepwarm.bench.client import Client, NoAnswer

Ask = Callable[..., Client]
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}


def delta(**what: Any) -> dict[str, Any]:
    return {"choices": [{"delta": what}]}


@pytest.fixture
def sent() -> list[dict[str, Any]]:
    """What the server was asked."""
    return []


@pytest.fixture
def serve(sent: list[dict[str, Any]]) -> Iterator[Ask]:
    """Starts a server that answers anything with these events."""
    running: list[ThreadingHTTPServer] = []

    def start(*events: dict[str, Any], status: int = 200) -> Client:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                sent.append({"path": self.path, **json.loads(self.rfile.read(length))})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b": keep alive\n\n")
                for event in events:
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        return Client(server.server_address[1])

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thought_and_content_are_told_apart(serve: Ask, name: str) -> None:
    client = serve(
        delta(role="assistant", content=""),
        delta(**{name: "w1 "}),
        delta(**{name: "w2"}),
        delta(content="w3"),
        {"choices": [], "usage": USAGE},
    )
    answer = client.chat([{"role": "user", "content": "w0"}], max_tokens=8)
    assert (answer.thought, answer.content) == ("w1 w2", "w3")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.reply_tokens) == (9, 5, 4)
    assert len(answer.at) == 3, "the first event says nothing"
    assert answer.sent < answer.at[0] <= answer.at[-1] <= answer.ended
    assert answer.ttft_s == answer.at[0] - answer.sent
    assert answer.message() == {"role": "assistant", "content": "w3"}
    assert answer.message(with_thought=True)["reasoning_content"] == "w1 w2"


def test_tool_calls_go_back_as_they_came_less_the_stream(serve: Ask) -> None:
    function = {"name": "look", "arguments": "{}"}
    call = {"index": 0, "id": "1", "type": "function", "function": function}
    client = serve(delta(tool_calls=[call]), {"choices": [], "usage": USAGE})
    answer = client.chat([], max_tokens=8, tools=[{"type": "function"}])
    assert answer.message()["tool_calls"] == [{"id": "1", "type": "function", "function": function}]


def test_everything_is_asked_greedily_and_as_a_stream(
    serve: Ask, sent: list[dict[str, Any]]
) -> None:
    client = serve({"choices": [{"text": "w1"}], "usage": USAGE})
    assert client.complete("w0", max_tokens=3).content == "w1"
    client.chat([], max_tokens=3, tools=[{"type": "function"}], chat_template_kwargs={"a": 1})
    completed, chatted = sent
    assert (completed["path"], completed["prompt"]) == ("/v1/completions", "w0")
    assert chatted["path"] == "/v1/chat/completions"
    assert chatted["tools"] == [{"type": "function"}]
    assert chatted["chat_template_kwargs"] == {"a": 1}
    for asked in sent:
        assert (asked["temperature"], asked["stream"], asked["max_tokens"]) == (0, True, 3)
        assert asked["stream_options"] == {"include_usage": True}


def test_refusal_is_told_with_its_words(serve: Ask) -> None:
    with pytest.raises(NoAnswer, match=r"(?s)400.*too long"):
        serve({"error": "too long"}, status=400).chat([], max_tokens=1)


def test_error_in_a_stream_is_no_answer(serve: Ask) -> None:
    with pytest.raises(NoAnswer, match="lost"):
        serve(delta(content="w1"), {"error": {"message": "lost"}}).chat([], max_tokens=1)


def test_reply_without_a_token_is_no_answer(serve: Ask) -> None:
    with pytest.raises(NoAnswer, match="empty"):
        serve(delta(role="assistant")).chat([], max_tokens=1)


def test_server_that_is_gone_is_no_answer() -> None:
    with pytest.raises(NoAnswer, match="ConnectionRefused"):
        Client(1).chat([], max_tokens=1)
