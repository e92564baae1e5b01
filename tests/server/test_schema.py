"""Requests: what is taken, and what it is taken for."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.server.schema import ChatRequest, CompletionRequest

USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [USER], **fields})


def test_null_is_not_given() -> None:
    optional = {name: None for name in ChatRequest.model_fields if name != "messages"}
    assert chat(**optional).model_dump() == chat().model_dump()


def test_unknown_fields_are_ignored() -> None:
    assert chat(user="me", store=True, metadata={"a": 1}, service_tier="auto") == chat()


def test_whole_numbers_may_be_written_as_floats() -> None:
    asked = chat(max_tokens=5.0, seed=-3.0, temperature=1)
    assert (asked.max_tokens, asked.seed, asked.temperature) == (5, -3, 1)


def test_new_name_of_the_token_limit_goes_first() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert chat(max_tokens=5).token_limit == 5
    assert chat().token_limit is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_of_a_chat_are_a_number(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).num_logprobs == expected


def test_one_stop_is_a_list_of_one() -> None:
    assert chat(stop="a").stop == ("a",)
    assert chat(stop=["a", "b"]).stop == ("a", "b")
    assert chat().stop == ()


def test_messages_keep_what_only_templates_know() -> None:
    message = {"role": "assistant", "content": None, "mood": "calm", "reasoning_content": "Hm."}
    assert chat(messages=[message]).plain_messages() == [message]


def test_tools_keep_what_only_templates_know() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"a": 1}}}
    assert chat(tools=[tool]).plain_tools() == [tool]
    assert chat(tools=[]).plain_tools() is None


def test_effort_is_an_argument_of_the_template() -> None:
    assert chat(reasoning_effort="low").thinking().template_kwargs() == {"reasoning_effort": "low"}
    off = {"reasoning_effort": "none", "enable_thinking": False}
    assert chat(reasoning_effort="none").thinking().template_kwargs() == off
    assert chat(enable_thinking=False).thinking().template_kwargs() == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2]], [[1], [2]])],
)
def test_prompt_is_one_or_more(prompt: Any, expected: list[Any]) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompt == expected


def test_best_of_may_equal_n() -> None:
    asked = CompletionRequest.model_validate({"prompt": "a", "n": 2, "best_of": 2})
    assert asked.num_choices == 2
