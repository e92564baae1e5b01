"""JSON schemas as grammars are made of them. Plain functions; any thread."""

from __future__ import annotations

from typing import Any

# What says of an object's keys more than `properties` does.
_SPEAKS_OF_KEYS = frozenset(
    {
        "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef",
    }
)  # fmt: skip
_WORDS = ("description", "title", "$comment")
_VALUES = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "$defs", "definitions")
_IN_LISTS = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Any) -> Any:
    """`schema` where objects that name their keys have no others: without a word on it a weak model
    would make up keys until its limit. Not where parts of schemas are put together."""
    return schema if _composes(schema) else _closed(schema)


def without_words(schema: Any) -> Any:
    """`schema` without what only people read. It may look like any grammar, and be long."""
    if isinstance(schema, list):
        return [without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: each if key in _VALUES else without_words(each)
        for key, each in schema.items()
        if not (key in _WORDS and isinstance(each, str))
    }


def _composes(schema: Any) -> bool:
    if isinstance(schema, dict):
        return "allOf" in schema or any(map(_composes, schema.values()))
    return isinstance(schema, list) and any(map(_composes, schema))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _BY_NAME:
        if isinstance(made.get(key), dict):
            made[key] = {name: _closed(each) for name, each in made[key].items()}
    # Alternatives of one object add to its own keys.
    for key in _IN_LISTS if "properties" not in made else ():
        if isinstance(made.get(key), list):
            made[key] = [_closed(each) for each in made[key]]
    for key in ("items", "additionalProperties"):
        if key in made:
            made[key] = _closed(made[key])
    if isinstance(made.get("properties"), dict) and not _SPEAKS_OF_KEYS & made.keys():
        made["additionalProperties"] = False
    return made
