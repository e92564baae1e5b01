"""Replies taken apart and sent back: the next prompt holds the tokens that were generated."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from mlx_lm.chat_templates import muse_spark
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools, mistral, qwen3_coder
from mlx_lm.tool_parsers import muse_spark as muse_spark_calls

from keepwarm.prompt.parse import Reply, opens_thought, parse_reply
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import TOOLS, assistant, common_len, tool, user
from tests.prompt.tokenizers_for_tests import OWN_TEMPLATES, make_tokenizer, own

THINKING = ("<think>", "</think>")


@functools.cache
def wrapped(name: str | None, parser: Any = None, tokens: tuple[str, ...] = THINKING) -> Any:
    template = (OWN_TEMPLATES / f"{name}.jinja").read_text("utf-8") if name else None
    facts = {}
    if parser is not None:
        facts = {
            "tool_parser": parser.parse_tool_call,
            "tool_call_start": parser.tool_call_start,
            "tool_call_end": parser.tool_call_end,
        }
    return TokenizerWrapper(make_tokenizer(template, extra_tokens=tokens), **facts)


def test_thought_opened_by_the_reply_is_split_off() -> None:
    reply = parse_reply(wrapped("thinks_on_its_own"), "<think>Hm.</think>Hello.")
    assert reply == Reply("Hello.", "Hm.")
    assert reply.as_message() == assistant("Hello.", reasoning_content="Hm.")


def test_thought_opened_by_the_prompt_is_split_off() -> None:
    tokenizer = wrapped("drops_thoughts")
    prompt = render_chat(tokenizer, [user("Hi")])
    assert parse_reply(tokenizer, "Hm.\n</think>\n\nHello.", prompt=prompt) == Reply(
        "Hello.", "Hm."
    )
    assert parse_reply(tokenizer, "Hm. Hm", prompt=prompt) == Reply("", "Hm. Hm")


def test_thought_closed_by_the_prompt_is_no_thought() -> None:
    tokenizer = wrapped("drops_thoughts")
    prompt = render_chat(tokenizer, [user("Hi")], template_kwargs={"enable_thinking": False})
    assert not opens_thought(tokenizer, prompt)
    assert parse_reply(tokenizer, "Hello.\n", prompt=prompt) == Reply("Hello.\n")


def test_tag_typed_by_the_user_opens_no_thought() -> None:
    tokenizer = wrapped("thinks_on_its_own")
    prompt = render_chat(tokenizer, [user("What does <think> mean?")])
    assert not opens_thought(tokenizer, prompt)


def test_tokenizer_without_facts_leaves_the_text_alone() -> None:
    prompt = render_chat(own("drops_thoughts"), [user("Hi")])
    text = "<think>Hm.</think>Hello."
    assert parse_reply(own("drops_thoughts"), text, prompt=prompt) == Reply(text)


def test_call_is_read_with_its_arguments_as_json_text() -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    text = 'On it.\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    reply = parse_reply(tokenizer, text, tools=TOOLS)
    assert reply.content == "On it."
    (call,) = reply.tool_calls
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Paris"}
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_message_of_a_call_alone_has_no_content() -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    reply = parse_reply(tokenizer, '<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    message = reply.as_message()
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize("broken", ['{"name": "f", "argu', "[5]", '"f"', "{}", '{"name": 5}'])
def test_call_that_cannot_be_read_stays_in_the_content(broken: str) -> None:
    tokenizer = wrapped("never_writes_thoughts", json_tools)
    text = f"On it. <tool_call>{broken}</tool_call>"
    assert parse_reply(tokenizer, text) == Reply(text)


def test_calls_without_an_end_tag_run_to_the_end() -> None:
    tokenizer = wrapped("never_writes_thoughts", mistral)
    reply = parse_reply(tokenizer, '[TOOL_CALLS]f[ARGS]{"a": 1}g[ARGS]{}')
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("f", '{"a": 1}'), ("g", "{}")]


def test_response_format_of_a_model_is_followed() -> None:
    tokenizer = TokenizerWrapper(
        make_tokenizer(None),
        tool_parser=muse_spark_calls.parse_tool_call,
        tool_call_start=muse_spark_calls.tool_call_start,
        tool_call_end=muse_spark_calls.tool_call_end,
        response_format=muse_spark.RESPONSE_FORMAT,
    )
    text = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>"
    assert parse_reply(tokenizer, text) == Reply("Hello.", "Hm.")


CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
    "</tool_call>"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("drops_thoughts", "I have to look.\n</think>\n\n\n" + CALL),
        ("drops_thoughts", "I have to look.\n</think>\n\nOne moment.\n" + CALL),
        ("drops_thoughts", "Twice.\n</think>\n\n\n" + CALL + "\n" + CALL),
    ],
)
def test_echoed_call_gives_back_the_generated_tokens(name: str, text: str) -> None:
    tokenizer = wrapped(name, qwen3_coder)
    asked = render_chat(tokenizer, [user("Is it warm?")], tools=TOOLS)
    reply = parse_reply(tokenizer, text, prompt=asked, tools=TOOLS)
    results = [tool("21", call.id) for call in reply.tool_calls]
    again = render_chat(tokenizer, [user("Is it warm?"), reply.as_message(), *results], tools=TOOLS)
    generated = tokenizer.encode(text, add_special_tokens=False)
    assert common_len(asked.extended(generated), again) == len(asked) + len(generated)


@pytest.mark.parametrize(
    "text",
    ["Hm.</think>Hello.", "\nHm.\n</think>\n\nHello.\n", "</think>Hello.", "\n\n</think>\nHello."],
)
def test_echoed_thought_gives_back_the_generated_tokens(text: str) -> None:
    """This template writes thoughts as they are, line breaks and all."""
    tokenizer = wrapped("keeps_thoughts")
    asked = render_chat(tokenizer, [user("Hi")])
    reply = parse_reply(tokenizer, text, prompt=asked)
    again = render_chat(tokenizer, [user("Hi"), reply.as_message(), user("Bye")])
    generated = tokenizer.encode(text, add_special_tokens=False)
    assert common_len(asked.extended(generated), again) == len(asked) + len(generated)


def test_line_breaks_of_a_thought_that_is_never_written_back_are_dropped() -> None:
    tokenizer = wrapped("never_writes_thoughts")
    prompt = render_chat(tokenizer, [user("Hi")])
    assert parse_reply(tokenizer, "\nHm.\n</think>\n\nHi.", prompt=prompt) == Reply("Hi.", "Hm.")


def test_half_a_character_in_a_call_is_replaced() -> None:
    """JSON can escape it; no answer could carry it."""
    text = '<tool_call>{"name": "look", "arguments": {"at": "\\ud83d", "by": "\\ud83d\\ude00"}}</tool_call>'
    [call] = parse_reply(wrapped("never_writes_thoughts", json_tools), text, tools=TOOLS).tool_calls
    assert json.loads(call.arguments) == {"at": "\ufffd", "by": "\U0001f600"}
