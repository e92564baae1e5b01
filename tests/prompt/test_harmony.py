"""Harmony: what gpt-oss writes becomes thoughts, content and calls, and the next turn begins with it."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from keepwarm.prompt.follow_up import as_sent_back, continues, follow_up
from keepwarm.prompt.parse import Reply, parse_reply
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.split import Splitter
from keepwarm.server.service import WithoutCalls
from tests.prompt.conversations import TOOLS, assistant, common_len, tool, user
from tests.prompt.test_split import facts
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES, make_tokenizer

THOUGHT = "<|channel|>analysis<|message|>Hm.\n<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
)
# As the template writes a call in the history.
WRITTEN = ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}'


@functools.cache
def gpt_oss() -> Any:
    template = (SHARED_TEMPLATES / "openai-gpt-oss-120b.jinja").read_text("utf-8")
    tokens = ("<|constrain|>", "<|return|>", "<|call|>")
    made = TokenizerWrapper(make_tokenizer(template, extra_tokens=tokens))
    for token in ("<|return|>", "<|call|>"):
        made.add_eos_token(token)
    return made


def split(texts: Any, *, finish_reason: str = "stop", tokenizer: Any = None) -> Reply:
    splitter = Splitter(tokenizer or gpt_oss(), prompt=None, tools=TOOLS)
    pieces = [*itertools.chain.from_iterable(map(splitter.push, texts))]
    return Reply.of([*pieces, *splitter.end(finish_reason)])


REPLIES: dict[str, tuple[str, Any]] = {
    "thought and answer": (THOUGHT + NEXT + FINAL + "Hello.\n", ("Hello.\n", "Hm.\n", [])),
    "answer alone": (FINAL + "Hello.", ("Hello.", None, [])),
    "answer with an end": (FINAL + "Hello.<|end|>", ("Hello.", None, [])),
    "an answer that is JSON": (
        "<|channel|>final <|constrain|>json<|message|>{}",
        ("{}", None, []),
    ),
    "call": (
        THOUGHT + NEXT + CALL,
        ("", "Hm.\n", [("get_weather", '{"city": "Paris"}')]),
    ),
    "call as the template writes it": (
        THOUGHT + NEXT + WRITTEN + "<|call|>",
        ("", "Hm.\n", [("get_weather", '{"city": "Paris"}')]),
    ),
    "words before a call": (
        f"{THOUGHT}{NEXT}<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}<|call|>",
        ("I look.", "Hm.\n", [("get_weather", '{"city": "Paris"}')]),
    ),
    "several thoughts": (
        THOUGHT + NEXT + THOUGHT + NEXT + FINAL + "Hi",
        ("Hi", "Hm.\nHm.\n", []),
    ),
    "several words": (
        f"<|channel|>commentary<|message|>One.<|end|>{NEXT}{FINAL}Two.",
        ("One.\n\nTwo.", None, []),
    ),
    "arguments that are no object": (
        CALL.replace('{"city"', '["city"'),
        ('["city": "Paris"}', None, []),
    ),
    "thought cut off": ("<|channel|>analysis<|message|>Hm", ("", "Hm", [])),
    "header cut off": (THOUGHT + NEXT + "<|channel|>fin", ("", "Hm.\n", [])),
    "no Harmony": ("Hello.", ("Hello.", None, [])),
    "nothing": ("", ("", None, [])),
}


@pytest.mark.parametrize(("text", "expected"), REPLIES.values(), ids=REPLIES.keys())
def test_channels_become_thoughts_content_and_calls(text: str, expected: Any) -> None:
    assert facts(parse_reply(gpt_oss(), text, tools=TOOLS)) == expected
    assert facts(split([text])) == expected
    assert facts(split(text)) == expected


FRAGMENTS = [
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>"),
    *("analysis", "final", "commentary", "assistant", " to=functions.f", "{}", "\n", "Hm."),
    *(THOUGHT, NEXT, FINAL, CALL),
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_reply_cut_anywhere_is_the_reply_parsed_whole(parts: list[str], data: Any) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    for reason in ("stop", "length"):
        whole = facts(parse_reply(gpt_oss(), text, tools=TOOLS, finish_reason=reason))
        assert facts(split(pieces, finish_reason=reason)) == whole


def test_call_cut_off_by_the_limit_is_left_out() -> None:
    cut = THOUGHT + NEXT + CALL.removesuffix('Paris"}')
    assert facts(split([cut], finish_reason="length")) == ("", "Hm.\n", [])


def test_thought_is_passed_on_letter_by_letter() -> None:
    splitter = Splitter(gpt_oss(), prompt=None)
    splitter.push("<|channel|>analysis<|message|>")
    assert [piece.text for x in "Hm. So" for piece in splitter.push(x)] == list("Hm. So")  # type: ignore[union-attr]


def test_where_nothing_may_be_called_a_call_is_said() -> None:
    reader = WithoutCalls(gpt_oss())
    assert facts(split([CALL], tokenizer=reader)) == ('{"city": "Paris"}', None, [])


def _next_turn(messages: list[Any], text: str, *following: Any) -> tuple[Any, Any, Any]:
    """What was read with the reply `text`, what was foretold of the next turn, and that turn."""
    given: dict[str, Any] = {"tools": TOOLS}
    asked = render_chat(gpt_oss(), messages, **given)
    reply = parse_reply(gpt_oss(), text, prompt=asked, **given)
    said = as_sent_back(gpt_oss(), messages, reply.as_message())
    results = [tool("21", call.id) for call in reply.tool_calls] or list(following)
    again = render_chat(gpt_oss(), [*messages, said, *results], **given)
    upcoming = follow_up(gpt_oss(), messages, said, **given)
    read = asked.extended(gpt_oss().encode(text, add_special_tokens=False))
    return read, upcoming, again


def test_call_in_the_history_gives_back_the_generated_tokens() -> None:
    text = "<|channel|>analysis<|message|>Hm.\n<|end|><|start|>assistant" + WRITTEN + "<|call|>"
    read, upcoming, again = _next_turn([user("Is it warm?")], text)
    assert common_len(read, again) == len(read)
    assert continues(read, upcoming)
    assert common_len(upcoming, again) == len(upcoming)


def test_answer_in_the_history_is_read_without_its_thought() -> None:
    text = THOUGHT + NEXT + FINAL + "Hello.\n"
    read, upcoming, again = _next_turn([user("Hi")], text, user("Bye"))
    assert not continues(read, upcoming)
    assert common_len(upcoming, again) == len(upcoming)
    assert "Hello.\n<|end|>" in gpt_oss().decode(upcoming.tokens)
    assert "Hm." not in gpt_oss().decode(upcoming.tokens)


def test_words_and_a_thought_before_a_call_do_not_break_the_next_turn() -> None:
    """The template refuses a call with both."""
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    said = assistant("I look.", reasoning_content="Hm.", tool_calls=[call])
    prompt = render_chat(gpt_oss(), [user("Is it warm?"), said, tool("21", "1")], tools=TOOLS)
    text = gpt_oss().decode(prompt.tokens)
    assert "<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>" in text
    assert json.dumps("21") in text
