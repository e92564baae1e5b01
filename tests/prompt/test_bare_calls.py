"""Calls without tags, as Llama 3.1 writes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.reply import Reply, Said
from keepwarm.prompt.split import Splitter
from keepwarm.server.service import WithoutCalls
from tests.prompt.conversations import TOOLS, common_len, tool, user
from tests.prompt.test_split import facts, with_facts

NAME = "meta-llama-Llama-3.1-8B-Instruct"
CALL = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
PARIS = ("", None, [("get_weather", '{"city": "Paris"}')])


def split(texts: Iterable[str], *, finish: str = "stop", tokenizer: Any = None) -> Reply:
    splitter = Splitter(tokenizer or with_facts(NAME), prompt=None, tools=TOOLS)
    pieces = [*itertools.chain.from_iterable(map(splitter.push, texts))]
    return Reply.of([*pieces, *splitter.end(finish)])


REPLIES: dict[str, tuple[str, Any]] = {
    "call": (CALL, PARIS),
    "call behind its tag": (f"<|python_tag|>{CALL}", PARIS),
    "call with blanks": ('\n{ "name" : "get_weather", "parameters": {"city": "Paris"}}\n', PARIS),
    "words": ("Hello.\n", ("Hello.\n", None, [])),
    "other JSON": ('{"names": 1}', ('{"names": 1}', None, [])),
    "a name alone": ('{"name": "Anna"}', ('{"name": "Anna"}', None, [])),
    "words before": (f"So: {CALL}", (f"So: {CALL}", None, [])),
    "nothing": ("", ("", None, [])),
}


@pytest.mark.parametrize(("text", "expected"), REPLIES.values(), ids=REPLIES.keys())
def test_reply_that_is_a_call_is_called(text: str, expected: Any) -> None:
    assert facts(parse_reply(with_facts(NAME), text, tools=TOOLS)) == expected
    assert facts(split(text)) == facts(split([text])) == expected


def test_call_cut_off_by_the_limit_is_left_out() -> None:
    assert split([CALL[:30]], finish="length") == Reply("")
    assert split([CALL[:30]]) == Reply(CALL[:30])


def test_words_are_passed_on_letter_by_letter() -> None:
    splitter = Splitter(with_facts(NAME), prompt=None, tools=TOOLS)
    assert [splitter.push(letter) for letter in "Hi {"] == [[Said(x)] for x in "Hi {"]


def test_without_tools_nothing_is_called() -> None:
    assert parse_reply(with_facts(NAME), CALL) == Reply(CALL)
    assert split([CALL], tokenizer=WithoutCalls(with_facts(NAME))) == Reply(CALL)


def test_call_in_the_history_gives_back_the_generated_tokens() -> None:
    tokenizer = with_facts(NAME)
    asked = render_chat(tokenizer, [user("Is it warm?")], tools=TOOLS)
    reply = parse_reply(tokenizer, CALL, prompt=asked, tools=TOOLS)
    said = [user("Is it warm?"), reply.as_message(), tool("21", reply.tool_calls[0].id)]
    again = render_chat(tokenizer, said, tools=TOOLS)
    generated = tokenizer.encode(CALL, add_special_tokens=False)
    assert common_len(asked.extended(generated), again) == len(asked) + len(generated)
