"""Calls that always parse: what a grammar lets through, the model's own parser reads, in every
syntax that has one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from keepwarm.engine.calls import Calls, answer_in
from keepwarm.engine.grammar import Guides
from keepwarm.engine.guide import Guide
from keepwarm.engine.request import Grammar
from keepwarm.engine.schemas import closed, without_words
from keepwarm.prompt.parse import parse_reply
from tests.prompt.test_harmony import gpt_oss
from tests.prompt.test_split import with_facts

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "places": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city", "unit"],
    },
}
TIME: dict[str, Any] = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
BROKEN: dict[str, Any] = {"name": "broken", "parameters": {"properties": {"a": {"type": "no"}}}}
NAMES = [
    "Qwen-Qwen3-0.6B",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct",
]
SEVERAL = NAMES[:4]  # in one reply
OPENING = NAMES[:5]  # with something that only a call begins with
YES = Grammar.json({"type": "object", "properties": {"yes": {"type": "boolean"}}})


@cache
def tokenizer(name: str) -> Any:
    return gpt_oss() if "gpt-oss" in name else with_facts(name)


@cache
def guides(name: str) -> Guides:
    return Guides(tokenizer(name))


def calls_of(name: str, *functions: dict[str, Any]) -> Calls:
    return Calls(guides(name), tokenizer(name), functions or (WEATHER, TIME))


def written(name: str, tool: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    if "gpt-oss" in name:
        head = f"<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>"
        return head + json.dumps(arguments, ensure_ascii=False)
    if "Coder" in name or "3.5" in name:
        texts = {
            key: each if isinstance(each, str) else json.dumps(each)
            for key, each in arguments.items()
        }
        given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
        return f"<tool_call>\n<function={tool}>\n{given}</function>\n</tool_call>"
    if "Llama-3.1-8B-I" in name:
        return json.dumps({"name": tool, "parameters": arguments}, ensure_ascii=False)
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def said(name: str, text: str) -> str:
    """Content as the model writes it."""
    return f"<|channel|>final<|message|>{text}" if "gpt-oss" in name else text


def accepts(name: str, grammar: Grammar, text: str) -> bool:
    """Whether all of `text` may be generated, and the end may follow."""
    used, guide = tokenizer(name), guides(name).guide(grammar)
    for token in used.encode(text, add_special_tokens=False):
        if not allows(guide, used, token):
            return False
        guide.accept(token)
    return any(allows(guide, used, token) for token in used.eos_token_ids)


def allows(guide: Guide, used: Any, token: int) -> bool:
    mask = guide.mask(len(used))
    return mask is None or bool(mask[token])


GOOD: list[dict[str, Any]] = [
    {"city": "Oslo", "unit": "C"},
    {"city": 'a "b"\n<c> é', "days": 3, "unit": "F"},
    {"city": "x", "unit": "C", "places": ["a", "b"]},
]
BAD: list[dict[str, Any]] = [
    {"city": "Oslo"},
    {"city": "Oslo", "unit": "K"},
    {"city": "Oslo", "days": "three", "unit": "C"},
    {"city": "Oslo", "unit": "C", "invented": 1},
    {},
]


@pytest.mark.parametrize("name", NAMES)
def test_required_call_fits_its_schema_and_parses(name: str) -> None:
    grammar = calls_of(name).required(is_single=True)
    tools = [{"type": "function", "function": each} for each in (WEATHER, TIME)]
    for arguments in GOOD:
        text = written(name, "get_weather", **arguments)
        assert accepts(name, grammar, text), text
        (call,) = parse_reply(tokenizer(name), text, tools=tools).tool_calls
        assert (call.name, json.loads(call.arguments)) == ("get_weather", arguments)
    assert accepts(name, grammar, written(name, "get_time"))
    for arguments in BAD:
        assert not accepts(name, grammar, written(name, "get_weather", **arguments)), arguments
    assert not accepts(name, grammar, written(name, "get_mail"))
    assert not accepts(name, grammar, said(name, "Hello"))


@pytest.mark.parametrize("name", SEVERAL)
def test_several_calls_where_they_may_be_parallel(name: str) -> None:
    text = "\n".join(written(name, "get_time") for _ in range(2))
    assert accepts(name, calls_of(name).required(is_single=False), text)
    assert not accepts(name, calls_of(name).required(is_single=True), text)


def test_thought_may_come_before_a_required_call_of_harmony() -> None:
    name = "openai-gpt-oss-120b"
    thought = "<|channel|>analysis<|message|>Which to=functions.?\n<|end|><|start|>assistant"
    grammar = calls_of(name).required(is_single=True)
    assert accepts(name, grammar, thought + written(name, "get_time"))
    assert not accepts(name, grammar, thought + said(name, "Hi"))


@pytest.mark.parametrize("name", OPENING)
def test_calls_or_an_answer_in_a_format(name: str) -> None:
    grammar = calls_of(name).or_answer(YES, is_single=True)
    assert accepts(name, grammar, written(name, "get_time"))
    assert accepts(name, grammar, said(name, '{"yes": true}'))
    assert not accepts(name, grammar, said(name, '{"no": true}'))
    assert not accepts(name, grammar, said(name, "Yes."))


def test_bare_calls_leave_no_room_for_an_answer() -> None:
    assert not calls_of(NAMES[5]).can_answer
    assert all(calls_of(name).can_answer for name in OPENING)


def test_answer_in_a_format_goes_to_its_channel() -> None:
    name = "openai-gpt-oss-120b"
    grammar = answer_in(guides(name), tokenizer(name), YES)
    assert accepts(name, grammar, said(name, '{"yes": true}'))
    assert accepts(name, grammar, '<|channel|>final <|constrain|>json<|message|>{"yes": true}')
    assert not accepts(name, grammar, '{"yes": true}')
    assert answer_in(guides(NAMES[0]), tokenizer(NAMES[0]), YES) is YES


@pytest.mark.parametrize("name", OPENING)
def test_reply_is_free_until_a_call_opens(name: str) -> None:
    grammar = calls_of(name).once_opened()
    assert grammar is not None
    call = written(name, "get_weather", city="Oslo", unit="C")
    before = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    lead = before if "gpt-oss" in name else "I look.\n"
    assert accepts(name, grammar, said(name, "Hello {"))
    assert accepts(name, grammar, lead + call)
    assert not accepts(name, grammar, lead + written(name, "get_mail"))
    assert not accepts(name, grammar, written(name, "get_weather", city="Oslo", unit="K"))
    if name in SEVERAL:
        # Behind a call it is free again, and bound again by the next.
        assert accepts(name, grammar, f"{call}\nAnd:\n{call}\nDone.")
        assert not accepts(name, grammar, f"{call}\n" + written(name, "get_mail"))


@pytest.mark.parametrize("name", [NAMES[0], NAMES[3], NAMES[4]])
def test_what_a_thought_says_of_calls_opens_none(name: str) -> None:
    mention = written(name, "get_mail")
    if "gpt-oss" in name:
        mention = "commentary to=functions.get_mail"
        thought = f"<|channel|>analysis<|message|>{mention}<|end|><|start|>assistant"
    else:
        thought = f"<think>\n{mention}\n</think>\n\n"
    grammar = calls_of(name).once_opened()
    assert grammar is not None
    assert accepts(name, grammar, thought + said(name, "Hi"))
    assert not accepts(name, grammar, thought + written(name, "get_mail"))


@pytest.mark.parametrize("name", NAMES)
def test_schema_that_no_grammar_expresses_loosens_that_tool(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    its_guides = Guides(tokenizer(name))
    calls = Calls(its_guides, tokenizer(name), (BROKEN, WEATHER))
    for _ in range(2):
        grammar = calls.required(is_single=True)
    is_xml = "Coder" in name or "3.5" in name
    if not is_xml:  # whose parser takes what has no known type as text
        assert its_guides.num_loosened == 2
        assert len([r for r in caplog.records if "broken" in r.message]) == 1
    assert accepts(name, grammar, written(name, "broken", a="b"))
    assert not accepts(name, grammar, written(name, "get_weather", city="Oslo", unit="K"))


def test_syntax_without_a_grammar_is_told() -> None:
    assert Calls(guides(NAMES[0]), with_facts("MiniMax-M2"), (TIME,)).syntax is None


CLOSED: list[tuple[Any, Any]] = [
    ({"properties": {"a": {}}}, {"properties": {"a": {}}, "additionalProperties": False}),
    ({"type": "object"}, {"type": "object"}),
    (
        {"properties": {}, "additionalProperties": {}},
        {"properties": {}, "additionalProperties": {}},
    ),
    (
        {"items": {"properties": {}}},
        {"items": {"properties": {}, "additionalProperties": False}},
    ),
    (
        {"anyOf": [{"properties": {}}, {"type": "null"}]},
        {"anyOf": [{"properties": {}, "additionalProperties": False}, {"type": "null"}]},
    ),
    (
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]},
    ),
    (
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {}}}},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {}}}},
    ),
    (True, True),
]


def test_words_of_a_schema_are_no_part_of_its_grammar() -> None:
    words = {"description": "a ::= b", "title": "T"}
    schema = {**words, "properties": {"title": words}, "enum": [words]}
    assert without_words(schema) == {"properties": {"title": {}}, "enum": [words]}
    tool = {"name": "f", "parameters": schema | {"enum": [{}]}}
    its_guides = Guides(tokenizer(NAMES[0]))
    Calls(its_guides, tokenizer(NAMES[0]), (tool,)).required(is_single=True)
    assert its_guides.num_loosened == 0


@pytest.mark.parametrize(("schema", "expected"), CLOSED)
def test_objects_have_the_keys_that_they_name(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected
