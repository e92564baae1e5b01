"""Requests: what is taken, and what it is taken for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from keepwarm.engine.grammar import any_object
from keepwarm.engine.request import Grammar, GrammarKind
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


def test_no_limit_may_be_written_as_minus_one() -> None:
    assert chat(max_tokens=-1, max_completion_tokens=-1).token_limit is None
    assert CompletionRequest.model_validate({"prompt": "a", "max_tokens": -1}).token_limit is None
    with pytest.raises(ValidationError):
        chat(max_tokens=-2)


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("min_tokens", 0),
        ("functions", []),
        ("function_call", "auto"),
        ("function_call", "none"),
        ("repetition_context_size", 20),
        ("reasoning", {"exclude": False}),
        ("guided_whitespace_pattern", None),
        ("structured_outputs", None),
        ("grammar", ""),
        ("top_logprobs", 0),
    ],
)
def test_fields_that_change_nothing_are_taken(name: str, harmless: Any) -> None:
    asked = chat(**{name: harmless})
    assert asked.asked_grammar() is None
    assert asked.asked_thinking() == chat().asked_thinking()
    assert asked.num_logprobs is None


# Each way to say the same, under the names of other servers.
SAME: dict[str, tuple[dict[str, Any], Grammar]] = {
    "schema": ({"guided_json": {"a": 1}}, Grammar(GrammarKind.JSON_SCHEMA, '{"a": 1}')),
    "text of a schema": ({"guided_json": "{}"}, Grammar(GrammarKind.JSON_SCHEMA, "{}")),
    "regex": ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
    "choice": ({"guided_choice": ["a", "é"]}, Grammar(GrammarKind.LARK, 'start: "a" | "é"')),
    "grammar": ({"guided_grammar": "x"}, Grammar(GrammarKind.LARK, "x")),
    "llama.cpp": ({"grammar": "root ::= x"}, Grammar(GrammarKind.LARK, "root ::= x")),
    "vLLM schema": (
        {"structured_outputs": {"json": {"a": 1}}},
        Grammar(GrammarKind.JSON_SCHEMA, '{"a": 1}'),
    ),
    "vLLM regex": ({"structured_outputs": {"regex": "a"}}, Grammar(GrammarKind.REGEX, "a")),
    "vLLM choice": (
        {"structured_outputs": {"choice": ["a"]}},
        Grammar(GrammarKind.LARK, 'start: "a"'),
    ),
    "vLLM grammar": ({"structured_outputs": {"grammar": "x"}}, Grammar(GrammarKind.LARK, "x")),
    "vLLM object": ({"structured_outputs": {"json_object": True}}, any_object()),
    "OpenAI's object": ({"response_format": {"type": "json_object"}}, any_object()),
}


@pytest.mark.parametrize("case", SAME)
def test_grammar_has_the_names_of_other_servers(case: str) -> None:
    fields, grammar = SAME[case]
    (name,) = fields
    assert chat(**fields).asked_grammar() == (name, grammar)
    asked = CompletionRequest.model_validate({"prompt": "a", **fields})
    assert asked.asked_grammar() == (name, grammar)


def test_format_that_asks_for_nothing_leaves_room_for_another_field() -> None:
    asked = chat(response_format={"type": "text"}, guided_regex="a").asked_grammar()
    assert asked == ("guided_regex", Grammar(GrammarKind.REGEX, "a"))


@pytest.mark.parametrize(
    ("fields", "is_on", "effort"),
    [
        ({"reasoning": {"effort": "none"}}, None, "none"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, None, "high"),
        ({"reasoning": {"enabled": False}}, False, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "enabled"}}, True, None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, True, None),
    ],
)
def test_thinking_has_the_names_of_other_servers(
    fields: dict[str, Any], is_on: bool | None, effort: str | None
) -> None:
    asked = chat(**fields).asked_thinking()
    assert (asked.is_on, asked.effort) == (is_on, effort)


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
    assert chat(reasoning_effort="low").asked_thinking().template_kwargs() == {
        "reasoning_effort": "low"
    }
    off = {"reasoning_effort": "none", "enable_thinking": False}
    assert chat(reasoning_effort="none").asked_thinking().template_kwargs() == off
    assert chat(enable_thinking=False).asked_thinking().template_kwargs() == {
        "enable_thinking": False
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2]], [[1], [2]])],
)
def test_prompt_is_one_or_more(prompt: Any, expected: list[Any]) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompt == expected


def test_best_of_may_equal_n() -> None:
    asked = CompletionRequest.model_validate({"prompt": "a", "n": 2, "best_of": 2})
    assert asked.num_choices == 2


@pytest.mark.parametrize(("name", "value"), [("min_tokens", False), ("reasoning", {"exclude": 0})])
def test_false_and_0_are_no_more_the_same_than_in_json(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match="not supported"):
        chat(**{name: value})
