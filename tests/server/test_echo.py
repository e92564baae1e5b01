"""`echo` with `logprobs`, and the routes beside it: what lm-eval and vLLM's clients ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from .serving import Served, events_of, served, tokenizer


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("qwen3_5") as made:
        yield made


CONTEXT = tokenizer().encode("The user asks a question, and the assistant answers it. ")
CHOICES = [tokenizer().encode(words) for words in ("What is it?", "The weather in Paris.", "No")]


def scored(server: Served, tokens: Any, **options: Any) -> dict[str, Any]:
    body = {"logprobs": 1, "echo": True, "max_tokens": 1, "temperature": 0, **options}
    response = server.complete(tokens, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_choices_of_one_context_are_scored_as_one_plain_pass_would(server: Served) -> None:
    """As lm-eval reads it: the sum behind the context, without the generated token."""
    prompts = [[*CONTEXT, *choice] for choice in CHOICES]
    answer = scored(server, prompts)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logits = server.engine.call(lambda _, p=prompt: _values(server, p))
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert told["token_logprobs"][1:-1] == pytest.approx(logits, abs=1e-3)
        for value, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:]):
            assert value <= max(top.values()) + 1e-6
        assert {len(entries) for entries in told.values()} == {len(prompt) + 1}
        assert choice["text"].startswith(tokenizer().decode(prompt))


def _values(server: Served, prompt: list[int]) -> list[float]:
    core = server.engine._core
    assert core is not None
    logits = core._model(mx.array(prompt)[None])[0].astype(mx.float32)
    values = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    found = mx.take_along_axis(values[:-1], mx.array(prompt[1:])[:, None], axis=-1)
    return found[:, 0].tolist()  # type: ignore[no-any-return]


def test_the_beginning_of_a_third_choice_comes_from_the_cache(server: Served) -> None:
    for choice in CHOICES:
        answer = scored(server, [*CONTEXT, *choice, 7])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > len(CONTEXT) // 2


def test_nothing_is_generated_where_nothing_is_asked_for(server: Served) -> None:
    answer = scored(server, "The weather", max_tokens=0)
    (choice,) = answer["choices"]
    assert choice["text"] == "The weather"
    assert choice["finish_reason"] == "length"
    assert "".join(choice["logprobs"]["tokens"]) == "The weather"
    assert choice["logprobs"]["text_offset"][0] == 0
    assert answer["usage"]["completion_tokens"] == 0
    assert server.complete("The weather", max_tokens=0).json()["choices"][0]["text"] == ""


def test_an_echo_comes_first_in_a_stream(server: Served) -> None:
    plain = server.complete("The weather").json()["choices"][0]["text"]
    response = server.complete("The weather", echo=True, stream=True)
    texts = [choice["text"] for event in events_of(response) for choice in event["choices"]]
    assert texts[0] == "The weather"
    assert "".join(texts) == "The weather" + plain


def test_tokens_become_text_again(server: Served) -> None:
    tokens = server.post("/tokenize", {"prompt": "The weather in Paris"}).json()["tokens"]
    answer = server.post("/detokenize", {"tokens": tokens}).json()
    assert answer == {"prompt": tokenizer().decode(tokens)}
    assert server.post("/detokenize", {"tokens": [10**6]}).status_code == 400
    assert server.post("/detokenize", {"tokens": []}).status_code == 400


def test_tokenizer_tells_what_clients_need(server: Served) -> None:
    info = server.http.get("/tokenizer_info").json()
    assert info["eos_token"] == tokenizer().eos_token
    assert info["chat_template"] == tokenizer().chat_template
    assert info["model_max_length"] == server.engine.context_len
