"""Connections that never become a request, in number and for as long as they like."""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from keepwarm.server.connections import Connection, raise_file_limit
from tests.server.serving import Served, events_of, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


def connected(server: Served, *, sends: bytes = b"") -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=20)
    made.sendall(sends)
    return made


def is_closed(connection: socket.socket) -> bool:
    """Within the time that its socket allows."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


HALVES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half the headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
}


@pytest.mark.parametrize("sends", HALVES.values(), ids=HALVES.keys())
def test_headers_that_never_end_are_given_up(
    server: Served, monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    monkeypatch.setattr(Connection, "headers_s", 0.3)
    with connected(server, sends=sends) as half:
        assert is_closed(half)
    # One that goes on sending has no more time than others.
    with connected(server, sends=b"GET /health HTTP/1.1\r\n") as slow:
        slow.settimeout(0.05)
        began = time.monotonic()
        while not drips(slow):
            assert time.monotonic() - began < 10


def drips(connection: socket.socket) -> bool:
    """Sends one header more; whether the connection is closed."""
    try:
        connection.sendall(b"X: y\r\n")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_second_request_of_a_connection_has_a_deadline_too(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "headers_s", 0.3)
    whole = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(server, sends=whole) as kept:
        answer = b""
        while not answer.endswith(b"}"):
            answer += kept.recv(10_000)
        assert b"200 OK" in answer
        kept.sendall(b"GET /health/live HTTP/1.1\r\n")
        assert is_closed(kept)


def test_reply_may_take_longer_than_headers(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "headers_s", 0.01)
    answer = server.chat("Hello", max_tokens=200, stream=True, ignore_eos=True)
    assert len(events_of(answer)) > 1


def test_health_answers_beside_many_half_requests(server: Served) -> None:
    with ExitStack() as held:
        for _ in range(300):
            held.enter_context(connected(server, sends=b"GET /health HTTP/1.1\r\n"))
        assert server.http.get("/health").status_code == 200
        assert server.chat("Hello").status_code == 200


def test_connections_beyond_the_most_are_closed_and_told_once(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert server.http.get("/health").status_code == 200
    monkeypatch.setattr(Connection, "max_connections", 5)
    monkeypatch.setattr(Connection, "_told_at", -1000.0)
    with ExitStack() as held, caplog.at_level(logging.WARNING, logger="keepwarm.server"):
        for _ in range(5):
            held.enter_context(connected(server))
        for _ in range(20):
            assert is_closed(held.enter_context(connected(server)))
        assert server.http.get("/health").status_code == 200  # on the connection that it has
    told = [record for record in caplog.records if "connections are open" in record.message]
    assert len(told) == 1


def test_limit_of_files_is_raised_where_that_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        room = raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
        assert room == min(4096, soft - 256)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
