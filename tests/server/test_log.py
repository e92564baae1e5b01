"""Lines of the log: nothing that a client sends can make one, or steer a terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.server.log import JsonLines, TextLines, printable
from tests.server.serving import Served, served

FORGED = "\n2026-01-01 00:00:00,000 INFO forged\x1b[2J\x85\u2028\u202e\x7f"
STRICT = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no role ' + m.role) }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(template=STRICT, api_keys=("alpha",)) as running:
        yield running


def record(message: str, *given: Any, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("keepwarm", logging.INFO, "", 0, message, given, exc_info)


def test_printable_keeps_what_people_read() -> None:
    assert printable("Grüße, 日本 👋 'a'") == "Grüße, 日本 👋 'a'"
    assert printable("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
    assert printable("\u202eabc") == "\\u202eabc"


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_line_is_one_line_whatever_the_message_holds(lines: logging.Formatter) -> None:
    line = lines.format(record("the tool %s is odd", FORGED))
    assert line.isprintable()
    assert "forged" in line


def test_traceback_cannot_forge_a_line() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        text = TextLines().format(record("failed", exc_info=sys.exc_info()))
    first, *rest = text.split("\n")
    assert first.endswith("INFO failed")
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    told = json.loads(JsonLines().format(record("%s", FORGED)))
    assert told["message"] == FORGED


def test_nothing_from_a_request_forges_a_line(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    key = {"Authorization": "Bearer alpha"}
    user = {"role": "user", "content": "Hi"}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": FORGED}}}
    with caplog.at_level(logging.DEBUG, logger="keepwarm"):
        server.http.get("/%0a2026-01-01 INFO forged%1b[2J")
        server.http.get("/%0a2026-01-01 INFO forged%1b[2J", headers=key)
        for body in (
            {"messages": [{"role": f"forged{FORGED}", "content": "a"}]},
            {"messages": [user], "response_format": schema},
            {"messages": [user], f"forged{FORGED}": 1, "top_p": 9},
            {"messages": [user], "tools": [{"type": f"forged{FORGED}"}]},
        ):
            server.post("/v1/chat/completions", body, headers=key)
    messages = [entry.getMessage() for entry in caplog.records]
    assert sum("forged" in message for message in messages) >= 4
    assert all(message.isprintable() for message in messages)
