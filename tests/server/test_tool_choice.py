"""Grammars: which calls and answers a reply may consist of."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools, mistral
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from keepwarm.engine.grammar import Guides
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.prompt.render import render_chat
from keepwarm.server.errors import ApiError
from keepwarm.server.protocols.chat import read_chat
from keepwarm.server.schema import ChatRequest
from keepwarm.server.tool_choice import chat_grammar
from tests.prompt.tokenizers_for_tests import make_tokenizer
from tests.server.serving import MARKUP, TEMPLATE, WEATHER, tokenizer

USER = {"role": "user", "content": "Hi"}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = {"type": "function", "function": {"name": "get_time"}}
NOON = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "yes", "schema": {"type": "object", "additionalProperties": False}},
}


@cache
def guides() -> Guides:
    return Guides(tokenizer())


def grammar_of(tokens: Any = None, **fields: Any) -> Grammar | None:
    asked = read_chat(ChatRequest.model_validate({"messages": [USER], **fields}), "")
    used = tokens or tokenizer()
    prompt = render_chat(used, asked.messages, template_kwargs=asked.template_kwargs)
    return chat_grammar(guides(), used, asked, prompt)


def accepts(grammar: Grammar | None, text: str) -> bool:
    """Whether all of `text` may be generated, and nothing must follow."""
    assert grammar is not None
    guide = guides().guide(grammar)
    size = len(tokenizer())
    for token in tokenizer().encode(text, add_special_tokens=False):
        mask = guide.mask(size)
        if mask is not None and not mask[token]:
            return False
        guide.accept(token)
    mask = guide.mask(size)
    return mask is not None and bool(mask[tokenizer().eos_token_id])


def accepts_freely(grammar: Grammar | None, text: str) -> bool:
    """Whether all of `text` may be generated."""
    assert grammar is not None
    guide = guides().guide(grammar)
    for token in tokenizer().encode(text, add_special_tokens=False):
        mask = guide.mask(len(tokenizer()))
        if mask is not None and not mask[token]:
            return False
        guide.accept(token)
    return True


def test_plain_chat_is_free() -> None:
    assert grammar_of() is None
    assert grammar_of(tools=[WEATHER], tool_choice="none") is None
    assert grammar_of(response_format={"type": "text"}) is None


def test_what_begins_as_a_call_goes_on_as_one() -> None:
    for choice in ({}, {"tool_choice": "auto"}):
        grammar = grammar_of(tools=[WEATHER], **choice)
        assert accepts_freely(grammar, f"Hello.\n{PARIS}\nBye.")
        assert not accepts_freely(grammar, PARIS.replace("Paris", "Rome"))


def test_parameters_that_are_no_schema_fail_nothing() -> None:
    tool = {"function": {"name": "f", "parameters": {"properties": 5}}}
    grammar = grammar_of(tools=[tool, WEATHER], tool_choice="required")
    assert accepts(grammar, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    assert not accepts(grammar, PARIS.replace("Paris", "Rome"))


def test_required_call_is_one_of_the_tools() -> None:
    grammar = grammar_of(tools=[WEATHER, TIME], tool_choice="required")
    assert accepts(grammar, PARIS)
    assert accepts(grammar, NOON)
    assert accepts(grammar, f"{PARIS}\n{NOON}")
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, PARIS.replace("Paris", "Rome"))
    assert not accepts(grammar, PARIS.replace("get_weather", "get_mail"))


def test_one_call_where_calls_are_not_parallel() -> None:
    grammar = grammar_of(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert accepts(grammar, PARIS)
    assert not accepts(grammar, f"{PARIS}\n{PARIS}")


def test_named_tool_is_the_only_one() -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    grammar = grammar_of(tools=[WEATHER, TIME], tool_choice=named)
    assert accepts(grammar, NOON)
    assert not accepts(grammar, PARIS)


def test_references_count_from_each_tools_own_schema() -> None:
    parameters = {"$defs": {"c": {"enum": ["x"]}}, "properties": {"a": {"$ref": "#/$defs/c"}}}
    tool = {"function": {"name": "f", "parameters": parameters}}
    grammar = grammar_of(tools=[WEATHER, tool], tool_choice="required")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
    assert accepts(grammar, call)
    assert not accepts(grammar, call.replace('"x"', '"y"'))


def test_format_beside_tools_leaves_both() -> None:
    grammar = grammar_of(tools=[WEATHER], response_format=FORMAT)
    assert accepts(grammar, PARIS)
    assert accepts(grammar, "{}")
    assert not accepts(grammar, "Hello")


def test_format_alone_binds_the_reply() -> None:
    assert accepts(grammar_of(response_format=FORMAT), "{}")
    assert not accepts(grammar_of(response_format=FORMAT), "[]")
    anything = grammar_of(response_format={"type": "json_object"})
    assert accepts(anything, '{"a": [1]}')
    assert not accepts(anything, "[]")


def test_no_tools_may_be_called_in_a_format_with_none() -> None:
    grammar = grammar_of(tools=[WEATHER], tool_choice="none", response_format=FORMAT)
    assert not accepts(grammar, PARIS)


def test_grammar_waits_for_the_end_of_an_open_thought() -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required"}
    grammar = grammar_of(**asked, chat_template_kwargs={"thinks": True})
    assert grammar is not None
    assert grammar.after == "</think>"
    free = grammar_of(**asked)
    assert free is not None
    assert free.after == ""


def test_tags_that_are_special_tokens_go_by_their_number() -> None:
    grammar = grammar_of(tools=[WEATHER], tool_choice="required")
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK
    assert f"<[{tokenizer().convert_tokens_to_ids('<tool_call>')}]>" in grammar.text


def other_format() -> TokenizerWrapper:
    return TokenizerWrapper(
        make_tokenizer(TEMPLATE, extra_tokens=MARKUP),
        tool_parser=mistral.parse_tool_call,
        tool_call_start=mistral.tool_call_start,
        tool_call_end=mistral.tool_call_end,
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "required without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a name that no tool has": (
        {"tools": [WEATHER], "tool_choice": {"function": {"name": "f"}}},
        "tool_choice",
    ),
    "a schema that is none": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "nothing"}},
            }
        },
        "response_format",
    ),
}


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        grammar_of(**fields)
    assert refusal.value.status_code == 400
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": FORMAT}, "response_format"),
    ],
)
def test_other_formats_of_calls_are_refused_in_words(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError, match="tool format") as refusal:
        grammar_of(other_format(), tools=[WEATHER], **fields)
    assert refusal.value.param == param


def test_names_are_quoted_as_json_is() -> None:
    tool = {"function": {"name": 'say "é\\n"'}}
    grammar = grammar_of(tools=[tool], tool_choice="required")
    name = json.dumps(tool["function"]["name"])
    assert accepts(grammar, f'<tool_call>\n{{"name": {name}, "arguments": {{}}}}\n</tool_call>')


def test_tags_that_the_tokenizer_does_not_call_special_can_be_called() -> None:
    """As Qwen's are: llguidance takes them for special by their look."""
    plain = make_tokenizer(TEMPLATE, extra_tokens=MARKUP)
    content = json.loads(plain.backend_tokenizer.to_str())
    for added in content["added_tokens"]:
        added["special"] = added["content"] not in ("<tool_call>", "</tool_call>")
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token=plain.eos_token
    )
    plain.chat_template = TEMPLATE
    wrapped = TokenizerWrapper(
        plain,
        tool_parser=json_tools.parse_tool_call,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
    )
    its_guides = Guides(wrapped)
    asked = {"messages": [USER], "tools": [WEATHER], "tool_choice": "required"}
    request = read_chat(ChatRequest.model_validate(asked), "")
    prompt = render_chat(wrapped, request.messages)
    grammar = chat_grammar(its_guides, wrapped, request, prompt)
    assert grammar is not None
    guide = its_guides.guide(grammar)
    for token in wrapped.encode(PARIS, add_special_tokens=False):
        mask = guide.mask(len(plain))
        assert mask is not None
        assert mask[token]
        guide.accept(token)
    mask = guide.mask(len(plain))
    assert mask is not None
    assert mask[plain.eos_token_id]
