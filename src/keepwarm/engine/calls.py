"""Grammars of tool calls: what a reply must look like to be a call that can be parsed, in the
syntax of its model. No mlx; not for the engine thread, since it compiles.

A tool whose schema no grammar can express may be called with any arguments; nothing fails for it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.engine.schemas import closed, without_words
from keepwarm.errors import BadInput
from keepwarm.prompt import harmony
from keepwarm.prompt.call_syntax import CallSyntax, call_syntax

log = logging.getLogger(__name__)

Function = dict[str, Any]  # its name, description and parameters, as a tool has them

# Tags hold no line breaks and no brackets.
_XML_NAME = re.compile(r"[^\s<>]+")
_ANY_TEXT = r"/(.|\n)*/"


class Guides(Protocol):
    """The engine's grammars, as far as calls need them."""

    def check(self, grammar: Grammar) -> None: ...
    def literal(self, tag: str) -> str: ...
    def loosen(self, tool: str, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Calls:
    """What may be called, and how."""

    guides: Guides
    tokenizer: Any
    functions: Sequence[Function]

    @property
    def syntax(self) -> CallSyntax | None:
        """None where calls of this model have no grammar here."""
        return call_syntax(self.tokenizer)

    @property
    def can_answer(self) -> bool:
        """Whether an answer in JSON can stand beside calls: bare calls look like one."""
        return self.syntax not in (None, CallSyntax.BARE)

    def required(self, *, is_single: bool) -> Grammar:
        """One call, or several where they may be parallel, and nothing else but a thought."""
        return self._whole("calls", is_single=is_single, answer=None)

    def or_answer(self, answer: Grammar, *, is_single: bool) -> Grammar:
        """Calls, or else the JSON that `answer` asks for."""
        return self._whole("calls | answer", is_single=is_single, answer=answer)

    def once_opened(self) -> Grammar | None:
        """Anything, but what begins as a call goes on as one. None where nothing shows that."""
        syntax = _SYNTAXES[self.syntax or CallSyntax.JSON](self)
        if not syntax.opening:
            return None
        rules = [f"start: {syntax.behind_opening}", *syntax.shared, *self._tools(syntax)]
        return Grammar(
            GrammarKind.LARK,
            _text(rules),
            opens=syntax.opening,
            hides=syntax.hides,
            is_composed=True,
        )

    def once_opened_if_possible(self) -> Grammar | None:
        """As `once_opened`; nobody asked for it, so nothing fails for it."""
        if self.syntax is None:
            return None
        grammar = self.once_opened()
        if grammar is None:
            return None
        try:
            self.guides.check(grammar)
        except BadInput as error:
            self.guides.loosen("(all)", str(error))
            return None
        return grammar

    def _whole(self, start: str, *, is_single: bool, answer: Grammar | None) -> Grammar:
        syntax = _SYNTAXES[self.syntax or CallSyntax.JSON](self)
        rules = [
            f"start: {syntax.thought}({start})",
            syntax.one if is_single else syntax.several,
            *syntax.shared,
            *self._tools(syntax),
        ]
        if answer is not None:
            rules += [syntax.answer, f"answer_json: %json {_compact(json.loads(answer.text))}"]
        return Grammar(GrammarKind.LARK, _text(rules), is_composed=True)

    def _tools(self, syntax: _Syntax) -> list[str]:
        """The rules of all tools, each as strict as it can be."""
        rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(self.functions)))]
        for i, function in enumerate(self.functions):
            try:
                strict = syntax.tool(i, function)
                alone = [f"start: call_{i}", f"call: call_{i}", *syntax.shared, *strict]
                self.guides.check(Grammar(GrammarKind.LARK, _text(alone)))
                rules += strict
            except BadInput as error:
                self.guides.loosen(function["name"], str(error))
                rules += syntax.loose_tool(i, function)
        return rules


