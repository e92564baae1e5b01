"""Chats that do not end in a 400, over HTTP and with OpenAI's client: what the template refuses is
brought into a form that it takes, and the answer names the rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError

from tests.server.serving import TEMPLATE, Served, error_of, events_of, served

# As Qwen3.5's: one system message, at the start, and calls whose arguments are objects.
STRICT = (
    "{%- for m in messages -%}{%- if m.role == 'developer' or m.role == 'system' and not loop.first"
    " -%}{{ raise_exception('System message must be at the beginning.') }}{%- endif -%}"
    "{%- for call in m.tool_calls or [] -%}{%- if call.function.arguments is not mapping -%}"
    "{{ raise_exception('arguments must be an object') }}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    + TEMPLATE.strip()
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
QUESTION = {"role": "user", "content": "What is the weather?"}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


REFUSED: dict[str, list[dict[str, Any]]] = {
    "attachments": [{"role": "user", "content": [{"type": "text", "text": "This?"}, IMAGE]}],
    "call_arguments": [QUESTION, called('{"city"'), QUESTION],
    "developer": [{"role": "developer", "content": "Be brief."}, QUESTION],
    "leading_system": [*[{"role": "system", "content": "Be brief."}] * 2, QUESTION],
    "later_system": [QUESTION, {"role": "system", "content": "Be brief."}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(template=STRICT) as running:
        yield running
        running.engine.call(lambda cache: cache.check())


@pytest.mark.parametrize("rule", REFUSED)
def test_answer_names_the_rule_that_acted(rule: str, server: Served) -> None:
    body = {"messages": REFUSED[rule], "max_tokens": 2}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["keepwarm"]["hygiene"] == [rule]
    streamed = server.post("/v1/chat/completions", {**body, "stream": True})
    assert events_of(streamed)[-1]["keepwarm"]["hygiene"] == [rule]


def test_ordinary_answer_names_none(server: Served) -> None:
    assert "hygiene" not in server.chat().json()["keepwarm"]


@pytest.mark.parametrize("rule", REFUSED)
def test_switched_off_rule_is_a_400_again(rule: str) -> None:
    with served(template=STRICT, hygiene_off=(rule,)) as without:
        body = {"messages": REFUSED[rule], "max_tokens": 2}
        answer = without.post("/v1/chat/completions", body)
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "messages"


def test_session_with_a_screenshot_stays_warm(server: Served) -> None:
    client = server.client()
    messages: list[Any] = [
        {"role": "system", "content": "You are a helpful assistant of many words. " * 4},
        {"role": "developer", "content": "Answer in French."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]},
    ]
    cached = []
    for turn in ("And this?", "Why?", "Really?"):
        reply = client.chat.completions.create(model="any", messages=messages, max_tokens=4)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        cached.append((reply.usage.prompt_tokens_details.cached_tokens, reply.usage.prompt_tokens))
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        messages.append({"role": "system", "content": f"It is later now ({turn})"})
        messages.append({"role": "user", "content": turn})
    assert cached[1][0] >= cached[0][1] - 16
    assert cached[2][0] >= cached[1][1] - 16


def test_tokenize_shows_what_the_model_reads(server: Served) -> None:
    body = {"messages": REFUSED["attachments"]}
    tokens = server.post("/tokenize", body).raise_for_status().json()["tokens"]
    text = server.engine.tokenizer.decode(tokens)
    assert "This?[image: this model reads text only]" in text


def test_unknown_part_is_still_refused(server: Served) -> None:
    parts: Any = [{"type": "hologram"}]
    with pytest.raises(BadRequestError, match="hologram"):
        server.client().chat.completions.create(
            model="any", messages=[{"role": "user", "content": parts}]
        )
