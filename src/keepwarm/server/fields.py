"""The kinds of fields that requests are made of: strict about types where OpenAI is, and lenient
about null, which means that a field was not given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import core_schema

T = TypeVar("T")

INT64 = 1 << 63
MAX_STOPS = 16
MAX_PROMPTS = 128
MAX_BIAS = 100.0


class Loose(BaseModel):
    """Strict types; fields nobody here knows are ignored, since clients send many."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class Open(Loose):
    """As above, but unknown fields are kept: chat templates read more than OpenAI defines."""

    model_config = ConfigDict(extra="allow")


# Told apart by identity: typing takes Annotated[Any, x] for the same as one with an equal x, and in
# Python (0,) equals (False,).
@dataclass(frozen=True, eq=False)
class Unsupported:
    """Marks a field that would change the answer, and that this server cannot do: it is refused,
    unless it is null or one of `harmless`, which change nothing."""

    harmless: tuple[Any, ...] = ()
    hint: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        return {"enum": [*self.harmless, None]}

    def _checked(self, value: Any) -> Any:
        if value is None or any(_is_same(value, each) for each in self.harmless):
            return None
        raise ValueError(f"this is not supported{self.hint and f'; {self.hint}'}")


def _is_same(value: Any, other: Any) -> bool:
    """In JSON false is not 0, as it is in Python."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Stands behind the bounds of a field: before them, they would be checked but not documented.
WHOLE = BeforeValidator(_whole)


class _AtFirst(FailFast):
    """Pydantic's own cannot stand in a union, as it has no hash."""

    __hash__ = object.__hash__


# More than any conversation has. A list of many wrong items would otherwise be as many errors.
MAX_ITEMS = 20_000
Items = Annotated[list[T], Field(max_length=MAX_ITEMS), _AtFirst()]


def _read_stop(value: Any) -> Any:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"must hold at most {MAX_STOPS} strings")
    if not all(stops):
        raise ValueError("cannot hold an empty string")
    return tuple(stops)


_TEXT = {"type": "string", "minLength": 1}
Stop = Annotated[
    tuple[str, ...],
    BeforeValidator(_read_stop),
    WithJsonSchema(
        {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}, {"type": "null"}]}
    ),
]


def _read_bias(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers")
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise ValueError(f"{key[:20]!r} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > MAX_BIAS:
            raise ValueError(f"the bias of token {key} must be a number from -100 to 100")
        biases[int(key)] = float(bias)
    return biases


LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_read_bias),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                },
                {"type": "null"},
            ]
        }
    ),
]


def _read_prompt(value: Any) -> Any:
    """One or more prompts, each text or token ids."""
    is_single = isinstance(value, str) or (
        isinstance(value, list) and bool(value) and _is_token(value[0])
    )
    prompts = [value] if is_single else value
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("must be a text, a list of token ids, or a list of those; not empty")
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"must hold at most {MAX_PROMPTS} prompts")
    for prompt in prompts:
        if not isinstance(prompt, str | list) or not prompt:
            raise ValueError("each prompt must be a text or a list of token ids; not empty")
        if isinstance(prompt, list) and not all(map(_is_token, prompt)):
            raise ValueError("token ids must be whole numbers from 0 on")
    return prompts


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
Prompts = Annotated[
    list[str | list[int]],
    BeforeValidator(_read_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                _TOKENS,
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TEXT},
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TOKENS},
            ]
        }
    ),
]

Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1), WHOLE]
Budget = Annotated[int, Field(ge=0), WHOLE]


def _read_limit(value: Any) -> Any:
    """llama.cpp's clients write -1 for no limit of their own."""
    return None if value == -1 and not isinstance(value, bool) else _whole(value)


TokenLimit = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_read_limit),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": -1}, {"type": "null"}]}),
]

# Of a completion: none at all, to have the prompt echoed or scored.
TextLimit = Annotated[
    Annotated[int, Field(ge=0)] | None,
    BeforeValidator(_read_limit),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": -1}, {"type": "null"}]}),
]
