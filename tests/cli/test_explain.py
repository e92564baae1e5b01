"""`keepwarm explain`: a request against a running server, the last ones of a key, and a log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from keepwarm.cli.main import main
from keepwarm.server.log import JsonLines
from tests.explain.test_miss import TOOLS, text
from tests.server.serving import served
from tests.server.test_misses import CLOCK, body


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["explain", *argv]) == 0
    return capsys.readouterr().out


def test_request_last_ones_and_log_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.server")
    file = tmp_path / "request.json"
    with served(api_keys=("secret",)) as server:
        ask = ["--url", server.url, "--api-key", "secret"]
        headers = {"Authorization": "Bearer secret"}
        for minute in range(3):
            asked = body(CLOCK.format(minute) + text(11), text(12))
            server.post("/v1/chat/completions", asked, headers=headers)
        for tools in (TOOLS, TOOLS[::-1]):
            asked = body(text(13), text(14), tools=tools)
            server.post("/v1/chat/completions", asked, headers=headers)
        file.write_text(json.dumps(body(CLOCK.format(9) + text(11), text(12))))
        told = said(capsys, str(file), *ask)
        assert "in the system prompt" in told
        assert "10:0|9" in told
        assert json.loads(said(capsys, str(file), *ask, "--json"))["nearest"]["now"][0] == "9"
        told = said(capsys, "--last", "3", *ask)
        assert told.count("/v1/chat/completions: ") == 3
        assert "the same tools in another order" in told
        assert main(["explain", "--last", "--url", server.url]) == 2
        assert "API key" in capsys.readouterr().err
    log = tmp_path / "server.jsonl"
    lines = [JsonLines().format(record) for record in caplog.records]
    log.write_text("\n".join(["not ours", *lines]))
    ranking = json.loads(said(capsys, str(log), "--json"))
    counts = {cost["place"]: cost["requests"] for cost in ranking}
    assert counts == {"the system prompt": 2, "the tools": 1}
    tokens = [cost["read_again_tokens"] for cost in ranking]
    assert tokens == sorted(tokens, reverse=True)
    told = said(capsys, str(log))
    assert "advice: let the client send tools in a fixed order" in told


def test_three_planted_causes_of_an_agent_session_are_named(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keepwarm.server")
    with served("qwen3_5", cache_bytes=1_500_000, idle_prefill="off") as server:

        def asks(system: str, question: str, tools: list[Any] | None = None) -> None:
            server.post("/v1/chat/completions", body(system, question, tools=tools, max_tokens=1))

        asks(CLOCK.format(0) + text(41), text(42))
        asks(CLOCK.format(1) + text(41), text(42))  # a clock
        asks(text(43), text(44), TOOLS)
        asks(text(43), text(44), TOOLS[1:] + TOOLS[:1])  # tools in another order
        for i in range(8):
            asks(text(50 + i, 150), text(60 + i, 150))
        asks(CLOCK.format(1) + text(41), text(42))  # evicted
        told = said(capsys, "--last", "13", "--url", server.url)
    log = "\n".join(record.getMessage() for record in caplog.records)
    for words in ("10:0|0' → ", "the same tools in another order", "evicted to make room"):
        assert words in told
        assert words in log


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name a FILE, or --last"),
        (["--last", "--url", "http://127.0.0.1:9"], "no keepwarm answers at http://127.0.0.1:9"),
        (["/no/such/file"], "cannot read /no/such/file"),
    ],
)
def test_mistake_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *argv]) == 2
    told: Any = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_text_that_is_neither_request_nor_log_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("Milk\nBread\n")
    assert main(["explain", str(tmp_path / "notes.txt")]) == 2
    assert "neither a request in JSON nor a log" in capsys.readouterr().err
