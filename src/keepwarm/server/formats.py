"""The fields that say what a reply must look like, under all the names that clients have for them:
OpenAI's, vLLM's, and llama.cpp's `grammar`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from keepwarm.engine.grammar import any_object
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.server.fields import Items, Loose, Unsupported

Choices = Annotated[Items[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
# A schema, or its text.
Schema = dict[str, Any] | str


class JsonSchema(Loose):
    """A schema that the reply must fit."""

    model_config = ConfigDict(populate_by_name=True)

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Loose):
    """What the reply must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and (
            self.json_schema is None or self.json_schema.schema_ is None
        ):
            raise ValueError("a format of type json_schema needs json_schema.schema")
        return self

    def asked_grammar(self) -> Grammar | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return any_object()
        assert self.json_schema is not None  # seen to above
        return _schema(self.json_schema.schema_ or {})


class StructuredOutputs(Loose):
    """vLLM's form of the same: exactly one of the first five."""

    model_config = ConfigDict(populate_by_name=True)

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Annotated[Any, Unsupported()] = None
    whitespace_pattern: Annotated[Any, Unsupported()] = None
    disable_any_whitespace: Annotated[Any, Unsupported((False,))] = None
    disable_additional_properties: Annotated[Any, Unsupported((False,))] = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> StructuredOutputs:
        said = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(value is not None for value in said) != 1:
            raise ValueError("exactly one of json, regex, choice, grammar, json_object is needed")
        return self

    def asked_grammar(self) -> Grammar:
        if self.regex is not None:
            return Grammar(GrammarKind.REGEX, self.regex)
        if self.choice is not None:
            return _choice(self.choice)
        if self.grammar is not None:
            return Grammar(GrammarKind.LARK, self.grammar)
        return any_object() if self.json_ is None else _schema(self.json_)


class Constrained(Loose):
    """A request whose reply may have to look like something. One field may say so."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    grammar: str | None = None  # llama.cpp's: GBNF, or Lark
    guided_whitespace_pattern: Annotated[Any, Unsupported()] = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Constrained:
        names = [name for name, _ in self._wanted()]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} both say what the reply must look like")
        return self

    def asked_grammar(self) -> tuple[str, Grammar] | None:
        """The field that says what the reply must look like, and what it says."""
        return next(self._wanted(), None)

    def _wanted(self) -> Iterator[tuple[str, Grammar]]:
        if self.response_format is not None:
            wanted = self.response_format.asked_grammar()
            if wanted is not None:
                yield "response_format", wanted
        if self.structured_outputs is not None:
            yield "structured_outputs", self.structured_outputs.asked_grammar()
        if self.guided_json is not None:
            yield "guided_json", _schema(self.guided_json)
        if self.guided_regex is not None:
            yield "guided_regex", Grammar(GrammarKind.REGEX, self.guided_regex)
        if self.guided_choice is not None:
            yield "guided_choice", _choice(self.guided_choice)
        if self.guided_grammar is not None:
            yield "guided_grammar", Grammar(GrammarKind.LARK, self.guided_grammar)
        if self.grammar:  # an empty one is none, as at llama.cpp
            yield "grammar", Grammar(GrammarKind.LARK, self.grammar)


def _schema(schema: Schema) -> Grammar:
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def _choice(choices: list[str]) -> Grammar:
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return Grammar(GrammarKind.LARK, f"start: {texts}")
