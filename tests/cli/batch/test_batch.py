"""`keepwarm batch` with the built-in model: every line its answer, and nothing asked twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from keepwarm.cli.batch.lines import Answers, Line, read_lines
from keepwarm.cli.batch.run import answer_all
from keepwarm.cli.main import main

SYSTEM = {"role": "system", "content": "Anna lives in Lund. Bruno lives in Porto. " * 8}


def chat(custom_id: str, text: str, **options: Any) -> str:
    messages = [SYSTEM, {"role": "user", "content": text}]
    body = {"messages": messages, "max_tokens": 4, **options}
    return json.dumps({"custom_id": custom_id, "url": "/v1/chat/completions", "body": body})


LINES = [
    chat("anna", "Where does Anna live?"),
    chat("bruno", "Where does Bruno live?"),
    "no JSON",
    "",
    chat("wrong", "Hello", n=0),
    chat("anna", "again"),
    chat("stream", "Hello", stream=True),
    json.dumps({"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "A", "max_tokens": 2}}),
    json.dumps({"custom_id": "lost", "url": "/v1/nothing", "body": {}}),
]  # fmt: skip


def told(file: Path) -> dict[str | None, dict[str, Any]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["custom_id"]: line for line in lines}


def test_every_line_gets_an_answer_and_a_second_run_asks_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("\n".join(LINES))
    assert main(["batch", str(requests), str(answers)]) == 1
    found = told(answers)
    for name in ("bruno", "text"):
        response = found[name]["response"]
        assert response["status_code"] == 200
        assert response["body"]["usage"]["completion_tokens"] > 0
        assert found[name]["error"] is None
    assert found["wrong"]["response"]["body"]["error"]["param"] == "n"
    assert found["lost"]["response"]["status_code"] == 404
    assert "not JSON" in found[None]["error"]["message"]
    assert "nobody to stream to" in found["stream"]["error"]["message"]
    twice = [line for line in answers.read_text().splitlines() if '"custom_id": "anna"' in line]
    assert len(twice) == 2
    assert sum("earlier line" in line for line in twice) == 1
    assert "3 answered, 5 failed" in capsys.readouterr().err

    with answers.open("a") as out:
        out.write('{"custom_id": "torn", "resp')  # killed while it wrote
    requests.write_text("\n".join([LINES[0], LINES[1], chat("new", "Where?")]))
    assert main(["batch", str(requests), str(answers)]) == 0
    assert set(told(answers)) == {"anna", "bruno", "text", "new"}
    assert "1 answered in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: ["absent", "out"], "there is no file absent"),
        (lambda folder: [str(folder / "in"), str(folder / "in")], "IN and OUT are the same"),
        (lambda folder: [str(folder / "in"), str(folder / "other")], "something else than answers"),
    ],
    ids=["no file", "one file", "another file"],
)
def test_files_that_cannot_be_meant_are_told_at_once(
    tmp_path: Path, make: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(LINES[0])
    (tmp_path / "other").write_text("a letter to nobody\n")
    assert main(["batch", *make(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "other").read_text() == "a letter to nobody\n"


def test_a_full_engine_is_asked_again_and_only_so_many_run_at_once(tmp_path: Path) -> None:
    num_running, most, refused = 0, 0, {"1", "3"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_running, most
        body = json.loads((await receive())["body"])
        num_running += 1
        most = max(most, num_running)
        await asyncio.sleep(0.01)
        num_running -= 1
        status = 429 if body["name"] in refused else 200
        refused.discard(body["name"])
        await JSONResponse({"usage": {"prompt_tokens": 2}}, status)(scope, receive, send)

    answers = Answers(tmp_path / "out.jsonl")
    lines = [Line(i, str(i), "/v1/x", {"name": str(i)}) for i in range(9)]
    tally = asyncio.run(
        answer_all(app, lines, answers, num_at_once=3, on_answer=lambda tally: None)
    )
    answers.close()
    assert (tally.num_good, tally.num_bad, tally.prompt_tokens) == (9, 0, 18)
    assert most == 3
    assert set(told(tmp_path / "out.jsonl")) == {str(i) for i in range(9)}


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(LINES[:2]))
    lines = read_lines(file)
    assert next(lines).custom_id == "anna"
