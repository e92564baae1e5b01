"""Thousands of broken requests: each is answered in OpenAI's form and in time, none is an error of
the server, and good requests in between get the answers they always got."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from keepwarm.server.errors import ApiError
from keepwarm.server.intake import render_messages
from tests.prompt.tokenizers_for_tests import make_tokenizer
from tests.server.fuzzing import CHAT, CORPUS, TOKENIZE, Sent, requests
from tests.server.serving import WEATHER, Served, error_of, events_of, served

TIMEOUT_S = 60
NUM_BETWEEN_PROBES = 100
NUM_PROBES = 2  # replies that one probe asks for
STATUS_S = 1.2  # what the engine tells is about a second old at most
# Fields whose value decides whether another one is taken; that one is then named.
RELATED = {
    "logprobs": {"top_logprobs"},
    "n": {"best_of"},
    "tools": {"tool_choice", "response_format"},
    "tool_choice": {"tools"},
    "prompt": {"messages"},
    "messages": {"prompt"},
}


class Errors(logging.Handler):
    """What was logged as an error, by anyone."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))

    def taken(self) -> str:
        seen, self.seen = self.seen, []
        return "logged " + "; ".join(seen) if seen else ""


@pytest.fixture
def errors() -> Iterator[Errors]:
    handler = Errors()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    # Exact, so that an answer is the same to the bit whatever was cached meanwhile.
    with served(max_tokens=4, context_len=256, exact=True) as running:
        yield running


def test_broken_requests_are_answered(server: Served, errors: Errors) -> None:
    fuzz(server, errors, seed=1, count=1000)


@pytest.mark.slow
def test_ten_thousand_broken_requests_are_answered(server: Served, errors: Errors) -> None:
    seed = int(os.environ.get("KEEPWARM_FUZZ_SEED") or random.SystemRandom().randrange(10**6))
    print(f"KEEPWARM_FUZZ_SEED={seed}", flush=True)
    print(fuzz(server, errors, seed=seed, count=10_000))


def test_corpus_is_good(server: Served) -> None:
    for path, body in CORPUS:
        response = server.post(path, body)
        assert response.status_code == 200, (body, response.text)


def fuzz(server: Served, errors: Errors, *, seed: int, count: int) -> Counter[int]:
    """How often each status was answered."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    usual = probe(server)
    time.sleep(STATUS_S)
    num_ended, num_replies = num_generated(server), 0
    for i, sent in enumerate(requests(seed, count)):
        response = send(server, sent)
        statuses[response.status_code] += 1
        num_replies += num_choices(response)
        if fault := fault_of(sent, response) or errors.taken():
            wrong.append(
                f"{i}: {fault}: {sent.method} {sent.path} {sent.what}\n"
                f"    sent {sent.content[:1000]!r}\n    got {response.text[:1000]!r}"
            )
        if i % NUM_BETWEEN_PROBES == NUM_BETWEEN_PROBES - 1:
            assert probe(server) == usual, i
            num_replies += NUM_PROBES
    assert not wrong, "\n".join([f"{len(wrong)} wrong answers", *wrong[:20]])
    # What was refused was refused before the engine generated anything.
    server.wait_for(lambda: num_generated(server) >= num_ended + num_replies)
    assert num_generated(server) == num_ended + num_replies
    return statuses


def send(server: Served, sent: Sent) -> httpx.Response:
    """With a client that does not mind what it sends."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=TIMEOUT_S)
    with closing(connection):
        connection.putrequest(sent.method, sent.path, skip_host="Host" in sent.headers)
        for name, value in sent.headers.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(sent.content)))
        connection.endheaders(sent.content)
        answer = connection.getresponse()
        content = answer.read()
    return httpx.Response(answer.status, headers=answer.getheaders(), content=content)


