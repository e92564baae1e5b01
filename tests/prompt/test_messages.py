"""What counts as a conversation, and the form templates get it in."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.errors import BadInput
from keepwarm.prompt.messages import (
    CallForm,
    in_form,
    num_leading_system,
    read_messages,
    read_template_kwargs,
    read_tools,
    system_breaks,
)
from tests.prompt.conversations import assistant, call, system, tool, user


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (None, "messages"),
        ("Hi", "messages"),
        ({"role": "user"}, "messages"),
        ([], "messages"),
        (["Hi"], r"messages\[0\]"),
        ([{"content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": 5, "content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": "", "content": "Hi"}], r"messages\[0\]\.role"),
        ([user("Hi"), user(5)], r"messages\[1\]\.content"),
        ([user({"text": "Hi"})], r"messages\[0\]\.content"),
        ([user(["Hi"])], r"messages\[0\]\.content\[0\]"),
        ([user([{"type": "text"}])], r"messages\[0\]\.content\[0\]"),
        ([user([{"type": "image_url", "text": ""}])], "image_url"),
        ([assistant("", tool_calls="x")], r"messages\[0\]\.tool_calls"),
        ([assistant("", tool_calls=[5])], r"messages\[0\]\.tool_calls\[0\]"),
        ([assistant("", tool_calls=[{"function": {}}])], r"messages\[0\]\.tool_calls\[0\]"),
        ([assistant("", tool_calls=[{"function": {"name": "f", "arguments": 5}}])], "arguments"),
        ([assistant("", reasoning_content=["x"])], "reasoning_content"),
        ([assistant("", reasoning={"x": 1})], "reasoning"),
    ],
)
def test_malformed_message_is_named(messages: object, named: str) -> None:
    with pytest.raises(BadInput, match=named):
        read_messages(messages)


@pytest.mark.parametrize("tools", ["x", 5, {"name": "f"}, ["x"]])
def test_malformed_tools_are_bad_input(tools: object) -> None:
    with pytest.raises(BadInput, match="tools"):
        read_tools(tools)


def test_no_tools_and_an_empty_list_are_the_same() -> None:
    assert read_tools(None) is None
    assert read_tools([]) is None


@pytest.mark.parametrize("kwargs", [[], "x", {5: "x"}])
def test_malformed_template_arguments_are_bad_input(kwargs: object) -> None:
    with pytest.raises(BadInput):
        read_template_kwargs(kwargs)


def test_null_fields_are_left_out() -> None:
    message = assistant("Hi", tool_calls=None, reasoning_content=None, refusal=None, name=None)
    assert read_messages([message]) == [assistant("Hi")]


def test_missing_content_is_empty_text() -> None:
    assert read_messages([{"role": "user"}, user(None), user([])]) == [user("")] * 3


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_known_as_reasoning_content(name: str) -> None:
    assert read_messages([assistant("Hi", **{name: "Hm."})])[0]["reasoning_content"] == "Hm."


def test_reasoning_content_wins_over_its_other_names() -> None:
    read = read_messages([assistant("Hi", reasoning="other", reasoning_content="this")])
    assert read[0]["reasoning_content"] == "this"


def test_call_without_a_type_is_a_function() -> None:
    bare = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    assert (
        read_messages([assistant(None, tool_calls=[bare])])[0]["tool_calls"][0]["type"]
        == "function"
    )


@pytest.mark.parametrize(
    ("given", "mapping", "text"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}, '{"a": [1, "é"]}'),
        ({"a": [1, "é"]}, {"a": [1, "é"]}, '{"a": [1, "é"]}'),
        ("", {}, "{}"),
        (None, {}, "{}"),
        ("{cut short", "{cut short", "{cut short"),
        ("[1]", "[1]", "[1]"),
    ],
)
def test_arguments_take_the_form_the_template_wants(given: Any, mapping: Any, text: str) -> None:
    calling = assistant("", tool_calls=[{"function": {"name": "f", "arguments": given}}])
    for form, expected in ((CallForm(), mapping), (CallForm(arguments=str), text)):
        message = in_form(read_messages([calling]), form)[0]
        assert message["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize("absent", ["", None])
def test_absent_content_of_a_call_takes_the_form_the_template_wants(absent: str | None) -> None:
    messages = read_messages([assistant(None, tool_calls=[call()]), assistant(None)])
    calling, answering = in_form(messages, CallForm(absent_content=absent))
    assert calling["content"] == absent
    assert answering["content"] == ""


def test_leading_system_messages_are_counted() -> None:
    assert num_leading_system([user("Hi"), system()]) == 0
    assert num_leading_system([system(), {"role": "developer", "content": "x"}, user("Hi")]) == 2
    assert num_leading_system([system()]) == 1


def test_what_was_read_shares_nothing_with_what_was_given() -> None:
    given = [assistant("", tool_calls=[call(city="Paris")]), tool("21")]
    read = read_messages(given)
    read[0]["tool_calls"][0]["function"]["arguments"]["city"] = "Rome"
    read[1]["content"] = "25"
    assert given == [assistant("", tool_calls=[call(city="Paris")]), tool("21")]


def test_parts_of_other_protocols_are_text() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "refusal", "refusal": "c"},
        {"text": "d"},
    ]
    assert read_messages([assistant(parts)]) == [assistant("abcd")]


@pytest.mark.parametrize("thought", ["Hm.", [{"type": "text", "text": "Hm."}]])
def test_part_that_is_a_thought_is_reasoning(thought: object) -> None:
    parts = [{"type": "thinking", "thinking": thought, "signature": "x"}, {"text": "Yes"}]
    parts.insert(1, {"type": "redacted_thinking", "data": "x"})
    assert read_messages([assistant(parts)]) == [assistant("Yes", reasoning_content="Hm.")]


@pytest.mark.parametrize(
    "part", [{"type": "refusal", "text": "a"}, {"type": "thinking", "thinking": 5}, {"type": []}]
)
def test_malformed_part_is_bad_input(part: object) -> None:
    with pytest.raises(BadInput, match=r"messages\[0\]\.content\[0\]"):
        read_messages([assistant([part])])


@pytest.mark.parametrize("kind", ["refusal", "thinking"])
def test_system_blocks_of_any_kind_have_ends(kind: str) -> None:
    parts = [{"type": kind, kind: "x" * 5000}, {"type": "text", "text": "y"}]
    breaks = system_breaks([{"role": "system", "content": parts}])
    assert breaks == ([(0, 5000)] if kind == "refusal" else [])
