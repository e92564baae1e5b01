"""Grammars: what a reply must look like when a format, or a call of a tool, was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keepwarm.engine.calls import Calls, Function, Guides, answer_in
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.parse import opens_thought
from keepwarm.server.asked import Asked, AskedChat
from keepwarm.server.errors import ApiError, refused


def chat_grammar(
    guides: Guides, tokenizer: Any, asked: AskedChat, prompt: Prompt
) -> Grammar | None:
    """What the reply to a chat must look like, or None. Raises ApiError."""
    answer = answer_grammar(guides, asked)
    calls = Calls(guides, tokenizer, _called_functions(asked))
    if calls.functions:
        grammar = _call_grammar(calls, asked, answer)
    elif answer is not None:
        grammar = answer_in(guides, tokenizer, answer)
    else:
        return None
    after = tokenizer.think_end if opens_thought(tokenizer, prompt) else ""
    return grammar and replace(grammar, after=after)


def _call_grammar(calls: Calls, asked: AskedChat, answer: Grammar | None) -> Grammar | None:
    """For calls alone, beside the format that was asked for, or for what begins as a call."""
    is_free, is_single = asked.tool_choice.mode == "auto", not asked.tool_choice.is_parallel
    if is_free and answer is None:
        return calls.once_opened_if_possible()
    if is_free and answer is not None and answer.kind is not GrammarKind.JSON_SCHEMA:
        words = "only a JSON schema can be combined with tools that may be called"
        raise refused(f"{asked.grammar_field}: {words}", asked.grammar_field)
    if calls.syntax is None and not is_free:
        words = "tool_choice can only be none or auto with this model's tool format"
        raise refused(words, "tool_choice")
    if is_free and not calls.can_answer:
        field = asked.grammar_field
        words = f"{field} and tools cannot be combined with this model's tool format"
        raise refused(words, field)
    if is_free and answer is not None:
        grammar = calls.or_answer(answer, is_single=is_single)
    else:
        grammar = calls.required(is_single=is_single)
    return _checked(calls.guides, grammar, "tools")


def answer_grammar(guides: Guides, asked: Asked) -> Grammar | None:
    """The grammar that was asked for, once it compiles. Raises ApiError."""
    return asked.grammar and _checked(guides, asked.grammar, asked.grammar_field)


def _called_functions(asked: AskedChat) -> list[Function]:
    """The tools that the reply may call. Raises ApiError where there is none to call."""
    choice = asked.tool_choice
    functions: list[Function] = [
        tool["function"] for tool in (*(asked.tools or ()), *asked.later_tools)
    ]
    if choice.mode == "none":
        return []
    if choice.names:
        functions = [function for function in functions if function["name"] in choice.names]
        if {function["name"] for function in functions} != {*choice.names}:
            raise refused("tool_choice names a function that is not in tools", "tool_choice")
    if choice.mode == "required" and not functions:
        raise refused(
            "tool_choice is required, but there are no tools: name some in tools", "tool_choice"
        )
    return functions


def _checked(guides: Guides, grammar: Grammar, param: str) -> Grammar:
    try:
        guides.check(grammar)
    except BadInput as error:
        raise ApiError(400, str(error), param=param, code="unsupported_grammar") from error
    return grammar
