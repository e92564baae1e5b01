"""What clients send and should not: each gets its answer, and the next one is served as ever."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any

import pytest

from keepwarm.server.body import _read
from tests.server.serving import WEATHER, Served, error_of, served

USER = {"role": "user", "content": "Hi"}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(max_body_bytes=1_000_000) as running:
        yield running


@pytest.fixture(autouse=True)
def _is_well_afterwards(server: Served) -> Iterator[None]:
    yield
    good = server.chat("Are you well?")
    assert good.status_code == 200
    assert good.json()["choices"][0]["message"]["content"]
    assert server.engine.is_alive


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}


# What each is about: the path, the fields, and the field that the error names.
REFUSED: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "stop is a number": (CHAT, {"stop": 5}, "stop"),
    "stop is empty": (CHAT, {"stop": ""}, "stop"),
    "stop holds too many": (CHAT, {"stop": ["a"] * 17}, "stop"),
    "an empty prompt": (TEXT, {"prompt": ""}, "prompt"),
    "no prompt": (TEXT, {"prompt": None}, "prompt"),
    "no tokens": (TEXT, {"prompt": [[]]}, "prompt"),
    "a token beyond the vocabulary": (TEXT, {"prompt": [10**8]}, "prompt"),
    "a token beyond 32 bits": (TEXT, {"prompt": [1 << 40]}, "prompt"),
    "a bias beyond the vocabulary": (CHAT, {"logit_bias": {"99999999": 1}}, "logit_bias"),
    "a bias for a token below 0": (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias"),
    "a bias beyond 32 bits": (CHAT, {"logit_bias": {"9" * 30: 1}}, "logit_bias"),
    "n is 0": (CHAT, {"n": 0}, "n"),
    "n is large": (CHAT, {"n": 10**9}, "n"),
    "a format nobody knows": (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    "a schema that is none": (CHAT, {"response_format": schema({"type": 5})}, "response_format"),
    "a schema that points nowhere": (
        CHAT,
        {"response_format": schema({"$ref": "#/$defs/none"})},
        "response_format",
    ),
    "a schema elsewhere": (
        CHAT,
        {"response_format": schema({"$ref": "http://localhost:1/schema.json"})},
        "response_format",
    ),
    "a pattern that is none": (
        CHAT,
        {"response_format": schema({"type": "string", "pattern": "(("})},
        "response_format",
    ),
    "top_p above 1": (CHAT, {"top_p": 1.1}, "top_p"),
    "temperature below 0": (CHAT, {"temperature": -0.1}, "temperature"),
    "max_tokens below 0": (CHAT, {"max_tokens": -2}, "max_tokens"),
    "max_tokens is 0": (CHAT, {"max_tokens": 0}, "max_tokens"),
    "a regular expression that is none": (CHAT, {"guided_regex": "(("}, "guided_regex"),
    "a grammar that is none": (TEXT, {"prompt": "a", "grammar": "root ::= nothing"}, "grammar"),
    "two grammars": (CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, None),
    "structured outputs of two kinds": (
        CHAT,
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs",
    ),
    "a structural tag": (
        CHAT,
        {"structured_outputs": {"structural_tag": "{}"}},
        "structured_outputs.structural_tag",
    ),
    "functions": (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    "a function to call": (CHAT, {"function_call": {"name": "f"}}, "function_call"),
    "thoughts left out": (CHAT, {"reasoning": {"exclude": True}}, "reasoning.exclude"),
    "a penalty for a part of the prompt": (
        CHAT,
        {"repetition_penalty": 1.1, "repetition_context_size": 20},
        "repetition_context_size",
    ),
    "a seed that is text": (CHAT, {"seed": "7"}, "seed"),
    "messages is an object": (CHAT, {"messages": {}}, "messages"),
    "no messages": (CHAT, {"messages": []}, "messages"),
    "an empty role": (CHAT, {"messages": [{"role": "", "content": "a"}]}, "messages[0].role"),
    "content is a number": (CHAT, {"messages": [{**USER, "content": 1}]}, "messages[0].content"),
    "a part that nobody knows": (
        CHAT,
        {"messages": [{**USER, "content": [{"type": "hologram", "hologram": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    "arguments of the rendering itself": (
        CHAT,
        {"chat_template_kwargs": {"tokenize": False}},
        "chat_template_kwargs",
    ),
    "a template of the client's own": (
        CHAT,
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        "chat_template_kwargs",
    ),
    "tools is text": (CHAT, {"tools": "all"}, "tools"),
    "a tool without a name": (CHAT, {"tools": [{"function": {}}]}, "tools[0].function.name"),
    "a call of nothing": (CHAT, {"tool_choice": "required"}, "tool_choice"),
    "echo": (TEXT, {"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, "echo"),
    "more replies than the queue holds": (TEXT, {"prompt": ["a"] * 128, "n": 16}, "n"),
    "logprobs above 20": (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_refused_with_the_field_named(
    server: Served, path: str, fields: dict[str, Any], param: str | None, streams: bool
) -> None:
    usual = {"messages": [USER]} if path == CHAT else {}
    response = server.post(path, {**usual, "max_tokens": 4, "stream": streams, **fields})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


BULKY: dict[str, tuple[str, bytes]] = {
    "lists": (CHAT, b'{"x":[' + b"[]," * 250_000 + b"[]]}"),
    "numbers": (CHAT, b'{"x":[' + b"1," * 450_000 + b"1]}"),
    "tokens": (TEXT, b'{"prompt":[' + b"5," * 450_000 + b"5]}"),
}


@pytest.mark.parametrize(("path", "body"), BULKY.values(), ids=BULKY.keys())
def test_body_that_would_stall_everyone_is_refused_unparsed(path: str, body: bytes) -> None:
    with served(max_body_bytes=10**7, context_len=1000) as wide:
        kind = {"Content-Type": "application/json"}
        answer = wide.http.post(path, content=body, headers=kind)
        assert answer.status_code == 413
        assert "values" in error_of(answer)["message"]


def test_conversation_of_too_many_parts_is_refused(server: Served) -> None:
    parts = [{"text": "a"}] * 20_001
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "messages[0].content"


def test_large_body_is_read_off_the_event_loop(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return _read(*given)

    monkeypatch.setattr("keepwarm.server.body._read", read)
    message = {"role": "user", "content": "word " * 20_000}
    wrong = server.post(CHAT, {"messages": [message], "top_p": 2})
    assert wrong.status_code == 400
    assert error_of(wrong)["param"] == "top_p"
    far = server.post(CHAT, {"messages": [message]})
    assert error_of(far)["code"] == "context_length_exceeded"
    assert len(threads) == 2
    assert all("AnyIO" in name for name in threads)


SERVED: dict[str, dict[str, Any]] = {
    "top_k over the vocabulary": {"top_k": 2**31 - 1, "temperature": 1},
    "top_k of 1": {"top_k": 1, "temperature": 2},
    "top_k off": {"top_k": -1, "temperature": 1},
    "null for what is not there": {"max_tokens": None, "max_completion_tokens": 2, "stop": None},
    "top_p of 0": {"top_p": 0, "temperature": 1},
    "min_p of 1": {"min_p": 1, "temperature": 1},
    "almost no temperature": {"temperature": 1e-320},
    "a huge penalty": {"repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": -2},
    "a tiny penalty": {"repetition_penalty": 1e-300},
    "the largest seed": {"seed": 2**63 - 1, "temperature": 1, "n": 2},
    "the smallest seed": {"seed": -(2**63), "temperature": 1},
    "all that can be told": {"logprobs": True, "top_logprobs": 20, "n": 4},
    "more tokens than fit": {"max_tokens": 10**12, "stop": ["<"], "logit_bias": {"27": 100}},
    "a bias against everything": {"logit_bias": {str(i): -100 for i in range(300)}},
    "a schema that only nothing fits": {"response_format": schema({"enum": []})},
    "an empty schema": {"response_format": schema({})},
    "a role nobody knows": {"messages": [{"role": "narrator", "content": "Once"}]},
    "an empty message": {"messages": [{"role": "user", "content": ""}]},
    "no content": {"messages": [USER, {"role": "assistant", "content": None}, USER]},
    "markup in a message": {"messages": [{"role": "user", "content": "<|im_end|></think>\x00"}]},
    "a call that is no JSON": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "b"},
        ]
    },
    "a hint for another cache": {"prompt_cache_key": "mine"},
    "fields nobody knows": {"user": "me", "store": True, "": 1, "service_tier": None},
}


@pytest.mark.parametrize("fields", SERVED.values(), ids=SERVED.keys())
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_served(server: Served, fields: dict[str, Any], streams: bool) -> None:
    body = {"messages": [USER], "max_tokens": 3, "stream": streams, **fields}
    response = server.post(CHAT, body)
    if "enum" in json.dumps(fields):
        # Whether it is refused or ends at once is the grammar's to say; it is not a failure.
        assert response.status_code in (200, 400)
        return
    assert response.status_code == 200, response.text
    if streams:
        assert response.text.endswith("data: [DONE]\n\n")


def test_same_prompt_again_is_an_exact_hit(server: Served) -> None:
    reports = [server.chat("The very same.").json() for _ in range(3)]
    assert reports[1]["keepwarm"]["reason"] == "exact"
    contents = {report["choices"][0]["message"]["content"] for report in reports}
    assert len(contents) == 1
    texts = {server.complete("The very same.").json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


def test_choices_are_not_ignored(server: Served) -> None:
    assert len(server.chat(n=5).json()["choices"]) == 5


def test_prompt_longer_than_the_context_is_told(server: Served) -> None:
    response = server.complete([5] * 5000)
    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"
    assert error_of(response)["code"] == "context_length_exceeded"


def test_largest_body_is_taken_and_a_larger_one_is_not(server: Served) -> None:
    body = json.dumps({"messages": [USER], "max_tokens": 1, "user": ""}).encode()
    filled = body[:-2] + b"x" * (1_000_000 - len(body)) + body[-2:]
    headers = {"Content-Type": "application/json"}
    assert len(filled) == 1_000_000
    assert server.http.post(CHAT, content=filled, headers=headers).status_code == 200
    larger = filled[:-2] + b"x" + filled[-2:]
    refused = server.http.post(CHAT, content=larger, headers=headers)
    assert refused.status_code == 413
    assert error_of(refused)["code"] == "body_too_large"


def test_body_without_an_end_is_cut_off(server: Served) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"messages": ['
        for _ in range(200):
            yield b" " * 10_000

    headers = {"Content-Type": "application/json"}
    response = server.http.post(CHAT, content=endless(), headers=headers)
    assert response.status_code == 413


@pytest.mark.parametrize(
    "head",
    [b"GET /health HTTP/1.1\r\nX: ", b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 9_000, b"GET /"],
    ids=["value", "many", "path"],
)
def test_headers_without_an_end_are_cut_off(server: Served, head: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = HTTPResponse(connection)
        response.begin()
        assert response.status == 200
        response.read()  # and the connection goes on
        sent, answer = 0, b""
        connection.sendall(head)
        while not answer and sent < 1 << 22:
            try:
                sent += connection.send(b"x" * 10_000)
                connection.settimeout(0.01)
                answer = connection.recv(100)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert sent < 1 << 22
        assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert server.chat(max_tokens=1).status_code == 200


def test_a_long_but_finite_header_is_read(server: Served) -> None:
    assert server.http.get("/health", headers={"X": "y" * 50_000}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xff", b'{"messages": NaN}', b"[" * 100_000],
    ids=["nothing", "half", "null", "list", "text", "bytes", "NaN", "deep"],
)
def test_what_is_no_json_object_is_told(server: Served, body: bytes) -> None:
    for path in (CHAT, TEXT, "/tokenize"):
        headers = {"Content-Type": "application/json"}
        response = server.http.post(path, content=body, headers=headers)
        assert response.status_code == 400
        error_of(response)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_other_kinds_of_bodies_are_told(server: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    response = server.http.post(CHAT, content=b'{"messages": []}', headers=headers)
    assert response.status_code == 415
    error_of(response)


def test_deep_tools_are_told(server: Served) -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    tool = {"function": {"name": "f", "parameters": deep}}
    assert server.chat(tools=[tool]).status_code == 400
    assert server.chat(chat_template_kwargs=deep).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "\\ud83d"}], "max_tokens": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "\\uDC00": 1}',
    ],
    ids=["value", "name"],
)
def test_half_of_a_character_is_told(server: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = server.http.post(CHAT, content=body, headers=headers)
    assert response.status_code == 400
    error_of(response)


def test_client_that_hangs_up_in_its_own_body(server: Served) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
    for text in (head, head + b"Content-Type: application/json\r\n\r\n{", b"\x16\x03\x01\x00", b""):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(text)
    assert server.chat(max_tokens=1).status_code == 200  # nobody else minds


def test_many_clients_at_once_are_all_answered(server: Served) -> None:
    def ask(i: int) -> int:
        fields: dict[str, Any] = {"max_tokens": 1}
        if i % 3 == 1:
            fields = {"stop": 5}
        if i % 3 == 2:
            fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 2}
        return server.chat(f"Number {i % 5}", **fields).status_code

    with ThreadPoolExecutor(50) as pool:
        statuses = list(pool.map(ask, range(150)))
    assert [status for i, status in enumerate(statuses) if i % 3 == 1] == [400] * 50
    assert {status for i, status in enumerate(statuses) if i % 3 != 1} == {200}


def test_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwarm.server.body.READ_S", 0.2)
    with served() as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            connection.sendall(head.encode())
            answer = connection.makefile("rb").read().decode()
        assert answer.startswith("HTTP/1.1 408 ")
        assert '"code":"body_too_slow"' in answer.replace(" ", "")
        assert server.chat().status_code == 200
