"""Bodies: what is read as JSON, and which field an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from keepwarm.server.body import MAX_DEPTH, first_error, parse_json
from keepwarm.server.errors import ApiError
from keepwarm.server.schema import ChatRequest, CompletionRequest, Loose, TokenizeRequest


def test_json_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, null, "é"]}'.encode()) == {"a": [1, 2.5, None, "é"]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    ],
    ids=[
        "nothing", "half", "no unicode", "NaN", "Infinity", "overflow", "thousands of digits",
        "half of a character", "half of a character in a name", "unending", "deep",
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_json(body)
    assert refusal.value.status_code == 400
    json.dumps(refusal.value.body(), ensure_ascii=False).encode()


@pytest.mark.parametrize("item", [b"[]", b"1", b'{"text":"a"}'])
def test_body_of_too_many_values_is_refused_unparsed(
    item: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwarm.server.body.from_json", None)
    with pytest.raises(ApiError, match="more than 1000 values") as refusal:
        parse_json(b'{"x":[' + item + (b"," + item) * 1000 + b"]}", max_values=1000)
    assert (refusal.value.status_code, refusal.value.code) == (413, "body_too_large")


def test_mark_of_the_byte_order_is_left_out() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    with pytest.raises(ApiError):
        parse_json('{"a": 1}'.encode("utf-16"))


def test_depth_up_to_the_limit_is_read() -> None:
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None


def told(model: type[Loose], body: Any) -> ApiError:
    """What a client is told of a body that `model` refuses, by the way FastAPI reports it."""
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(body)
    errors = [{**e, "loc": ("body", *e["loc"])} for e in refusal.value.errors()]
    return first_error(RequestValidationError(errors, body=body))


USER = {"role": "user", "content": "Hi"}

CASES: dict[str, tuple[type[Loose], dict[str, Any], str]] = {
    "a missing list": (ChatRequest, {}, "messages"),
    "an empty list": (ChatRequest, {"messages": []}, "messages"),
    "a message that is none": (ChatRequest, {"messages": [5]}, "messages[0]"),
    "a missing role": (ChatRequest, {"messages": [{"content": "a"}]}, "messages[0].role"),
    "a wrong content": (
        ChatRequest,
        {"messages": [{**USER, "content": 5}]},
        "messages[0].content",
    ),
    "a part that nobody knows": (
        ChatRequest,
        {"messages": [{**USER, "content": [{"type": "hologram", "hologram": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    "a call without a function": (
        ChatRequest,
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        "messages[1].tool_calls[0].function",
    ),
    "a number as text": (ChatRequest, {"messages": [USER], "max_tokens": "5"}, "max_tokens"),
    "a truth as a number": (ChatRequest, {"messages": [USER], "max_tokens": True}, "max_tokens"),
    "no tokens": (ChatRequest, {"messages": [USER], "max_tokens": 0}, "max_tokens"),
    "too many choices": (ChatRequest, {"messages": [USER], "n": 17}, "n"),
    "a stop that is a number": (ChatRequest, {"messages": [USER], "stop": 5}, "stop"),
    "an empty stop": (ChatRequest, {"messages": [USER], "stop": ["a", ""]}, "stop"),
    "too hot": (ChatRequest, {"messages": [USER], "temperature": 2.1}, "temperature"),
    "a seed beyond 64 bits": (ChatRequest, {"messages": [USER], "seed": 1 << 63}, "seed"),
    "a bias for no token": (
        ChatRequest,
        {"messages": [USER], "logit_bias": {"a": 1}},
        "logit_bias",
    ),
    "a bias too strong": (
        ChatRequest,
        {"messages": [USER], "logit_bias": {"1": 101}},
        "logit_bias",
    ),
    "a bias that is true": (
        ChatRequest,
        {"messages": [USER], "logit_bias": {"1": True}},
        "logit_bias",
    ),
    "top_logprobs alone": (ChatRequest, {"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
    "a format without a schema": (
        ChatRequest,
        {"messages": [USER], "response_format": {"type": "json_schema"}},
        "response_format",
    ),
    "an unknown format": (
        ChatRequest,
        {"messages": [USER], "response_format": {"type": "xml"}},
        "response_format.type",
    ),
    "an unknown choice of tools": (
        ChatRequest,
        {"messages": [USER], "tool_choice": "any"},
        "tool_choice",
    ),
    "a tool that is no function": (
        ChatRequest,
        {"messages": [USER], "tools": [{"type": "web_search"}]},
        "tools[0].type",
    ),
    "sound": (ChatRequest, {"messages": [USER], "modalities": ["text", "audio"]}, "modalities"),
    "an empty prompt": (CompletionRequest, {"prompt": ""}, "prompt"),
    "no prompts": (CompletionRequest, {"prompt": []}, "prompt"),
    "an empty prompt among others": (CompletionRequest, {"prompt": ["a", ""]}, "prompt"),
    "tokens below 0": (CompletionRequest, {"prompt": [-1]}, "prompt"),
    "tokens and text": (CompletionRequest, {"prompt": [1, "a"]}, "prompt"),
    "log probabilities of an echo in a stream": (
        CompletionRequest,
        {"prompt": "a", "echo": True, "logprobs": 0, "stream": True},
        "echo",
    ),
    "suffix": (CompletionRequest, {"prompt": "a", "suffix": "b"}, "suffix"),
    "the best of some": (CompletionRequest, {"prompt": "a", "best_of": 3}, "best_of"),
}


@pytest.mark.parametrize(("model", "body", "param"), CASES.values(), ids=CASES.keys())
def test_error_names_the_field(model: type[Loose], body: dict[str, Any], param: str) -> None:
    error = told(model, body)
    assert error.status_code == 400
    assert error.param == param
    assert error.detail.startswith(f"{param}: ")


def test_body_that_is_no_object_is_told_as_one() -> None:
    assert told(ChatRequest, [1]).detail == "the body must be a JSON object"


def test_what_two_fields_say_together_is_told_in_words() -> None:
    error = told(TokenizeRequest, {})
    assert error.detail == "either prompt or messages must be given"
    assert error.param is None


def test_long_list_of_wrong_items_is_one_error() -> None:
    with pytest.raises(ValidationError) as refusal:
        ChatRequest.model_validate({"messages": [None] * 1000})
    assert refusal.value.error_count() == 1