def fault_of(sent: Sent, response: httpx.Response) -> str:
    """What is wrong with an answer; empty when nothing is."""
    status = response.status_code
    if status >= 500:
        return f"status {status}"
    if sent.method == "HEAD" or 300 <= status < 400:
        return ""
    try:
        if status < 400:
            is_stream = response.headers["content-type"].startswith("text/event-stream")
            events = events_of(response) if is_stream else []
            return "an error in the stream" if any("error" in event for event in events) else ""
        error = error_of(response)
    except (AssertionError, ValueError, KeyError) as failed:
        return f"form {failed!r}"
    is_known = sent.name is None or status != 400 or is_named(sent.name, error)
    return "" if is_known else f"{sent.name} is not named"


def is_named(name: str, error: dict[str, Any]) -> bool:
    """Whether an error is about a field, or about the whole body."""
    if error["code"] == "invalid_json":
        return error["param"] is None
    if error["param"] is None:
        return name in ("prompt", "messages")  # /tokenize wants one of two
    if error["code"] == "context_length_exceeded":
        return True  # all that is rendered counts
    first = error["param"].partition(".")[0].partition("[")[0]
    return first in {name, *RELATED.get(name, ())}


def probe(server: Served) -> Any:
    """What a good client gets: the same every time. The cache is whole."""
    assert server.engine.is_alive
    chat = server.chat("Are you well?").json()
    text = server.complete("I am", logprobs=1).json()
    server.engine.call(lambda cache: cache.check())
    return [chat["choices"], text["choices"]]


def num_choices(response: httpx.Response) -> int:
    """How many replies an answer holds."""
    if not response.is_success or b'"choices"' not in response.content:
        return 0
    if response.headers["content-type"].startswith("application/json"):
        return len(response.json().get("choices", ()))
    events = events_of(response)
    return len({choice["index"] for event in events for choice in event["choices"]})


def num_generated(server: Served) -> int:
    """How many replies the engine has ended; it counts none that was cancelled or failed."""
    ended = server.engine.status().counters.requests
    return sum(count for how, count in ended.items() if how not in ("cancelled", "error"))


_POST = b"POST /tokenize HTTP/1.1\r\nConnection: close\r\n"
_TYPED = b"Content-Type: application/json\r\n"
_HEAD = _POST + b"Host: localhost\r\n" + _TYPED
_BODY = b'{"prompt": "a"}'
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