def answer_in(guides: Guides, tokenizer: Any, answer: Grammar) -> Grammar:
    """The grammar of an answer that may be part of a reply only: Harmony has a channel for it."""
    if (
        call_syntax(tokenizer) is not CallSyntax.HARMONY
        or answer.kind is not GrammarKind.JSON_SCHEMA
    ):
        return answer
    syntax = _Harmony(Calls(guides, tokenizer, ()))
    rules = [
        f"start: {syntax.thought}answer",
        *syntax.shared,
        syntax.answer,
        f"answer_json: %json {_compact(json.loads(answer.text))}",
    ]
    return Grammar(GrammarKind.LARK, _text(rules))


class _Syntax(Protocol):
    """The rules of one syntax."""

    thought: str  # before everything
    one: str
    several: str
    shared: list[str]
    answer: str
    opening: str  # what shows that a call has begun
    behind_opening: str
    hides: tuple[tuple[str, str], ...]  # in between nothing opens

    def tool(self, i: int, function: Function) -> list[str]: ...
    def loose_tool(self, i: int, function: Function) -> list[str]: ...


class _Tagged:
    """What stands between two tags."""

    thought = ""
    one = "calls: block"
    several = 'calls: block ("\\n" block)*'
    answer = "answer: answer_json"

    def __init__(self, calls: Calls) -> None:
        facts = calls.tokenizer
        start, end = (calls.guides.literal(t) for t in (facts.tool_call_start, facts.tool_call_end))
        self.shared = [f'block: {start} "\\n" call "\\n" {end}']
        self.opening: str = facts.tool_call_start
        self.behind_opening = f'"\\n" call "\\n" {end}'
        is_thinking = getattr(facts, "has_thinking", False)
        self.hides: tuple[tuple[str, str], ...] = (
            ((facts.think_start, facts.think_end),) if is_thinking else ()
        )


class _Json(_Tagged):
    """{"name": "f", "arguments": {"a": 1}}"""

    def tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, _parameters(function))

    def loose_tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, {"type": "object"})

    def _tool(self, i: int, function: Function, schema: dict[str, Any]) -> list[str]:
        head = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        # Every schema has a rule of its own, since its references count from its own root.
        return [f'call_{i}: {head} arguments_{i} "}}"', f"arguments_{i}: %json {_compact(schema)}"]


class _Xml(_Tagged):
    """<function=f> with its parameters in the order of the schema: text as it is, all else as JSON."""

    def tool(self, i: int, function: Function) -> list[str]:
        schema = _parameters(function)
        properties = schema.get("properties") or {}
        if not isinstance(properties, dict) or not all(map(_XML_NAME.fullmatch, properties)):
            raise BadInput("its parameters have no names that fit into a tag")
        if not properties and schema.get("additionalProperties") is not False:
            return self.loose_tool(i, function)
        needed = schema.get("required") or ()
        parts, rules = [], []
        for j, (name, about) in enumerate(properties.items()):
            parts.append(f"p_{i}_{j}" if name in needed else f"p_{i}_{j}?")
            head = json.dumps(f"<parameter={name}>\n")
            rules += [f"p_{i}_{j}: {head} v_{i}_{j}", *self._value(f"{i}_{j}", about, schema)]
        return [self._call(i, function, " ".join(parts)), *rules]

    def loose_tool(self, i: int, function: Function) -> list[str]:
        return [
            self._call(i, function, f"p_{i}*"),
            f'p_{i}: "<parameter=" name_{i} ">\\n" v_{i}',
            f"name_{i}: /[^\\s<>]+/",
            _until_end(f"v_{i}"),
        ]

    def _call(self, i: int, function: Function, parts: str) -> str:
        head = json.dumps(f"<function={function['name']}>\n")
        return f'call_{i}: {head} {parts} "</function>"'

    def _value(self, place: str, about: Any, schema: dict[str, Any]) -> list[str]:
        kind = about.get("type") if isinstance(about, dict) else None
        if kind == "string" and isinstance(about.get("enum"), list):
            texts = " | ".join(json.dumps(f"{each}\n</parameter>\n") for each in about["enum"])
            return [f"v_{place}: {texts}"]
        if kind not in ("integer", "number", "boolean", "object", "array"):
            return [_until_end(f"v_{place}")]  # mlx-lm's parser takes it as text, or as what it is
        defs = {key: each for key, each in schema.items() if key in ("$defs", "definitions")}
        return [
            f'v_{place}: j_{place} "\\n</parameter>\\n"',
            f"j_{place}: %json {_compact({**defs, **about})}",
        ]


