"""What was read again is told on the log's line and, when asked for, in the answer."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from keepwarm.server.log import JsonLines
from tests.explain.test_miss import TOOLS, text
from tests.server.serving import served

HEADERS = {"x-keepwarm-misses": "1"}
CLOCK = "You are a careful helper. It is 10:0{} now. "


def body(system: str, *turns: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    messages = [{"role": "system", "content": system}, *said]
    return {"messages": messages, "max_tokens": 2, **more}


def misses(server: Any, asked: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    answer = server.post("/v1/chat/completions", asked, headers={**HEADERS, **headers}).json()
    found: list[dict[str, Any]] = answer["keepwarm"].get("misses", [])
    return found


def test_clock_in_the_system_prompt_is_named_on_the_line_and_in_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.server")
    with served() as server:
        assert misses(server, body(CLOCK.format(0) + text(1), text(2))) == []
        (miss,) = misses(server, body(CLOCK.format(1) + text(1), text(2)))
    assert miss["place"] == "the system prompt"
    assert miss["cause"] == "the text differs here"
    assert miss["before"].endswith("10:0")
    assert (miss["was"], miss["now"]) == ("0", "1")
    assert "behind what stays" in miss["advice"]
    assert miss["read_again_tokens"] > 40
    line = caplog.records[-1].getMessage()
    assert "in the system prompt" in line
    assert "tokens read again" in line
    told = json.loads(JsonLines().format(caplog.records[-1]))
    assert told["route"] == "/v1/chat/completions"
    assert told["misses"][0]["parted_at"] == miss["parted_at"]
    assert told["keepwarm"]["cached_tokens"] >= 0


def test_tools_in_another_order_are_named() -> None:
    with served() as server:
        misses(server, body(text(1), text(2), tools=TOOLS))
        (miss,) = misses(server, body(text(1), text(2), tools=TOOLS[::-1]))
    assert miss["cause"] == "the same tools in another order"


def test_eviction_is_named() -> None:
    with served("qwen3_5", cache_bytes=400_000) as server:
        misses(server, body(text(1), text(2)))
        for i in range(8):
            misses(server, body(f"Number {i}. {text(i, 60)}", text(3 + i, 60)))
        (miss,) = misses(server, body(text(1), text(2)))
    assert miss["cause"] == "evicted to make room"
    assert "--cache-bytes" in miss["advice"]


def test_conversation_that_goes_on_tells_nothing() -> None:
    with served() as server:
        misses(server, body(text(1), text(2)))
        assert misses(server, body(text(1), text(2), "No.", "Why?")) == []


def test_nobody_is_compared_with_another_even_where_the_cache_is_shared() -> None:
    with served(api_keys=("one", "other"), shared_cache=True) as server:
        misses(server, body(CLOCK.format(0) + text(1), text(2)), authorization="Bearer one")
        asked = body(CLOCK.format(1) + text(1), text(2))
        assert misses(server, asked, authorization="Bearer other") == []
        again = body(CLOCK.format(2) + text(1), text(2))
        assert misses(server, again, authorization="Bearer one") != []


def test_text_stays_out_of_log_and_answer_where_it_is_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.server")
    with served(hide_text=True) as server:
        misses(server, body(CLOCK.format(0) + text(1), text(2)))
        (miss,) = misses(server, body(CLOCK.format(1) + text(1), text(2)))
    assert "was" not in miss
    assert "10:0" not in caplog.text
    assert "tokens read again" in caplog.text


def test_answer_says_nothing_of_it_unless_asked() -> None:
    with served() as server:
        for minute in (0, 1):
            asked = body(CLOCK.format(minute) + text(1), text(2))
            answer = server.post("/v1/chat/completions", asked).json()
        assert "misses" not in answer["keepwarm"]
