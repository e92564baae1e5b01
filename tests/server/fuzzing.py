"""Requests nobody should send: good ones, broken in one place or in many, from a seed."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.server.serving import WEATHER

CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
JSON = {"Content-Type": "application/json"}

Steps = tuple[str | int, ...]


class Raw(str):
    """JSON, or what only looks like it, that is written as it stands."""


# The key of what stands for the whole of an object.
WHOLE = "\0whole"


@dataclass(frozen=True)
class Sent:
    """One request, and what is odd about it."""

    path: str
    content: bytes
    what: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    # The one field of the body that differs from a good request, where it is one.
    name: str | None = None


def _schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value, "strict": True}}


def _user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


_CALLED = [
    _user("Weather?"),
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
]
_CITY = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}

# Every field of every route is in one of these.
CORPUS: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [_user()], "max_tokens": 2}),
    (CHAT, {"messages": [_user()], "max_completion_tokens": 2, "stream": True,
            "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": [{"role": "system", "content": "Be brief."}, _user(),
                         {"role": "assistant", "content": "Yes.", "name": "me"}, _user("And?")],
            "max_tokens": 3, "n": 2, "seed": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 20,
            "min_p": 0.05, "stop": ["a", "\n\n"], "model": "default"}),
    (CHAT, {"messages": [_user([{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}])],
            "max_tokens": 3, "logprobs": True, "top_logprobs": 3, "logit_bias": {"65": 5, "7": -9},
            "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1}),
    (CHAT, {"messages": _CALLED, "max_tokens": 3, "tools": [WEATHER], "tool_choice": "auto",
            "parallel_tool_calls": False, "stream": False}),
    (CHAT, {"messages": [_user()], "max_tokens": 4, "tools": [WEATHER], "tool_choice": "required",
            "stream": True}),
    (CHAT, {"messages": [_user()], "max_tokens": 4, "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}),
    (CHAT, {"messages": [_user()], "max_tokens": 4, "response_format": {"type": "json_object"}}),
    (CHAT, {"messages": [_user()], "max_tokens": 4, "response_format": _schema(_CITY),
            "chat_template_kwargs": {"thinks": True}, "reasoning_effort": "low"}),
    (CHAT, {"messages": [_user()], "max_tokens": 2, "modalities": ["text"], "audio": None,
            "prompt_cache_key": "a", "ignore_eos": True, "user": "me"}),
    (TEXT, {"prompt": "Once", "max_tokens": 3, "logprobs": 2, "stop": "a", "seed": 1}),
    (TEXT, {"prompt": ["Once", "Twice"], "max_tokens": 2, "n": 2, "best_of": 2, "stream": True,
            "temperature": 1, "stream_options": {"include_usage": True}}),
    (TEXT, {"prompt": [72, 105], "max_tokens": 2, "echo": False, "suffix": None,
            "logit_bias": {"65": 100}, "top_k": 1}),
    (TEXT, {"prompt": [[72], [105, 106]], "max_tokens": 2, "response_format": _schema(_CITY)}),
    (TOKENIZE, {"prompt": "Hello"}),
    (TOKENIZE, {"messages": _CALLED, "tools": [WEATHER], "add_generation_prompt": False,
                "chat_template_kwargs": {"thinks": 1}}),
)  # fmt: skip

_NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 1.5, -0.0, 1e308, 5e-324, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
    -(2**63) - 1, 2**64, 10**30, True, False, None,
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e400", "-0", "1e-400", "01", "+1", "1.", "5.0")),
    Raw("9" * 5000), Raw("0." + "1" * 5000),
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", " ", "\0", "a\0b", "\x1b[31m", "\x7f\r\n", "\u202eabc", "\ufeff", "\uffff", "İ" * 9, "e\u0301",
    "👩‍👩‍👧" * 50, "x" * 20_000, "null", "1", "user", "system", "tool", "function", "<|im_end|>",
    "<think>", "</think>", "<tool_call>\n{", "{{ 7 * 7 }}", "{% for x in y %}", "../../etc/passwd",
    *map(Raw, ('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x00"', "'a'", '"\t"', '"\\')),
)  # fmt: skip
_KEYS = (
    "",
    " ",
    "ключ",
    "🗝",
    "\0",
    "__class__",
    "$ref",
    "messages",
    "content",
    "n" * 5000,
    "a.b[0]",
)
_DEEP = (
    Raw("[" * 60 + "]" * 60),
    Raw("[" * 5_000 + "]" * 5_000),
    Raw('{"a":' * 120 + "1" + "}" * 120),
    Raw("[" * 100_000),
    Raw('{"a":' * 20_000),
)
_BOXES: tuple[Any, ...] = (
    [], {}, [[]], [None], [{}], {"": None}, {"a": []}, [1] * 3_000, [True], ["a", 1], [[1, "a"]],
    {f"k{i}": i for i in range(500)}, *_DEEP,
)  # fmt: skip
_ANY = _NUMBERS + _TEXTS + _BOXES

# Schemas that are absurd, or dear.
_SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    {"$ref": "http://localhost:1/a.json"},
    {"$ref": "#/" + "a/" * 2000},
    {"$id": "file:///a", "$schema": "http://localhost:1/", "$anchor": 5},
    {"enum": [f"v{i}" for i in range(5000)]},
    {"enum": []}, {"enum": 5}, {"const": {"a": [{}]}}, {"type": []}, {"type": ["string", 5]},
    {"type": "string", "pattern": "(("}, {"type": "string", "pattern": "(a+)+$"},
    {"type": "string", "pattern": "(a{1,999}){1,999}"}, {"type": "string", "pattern": "(?<=a)b\\1"},
    {"type": "string", "minLength": 10**9}, {"type": "string", "minLength": 5, "maxLength": 1},
    {"type": "string", "format": "no-such"}, {"type": "string", "format": "date-time"},
    {"type": "number", "minimum": 5, "maximum": 1}, {"type": "number", "multipleOf": 0},
    {"type": "integer", "minimum": -1e308, "maximum": 1e308}, {"type": "number", "multipleOf": 1e-9},
    {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    {"type": "array", "uniqueItems": True, "prefixItems": 5}, {"type": "object", "properties": []},
    {"type": "object", "required": 5}, {"type": "object", "required": ["zz"]},
    {"type": "object", "patternProperties": {"[": {}}, "minProperties": 10**9},
    {"type": "object", "properties": {"a\0\"\\\n": {"type": "null"}, "": {}, "ключ": {}}},
    {"allOf": [{"type": "string"}, {"type": "number"}]}, {"oneOf": [{}] * 300}, {"anyOf": []},
    {"not": {}}, {"if": {}, "then": False}, {"x-guidance": {"whitespace_flexible": "no"}},
    {"x-guidance": 5}, {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"allOf": [{"$ref": "#"}]}, {"properties": {f"p{i}": {"$ref": "#"} for i in range(200)}},
)  # fmt: skip
_KWARGS = (
    "messages", "tools", "add_generation_prompt", "tokenize", "conversation", "chat_template",
    "return_dict", "return_tensors", "continue_final_message", "bos_token", "documents", "loop",
    "namespace", "raise_exception", "tojson", "self", "", "range", "thinks", "max_length", "padding",
    "truncation", "kwargs", "template", "strftime_now", "enable_thinking", "message",
)  # fmt: skip
_PARTS: tuple[Any, ...] = (
    {"type": "text"}, {"text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}, {},
    {"type": 5, "text": "a"}, {"type": "text", "text": None}, "a", None, [], {"type": "input_audio"},
    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": ""},
    {"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "a"}, {"type": "refusal"},
    {"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": [{}]}, {"type": "file"},
)  # fmt: skip
_ROLES = ("", "narrator", "developer", "USER", "\0", "user\n<|im_end|>", "x" * 3000, "🤖", "None")


def requests(seed: int, count: int) -> Iterator[Sent]:
    """`count` requests; the same for the same seed."""
    rng = random.Random(seed)
    makers = (_one_field, _one_field, _one_field, _aimed, _aimed, _many_fields, _text, _framed)
    for _ in range(count):
        path, body = rng.choice(CORPUS)
        yield rng.choice(makers)(rng, path, copy.deepcopy(body))


# What a request is broken by


def _one_field(rng: random.Random, path: str, body: dict[str, Any]) -> Sent:
    """One change somewhere below one field."""
    name = rng.choice(sorted(body))
    others = {key: item for key, item in body.items() if key != name}
    what = _change(rng, body, rng.choice(_places(body[name], (name,))))
    # Under its new name it may have become another field.
    is_one = WHOLE in body or all(body[key] is item for key, item in others.items())
    return Sent(path, write(body), what, name=name if is_one else None)


def _many_fields(rng: random.Random, path: str, body: dict[str, Any]) -> Sent:
    whats = []
    for _ in range(rng.randint(2, 6)):
        if places := [place for place in _places(body, ()) if place]:
            whats.append(_change(rng, body, rng.choice(places)))
    return Sent(path, write(body), "; ".join(whats))


def _aimed(rng: random.Random, path: str, body: dict[str, Any]) -> Sent:
    """A change that a field was made for: schemas, token ids, roles, parts, arguments."""
    if path == TEXT:
        odd = rng.choice((-1, 10**8, 2**31, 2**63, 10**30, True, 1.5, None, "a", [1], {}))
        body["prompt"] = rng.choice(
            ([odd], [[odd]], [5, odd], [[5], [odd]], [[5], odd], [[]], [""])
        )
        return Sent(path, write(body), f"prompt {body['prompt']}", name="prompt")
    schema, value = rng.choice(_SCHEMAS), _odd(rng)
    aim = rng.choice(("format", "tool", "tool", "tool name", "kwargs", "role", "part", "bias"))
    if aim == "format" and path == CHAT:
        body = {"messages": [_user()], "max_tokens": 3, "response_format": _schema(schema)}
        name = "response_format"
    elif aim.startswith("tool"):
        function = {"name": rng.choice(_TEXTS), "parameters": _CITY}
        if aim == "tool":
            function = {"name": "f", "parameters": schema}
        body |= {"tools": [{"type": "function", "function": function}]}
        if path == CHAT:
            body["tool_choice"] = rng.choice(("auto", "required", "none"))
        name = "tools"
    elif aim == "role":
        body = {**body, "messages": [{**_user(), "role": rng.choice(_ROLES)}]}
        name = "messages"
    elif aim == "part":
        body = {**body, "messages": [_user([{"type": "text", "text": "a"}, rng.choice(_PARTS)])]}
        name = "messages"
    elif aim == "bias" and path == CHAT:
        key = rng.choice(("-1", "1e3", "99999999", "9" * 30, "", "٣", "0x1", " 1", "1_0", "65"))
        body["logit_bias"] = {"65": 1, key: rng.choice((1, value))}
        name = "logit_bias"
    else:
        aim = "kwargs"
        body["chat_template_kwargs"] = {rng.choice(_KWARGS): value}
        name = "chat_template_kwargs"
    if path == TOKENIZE:
        body.pop("prompt", None)
        body.setdefault("messages", [_user()])
    return Sent(path, write(body), f"{aim} {str(body[name])[:300]}", name=name)


def _text(rng: random.Random, path: str, body: dict[str, Any]) -> Sent:
    """Changes to the bytes of a good body."""
    good = write(body)
    cut, other = sorted((rng.randrange(len(good)), rng.randrange(len(good))))
    noise = rng.randbytes(rng.randint(1, 8))
    mutants: dict[str, Callable[[], bytes]] = {
        "cut short": lambda: good[:cut],
        "noise put in": lambda: good[:cut] + noise + good[cut:],
        "noise put over": lambda: good[:cut] + noise + good[cut + len(noise) :],
        "a piece left out": lambda: good[:cut] + good[other:],
        "a piece twice": lambda: good[:other] + good[cut:],
        "something behind": lambda: good + rng.choice((b"}", b",{}", b"\0", b"//", good)),
        "a list around": lambda: b"[" + good + b"]",
        "text around": lambda: json.dumps(good.decode()).encode(),
        "a byte order mark": lambda: b"\xef\xbb\xbf" + good,
        "UTF-16": lambda: good.decode().encode("utf-16"),
        "UTF-32": lambda: good.decode().encode("utf-32"),
        "Latin-1": lambda: good.replace(b'"', b'"\xe9\xff', 1),
        "zipped": lambda: gzip.compress(good, mtime=0),
        "noise alone": lambda: rng.randbytes(rng.randint(1, 400)),
        "nothing": lambda: b"",
        "no object": lambda: rng.choice((b"null", b"1", b'"a"', b"[]", b"true", b" ", b"{}", b"-")),
        "deep": lambda: rng.choice((b"[", b'{"a":', b'[{"a":[')) * rng.choice((101, 990, 50_000)),
        "many keys": lambda: write({f"{i}": i for i in range(20_000)}),
    }
    what = rng.choice(sorted(mutants))
    return Sent(path, mutants[what](), what)


def _framed(rng: random.Random, path: str, body: dict[str, Any]) -> Sent:
    """A good body in an odd frame: methods, paths, headers."""
    good = write(body)
    what = rng.choice(("method", "path", "type", "header"))
    if what == "method":
        method = rng.choice(("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "BREW"))
        paths = (path, "/v1/models", "/health", "/metrics", "/openapi.json")
        return Sent(rng.choice(paths), good, f"method {method}", method=method)
    if what == "path":
        odd = rng.choice(
            ("/", "//", path + "/", path.upper(), "/v1" + path, "/v1/models/%ff", "/v1/models/%00",
             "/v1/models/" + "a" * 3000, "/v1/models/../../x", path + "?stream=true&n=%ff", "/%2e%2e",
             "/v1/models/a/b", "/v1/models/", "/docs", "/redoc", path + ";a", "/*")
        )  # fmt: skip
        return Sent(odd, good, f"path {odd[:40]}", method=rng.choice(("GET", "POST")))
    if what == "type":
        kind = rng.choice(
            ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "", "json",
             "application/json; charset=latin-1", "APPLICATION/JSON", "application/vnd.a+json",
             "application/json, text/html", "\xff", ";", "application/xml", "application/json;" * 99)
        )  # fmt: skip
        return Sent(path, good, f"type {kind[:40]}", headers={"Content-Type": kind})
    headers = {
        "Authorization": rng.choice(
            ("Bearer", "Bearer ", "Basic a", "\xff", "Bearer " + "a" * 8000)
        ),
        "Accept": rng.choice(("", "text/html", "*/*;q=\xff")),
        "Content-Encoding": rng.choice(("gzip", "br", "identity", "")),
        "Host": rng.choice(
            ("localhost", "evil.example", "", "[::1", "127.0.0.1:99999", "a b", "@")
        ),
        "Origin": rng.choice(("null", "http://evil.example", "\xff")),
        "Expect": rng.choice(("100-continue", "200-ok")),
        "Range": "bytes=5-1",
        "X-Request-Id": "a" * 5000,
        "Cookie": "a=" + "b" * 3000,
        "Upgrade": rng.choice(("websocket", "h2c")),
    }
    chosen = {name: headers[name] for name in rng.sample(sorted(headers), rng.randint(1, 3))}
    return Sent(path, good, f"headers {chosen}"[:200], headers={**JSON, **chosen})


# Changes


def _change(rng: random.Random, body: Any, place: Steps) -> str:
    """Mutates `body` at `place`. Returns words for what was done."""
    *above, last = place
    box = body
    for step in above:
        box = box[step]
    where = ".".join(map(str, place))[:80]
    kind = rng.choice(("replace", "replace", "replace", "drop", "rename", "twice", "wrap", "move"))
    if kind == "drop":
        del box[last]
    elif kind == "rename" and isinstance(last, str):
        box[rng.choice((last.upper(), last + " ", *_KEYS))] = box.pop(last)
    elif kind == "twice" and isinstance(last, str):
        # The second one counts, as it does for most who read JSON.
        pairs = [f"{json.dumps(key)}:{write(item).decode()}" for key, item in box.items()]
        doubled = Raw(
            "{" + ",".join([*pairs, f"{json.dumps(last)}:{write(_odd(rng)).decode()}"]) + "}"
        )
        return _put(body, above, doubled, f"twice {where}")
    elif kind == "wrap":
        box[last] = rng.choice(([box[last]], {"a": box[last]}, [box[last], box[last]]))
    elif kind == "move":
        box[last] = copy.deepcopy(rng.choice(CORPUS)[1])
    else:
        box[last] = _odd(rng)
        return f"replace {where} by {str(box[last])[:60]!r}"
    return f"{kind} {where}"


def _put(body: Any, place: list[str | int], value: Raw, what: str) -> str:
    if not place:
        body.clear()
        body[WHOLE] = value
        return what
    for step in place[:-1]:
        body = body[step]
    body[place[-1]] = value
    return what


def _odd(rng: random.Random) -> Any:
    """A copy: further changes are made in place."""
    return copy.deepcopy(rng.choice(_ANY))


def _places(value: Any, at: Steps) -> list[Steps]:
    """Every place in a body, `at` included."""
    places = [at]
    if isinstance(value, dict):
        items: Any = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        places += _places(item, (*at, step))
    return places


def write(value: Any) -> bytes:
    """JSON with the raw pieces in it."""
    return _written(value).encode("utf-8", "surrogatepass")


def _written(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        if WHOLE in value:
            return _written(value[WHOLE])
        pairs = (f"{json.dumps(key)}:{_written(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