class _Harmony:
    """<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}"""

    one = several = "calls: opening call"
    opening = " to="
    behind_opening = "call"

    def __init__(self, calls: Calls) -> None:
        channel, message, end, start, constrain = (
            calls.guides.literal(tag)
            for tag in (
                harmony.CHANNEL,
                harmony.MESSAGE,
                harmony.END,
                harmony.START,
                harmony.CONSTRAIN,
            )
        )
        self.thought = "thought? "
        self.shared = [
            f'thought: {channel} "analysis" {message} any_text {end} {start} "assistant"',
            f"any_text: {_ANY_TEXT}",
            f'opening: {channel} "commentary to="',
            # As the model is taught to write it, and as the template writes it in the history.
            f'header: " " {constrain} "json" {message} | {channel} "commentary json" {message}'
            f" | {message}",
        ]
        self.answer = f'answer: {channel} "final" (" " {constrain} "json")? {message} answer_json'
        self.hides = tuple(
            (f"{harmony.CHANNEL}{name}{harmony.MESSAGE}", harmony.END)
            for name in ("analysis", "final", "commentary")
        )

    def tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, _parameters(function))

    def loose_tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, {"type": "object"})

    def _tool(self, i: int, function: Function, schema: dict[str, Any]) -> list[str]:
        name = json.dumps(f"{harmony.FUNCTIONS}{function['name']}")
        return [
            f"call_{i}: {name} header arguments_{i}",
            f"arguments_{i}: %json {_compact(schema)}",
        ]


class _Bare:
    """{"name": "f", "parameters": {"a": 1}} and nothing else. What begins so may be an answer, too:
    under `auto` nothing opens."""

    thought = opening = behind_opening = ""
    one = several = "calls: call"
    answer = "answer: answer_json"
    hides: tuple[tuple[str, str], ...] = ()

    def __init__(self, calls: Calls) -> None:
        self.shared: list[str] = []

    def tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, _parameters(function))

    def loose_tool(self, i: int, function: Function) -> list[str]:
        return self._tool(i, function, {"type": "object"})

    def _tool(self, i: int, function: Function, schema: dict[str, Any]) -> list[str]:
        head = json.dumps(f'{{"name": {json.dumps(function["name"])}, "parameters": ')
        return [f'call_{i}: {head} arguments_{i} "}}"', f"arguments_{i}: %json {_compact(schema)}"]


_SYNTAXES: dict[CallSyntax, Callable[[Calls], _Syntax]] = {
    CallSyntax.JSON: _Json,
    CallSyntax.XML: _Xml,
    CallSyntax.HARMONY: _Harmony,
    CallSyntax.BARE: _Bare,
}


def _parameters(function: Function) -> dict[str, Any]:
    return {"type": "object", **(function.get("parameters") or {})}


def _until_end(rule: str) -> str:
    """Any text up to the end of a parameter."""
    return f'{rule}[suffix="\\n</parameter>\\n"]: {_ANY_TEXT}'


def _compact(schema: dict[str, Any]) -> str:
    """Without a bound a model can go on with blanks for ever; templates write JSON this way."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json.dumps({**without_words(closed(schema)), "x-guidance": options})


def _text(rules: Sequence[str]) -> str:
    return "\n".join(rules) + "\n"
