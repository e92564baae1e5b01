"""`/v1/cache/explain` foretells what a request gets, in every protocol, and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.explain.test_miss import TOOLS, text
from tests.server.serving import Served, error_of, served
from tests.server.test_misses import CLOCK, body


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    # Nothing is read ahead: the tree stands still between the question and the request.
    with served(request.param, idle_prefill="off") as made:
        yield made


def explained(server: Served, asked: dict[str, Any], **options: Any) -> dict[str, Any]:
    answer = server.post("/v1/cache/explain", asked, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_foretold_tokens_are_what_the_request_then_gets(server: Served) -> None:
    draw = Random(3)
    asked = body(text(1), text(2), max_tokens=1)
    for i in range(12):
        turns = [m["content"] for m in asked["messages"][1:]]
        system = asked["messages"][0]["content"]
        kind = draw.choice(["goes on", "edited", "other system", "again"])
        if kind == "goes on":
            turns += [text(100 + i, 12), text(200 + i, 12)]
        elif kind == "edited":
            turns[draw.randrange(len(turns))] = text(300 + i)
        elif kind == "other system":
            system = text(400 + i)
        asked = body(system, *turns, max_tokens=1)
        foretold = explained(server, asked)
        got = server.post("/v1/chat/completions", asked).json()
        assert foretold["prompt_tokens"] == got["usage"]["prompt_tokens"]
        cached = got["keepwarm"]["cached_tokens"]
        if kind == "again":  # the end of the very same prompt may be kept beside the tree
            assert foretold["cached_tokens"] <= cached <= got["usage"]["prompt_tokens"]
        else:
            assert foretold["cached_tokens"] == cached


def test_nothing_is_run_nor_remembered(server: Served) -> None:
    asked = body(f"Only here. {text(5)}", text(6))
    first = explained(server, asked)
    assert explained(server, asked)["cached_tokens"] == first["cached_tokens"]
    before = server.http.get("/v1/cache/requests?limit=100").json()["data"]
    explained(server, asked)
    assert server.http.get("/v1/cache/requests?limit=100").json()["data"] == before


def test_every_protocol_is_taken(server: Served) -> None:
    system, question = text(1), text(2)
    said = [{"role": "user", "content": question}]
    chat = explained(server, body(system, question))
    for asked in (
        {"system": system, "messages": said, "max_tokens": 4, "model": "claude"},
        {"instructions": system, "input": question},
    ):
        assert explained(server, asked)["prompt_tokens"] == chat["prompt_tokens"]
    assert explained(server, {"prompt": text(8)})["prompt_tokens"] > 20


def test_wrong_field_is_named(server: Served) -> None:
    error = error_of(server.post("/v1/cache/explain", {"messages": "Hi"}))
    assert error["param"] == "messages"
    error = error_of(server.post("/v1/cache/explain", {"prompt": "Hi", "max_tokens": "few"}))
    assert error["param"] == "max_tokens"


def test_place_and_cause_are_told_before_it_costs_anything(server: Served) -> None:
    server.post("/v1/chat/completions", body(CLOCK.format(3) + text(21), text(22)))
    found = explained(server, body(CLOCK.format(4) + text(21), text(22)))
    assert found["nearest"]["place"] == "the system prompt"
    assert (found["nearest"]["was"][0], found["nearest"]["now"][0]) == ("3", "4")
    assert "would be read" in found["words"]
    server.post("/v1/chat/completions", body(text(31), text(32), tools=TOOLS))
    found = explained(server, body(text(31), text(32), tools=TOOLS[::-1]))
    assert found["nearest"]["cause"] == "the same tools in another order"
    assert "fixed order" in found["words"]


def test_last_requests_are_those_of_the_key() -> None:
    with served(api_keys=("one", "other")) as server:
        for key in ("one", "one", "other"):
            server.post("/v1/chat/completions", body(text(1), text(2)), headers=bearer(key))
        for key, count in (("one", 2), ("other", 1)):
            answers = server.http.get("/v1/cache/requests", headers=bearer(key)).json()["data"]
            assert len(answers) == count
            assert answers[0]["usage"]["prompt_tokens"] > 0
        found = explained(server, body(text(1), text(2)), headers=bearer("other"))
        assert found["cached_tokens"] > 0
        hidden = server.post("/v1/cache/explain", body(text(1), text(2)))
        assert hidden.status_code == 401


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
