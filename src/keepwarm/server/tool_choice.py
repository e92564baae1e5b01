"""Grammars: what a reply must look like when a format, or a call of a tool, was asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.parse import opens_thought
from keepwarm.server.asked import Asked, AskedChat
from keepwarm.server.errors import ApiError, refused

Function = dict[str, Any]  # its name, description and parameters, as a tool has them

# The one format whose calls are JSON: {"name": ..., "arguments": {...}} between two tags.
_JSON_PARSER = "mlx_lm.tool_parsers.json_tools"


class Guides(Protocol):
    """The engine's grammars, as far as the server knows them."""

    def check(self, grammar: Grammar) -> None: ...
    def literal(self, tag: str) -> str: ...


def chat_grammar(
    guides: Guides, tokenizer: Any, asked: AskedChat, prompt: Prompt
) -> Grammar | None:
    """What the reply to a chat must look like, or None. Raises ApiError."""
    answer = answer_grammar(guides, asked)
    called = _called_functions(asked)
    if called:
        # A grammar for calls alone, or beside the format where calls are free.
        is_free = asked.tool_choice.mode == "auto"
        if is_free and answer is None:
            return None
        if is_free and answer is not None and answer.kind is not GrammarKind.JSON_SCHEMA:
            words = "only a JSON schema can be combined with tools that may be called"
            raise refused(f"{asked.grammar_field}: {words}", asked.grammar_field)
        grammar = _call_grammar(guides, tokenizer, asked, called, answer if is_free else None)
    elif answer is not None:
        grammar = answer
    else:
        return None
    after = tokenizer.think_end if opens_thought(tokenizer, prompt) else ""
    return replace(grammar, after=after)


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


def _call_grammar(
    guides: Guides,
    tokenizer: Any,
    asked: AskedChat,
    functions: Sequence[Function],
    answer: Grammar | None,
) -> Grammar:
    parser = getattr(tokenizer, "tool_parser", None)
    if getattr(parser, "__module__", None) != _JSON_PARSER or not tokenizer.tool_call_end:
        if answer is None:
            words = "tool_choice can only be none or auto with this model's tool format"
            raise refused(words, "tool_choice")
        field = asked.grammar_field
        words = f"{field} and tools cannot be combined with this model's tool format"
        raise refused(words, field)
    is_single = not asked.tool_choice.is_parallel
    text = call_grammar_text(guides, tokenizer, functions, is_single=is_single, answer=answer)
    return _checked(guides, Grammar(GrammarKind.LARK, text), "tools")


def call_grammar_text(
    guides: Guides,
    tokenizer: Any,
    functions: Sequence[Function],
    *,
    is_single: bool,
    answer: Grammar | None,
) -> str:
    """Lark, as llguidance reads it: calls of `functions`, or else the JSON that `answer` asks for.

    Every schema gets a rule of its own, since its references count from its own root.
    """
    calls = "calls: block" if is_single else 'calls: block ("\\n" block)*'
    start = guides.literal(tokenizer.tool_call_start)
    end = guides.literal(tokenizer.tool_call_end)
    rules = [
        "start: calls" if answer is None else "start: calls | answer",
        calls,
        f'block: {start} "\\n" call "\\n" {end}',
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    for i, function in enumerate(functions):
        head = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        schema = _compact({"type": "object", **(function.get("parameters") or {})})
        rules += [f'call_{i}: {head} arguments_{i} "}}"', f"arguments_{i}: %json {schema}"]
    if answer is not None:
        rules.append(f"answer: %json {_compact(json.loads(answer.text))}")
    return "\n".join(rules) + "\n"


def _compact(schema: dict[str, Any]) -> str:
    """Without a bound a model can go on with blanks for ever; templates write JSON this way."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json.dumps({**schema, "x-guidance": options})


def _checked(guides: Guides, grammar: Grammar, param: str) -> Grammar:
    try:
        guides.check(grammar)
    except BadInput as error:
        raise ApiError(400, str(error), param=param, code="unsupported_grammar") from error
    return grammar