# What no client library would write; the statuses that may come back, 0 for none at all.
FRAMES: dict[str, tuple[bytes, set[int]]] = {
    "length below 0": (_HEAD + b"Content-Length: -5\r\n\r\n" + _BODY, {400}),
    "length that is no number": (_HEAD + b"Content-Length: many\r\n\r\n" + _BODY, {400}),
    "length of 30 digits": (_HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", {400}),
    "length over the limit": (_HEAD + b"Content-Length: 99999999999\r\n\r\n" + _BODY, {413}),
    "two lengths": (_HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n" + _BODY, {400}),
    "a length and chunks": (
        _HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n" + _BODY + b"\r\n0\r\n\r\n",
        {200, 400},
    ),
    "chunks": (_CHUNKED + b"5\r\n" + _BODY[:5] + b"\r\na\r\n" + _BODY[5:] + b"\r\n0\r\n\r\n", {200}),
    "chunks and a trailer": (_CHUNKED + b"f\r\n" + _BODY + b"\r\n0\r\nX-A: b\r\n\r\n", {200}),
    "a chunk without a size": (_CHUNKED + b"\r\n" + _BODY, {0, 400}),
    "a chunk of no size": (_CHUNKED + b"zz\r\n" + _BODY, {0, 400}),
    "a chunk below 0": (_CHUNKED + b"-5\r\n" + _BODY, {0, 400}),
    "a chunk of all there is": (_CHUNKED + b"f" * 20 + b"\r\n" + _BODY, {0, 400}),
    "a coding nobody knows": (_HEAD + b"Transfer-Encoding: gzip\r\n\r\n", {400, 501}),
    "no host": (_POST + _TYPED + b"Content-Length: 15\r\n\r\n" + _BODY, {400}),
    "no host, as of old": (
        b"POST /tokenize HTTP/1.0\r\n" + _TYPED + b"Content-Length: 15\r\n\r\n" + _BODY, {200},
    ),
    "two hosts": (_HEAD + b"Host: evil.example\r\nContent-Length: 15\r\n\r\n" + _BODY, {400, 403}),
    "no length": (_HEAD + b"\r\n" + _BODY, {400}),
    "a header without a name": (_HEAD + b": a\r\n\r\n", {400}),
    "a header that is none": (_HEAD + b"abc\r\n\r\n", {400}),
    "a header with a NUL": (_HEAD + b"X-A: \0\r\n\r\n", {400}),
    "a header in a foreign script": (_HEAD + "Ж: ж\r\n\r\n".encode(), {400}),
    "a huge header": (_HEAD + b"X-A: " + b"a" * 1_000_000 + b"\r\n\r\n", {0, 400, 431}),
    "very many headers": (_HEAD + b"X-A: b\r\n" * 20_000 + b"\r\n", {0, 400, 431}),
    "a method nobody knows": (b"BREW / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {404, 405}),
    "a version nobody knows": (b"GET / HTTP/3.7\r\nConnection: close\r\n\r\n", {0, 200, 400, 404, 505}),
    "no version": (b"GET /\r\n\r\n", {400}),
    "a NUL in the path": (b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "a path of its own": (
        b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        {200, 400, 403, 404},
    ),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {0, 400, 404}),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", {400}),
    "a WebSocket": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        {200, 400, 403, 404},
    ),
    "nothing": (b"", {0}),
    "half a line": (b"POST /tok", {0, 400}),
    "half a body": (_HEAD + b"Content-Length: 15\r\n\r\n" + _BODY[:7], {0, 400}),
}  # fmt: skip
# These wait for the rest until the client has hung up.
UNFINISHED = {
    "nothing",
    "half a line",
    "half a body",
    "a coding nobody knows",
    "a WebSocket",
    "a chunk of all there is",
}


@pytest.mark.parametrize("name", FRAMES)
def test_broken_frame_ends_its_own_connection_only(
    server: Served, errors: Errors, name: str
) -> None:
    content, statuses = FRAMES[name]
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        with suppress(ConnectionError):  # it may be ended before all was sent
            connection.sendall(content)
            if name in UNFINISHED:
                connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
    status = int(answer.split()[1]) if answer else 0
    assert status in statuses, answer[:500]
    assert not errors.taken()
    assert server.complete("Still there?").status_code == 200


def test_template_argument_that_cannot_be_rendered_with_is_named(server: Served) -> None:
    for kwargs in ({"documents": 5}, {"self": 5}):
        for path in (CHAT, TOKENIZE):
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            response = server.post(path, {**body, "chat_template_kwargs": kwargs})
            assert response.status_code == 400
            assert error_of(response)["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("condition", "param"),
    [
        ("tools", "tools"),
        ("reasoning_effort", "reasoning_effort"),
        ("thinks", "chat_template_kwargs"),
        ("messages", "messages"),
    ],
)
def test_field_that_a_template_refuses_is_named(condition: str, param: str) -> None:
    template = "{% if " + condition + " %}{{ raise_exception('no') }}{% endif %}"
    tokenizer = make_tokenizer(template + "{{ messages[0].content }}")
    messages, kwargs = [{"role": "user", "content": "Hi"}], {"thinks": 1, "reasoning_effort": "low"}
    with pytest.raises(ApiError) as caught:
        render_messages(tokenizer, messages, [WEATHER], kwargs)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
    ids=["itself", "all of itself", "in a ring"],
)
def test_schema_that_refers_only_to_itself_is_refused(server: Served, schema: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    response = server.chat(response_format=wanted)
    assert response.status_code == 400
    assert error_of(response)["param"] == "response_format"
