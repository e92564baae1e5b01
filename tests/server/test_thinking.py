"""A thinking budget over HTTP: a model that never stops to think is made to answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.serving import Served, events_of, served

KWARGS = {"thinks": True}
BUDGETS: dict[str, dict[str, Any]] = {
    "of its own": {"thinking_budget": 8},
    "vLLM's": {"thinking_token_budget": 8},
    "Anthropic's": {"thinking": {"type": "enabled", "budget_tokens": 8}},
    "OpenRouter's": {"reasoning": {"max_tokens": 8}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running
        running.engine.call(lambda cache: cache.check())


def ask(server: Served, **fields: Any) -> dict[str, Any]:
    fields = {"chat_template_kwargs": KWARGS, "max_tokens": 24, **fields}
    answer: dict[str, Any] = server.chat(**fields).raise_for_status().json()
    return answer


def spent(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])


def test_thought_without_a_budget_takes_all_there_is(server: Served) -> None:
    answer = ask(server)
    assert not answer["choices"][0]["message"]["content"]
    assert spent(answer) == 24


@pytest.mark.parametrize("name", BUDGETS)
def test_thought_ends_at_its_budget_and_an_answer_follows(server: Served, name: str) -> None:
    answer = ask(server, **BUDGETS[name])
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"]
    assert "</think>" not in message["content"] + message["reasoning_content"]
    assert spent(answer) == 8
    assert answer["usage"]["completion_tokens"] == 24


def test_stream_says_the_same(server: Served) -> None:
    whole = ask(server, thinking_budget=8)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    fields = {"chat_template_kwargs": KWARGS, "max_tokens": 24, "thinking_budget": 8}
    events = events_of(server.chat(**fields, **options))
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    assert "".join(d.get("content") or "" for d in deltas) == message["content"]
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8


def test_grammar_binds_behind_the_thought_that_was_closed(server: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = ask(server, thinking_budget=8, response_format=wanted, max_tokens=200)
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"a"}
    assert spent(answer) == 8


def test_choices_with_log_probabilities_each_have_the_budget(server: Served) -> None:
    answer = ask(
        server, thinking_budget=8, n=3, temperature=1, seed=1, logprobs=True, top_logprobs=2
    )
    assert all(choice["message"]["content"] for choice in answer["choices"])
    assert spent(answer) <= 24


def test_next_turn_reuses_the_thought_that_was_closed(server: Served) -> None:
    """The prefix is what the model has read, up to where the template writes on: behind the tag."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    # Words that are encoded again as they were generated.
    (the,) = server.engine.tokenizer.encode(" the", add_special_tokens=False)
    body = {"messages": question, "chat_template_kwargs": KWARGS, "max_tokens": 24}
    body |= {"logit_bias": {str(the): 100}}
    first = server.post("/v1/chat/completions", {**body, "thinking_budget": 12}).json()
    said = first["choices"][0]["message"]
    messages = [*question, said, {"role": "user", "content": "And in Oslo?"}]
    second = server.post("/v1/chat/completions", {**body, "messages": messages}).json()
    read = first["usage"]["prompt_tokens"] + 12 + 1
    assert second["keepwarm"]["cached_tokens"] >= read


def test_server_has_a_default_that_requests_overrule() -> None:
    with served(thinking_budget=5) as strict:
        assert spent(ask(strict)) == 5
        assert spent(ask(strict, thinking_budget=9)) == 9
        body = {
            "model": "any",
            "max_tokens": 24,
            "messages": [{"role": "user", "content": "Hi"}],
        }
        assert strict.post("/v1/messages", body).status_code == 200
        assert strict.chat(max_tokens=5).json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("budget", [-1, 1.5, "8", True])
def test_budget_that_is_none_is_refused(server: Served, budget: Any) -> None:
    assert server.chat(thinking_budget=budget).status_code == 400


def test_budget_of_nothing_answers_at_once(server: Served) -> None:
    answer = ask(server, thinking_budget=0)
    assert answer["choices"][0]["message"]["content"]
    assert spent(answer) <= 1
