"""What a right reply holds, as plain data that can be pickled, and the judge. Any thread."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_UNKNOWN = re.compile(
    r"do(?:es)? not (?:know|say|tell|mention|find)|do(?:es)?n't (?:know|say|tell|mention|find)"
    r"|not (?:been )?told|nobody told me|no idea|cannot (?:tell|say|find|know)|can't (?:tell|say|find|know)"
    r"|nothing (?:about|on)|is not (?:in|said|mentioned)|isn't (?:in|said|mentioned)|did not (?:tell|say)"
    r"|only know what|never mentioned|says nothing|have not|am not sure",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"not allowed|may not|must not|cannot (?:tell|talk|say|share)|can't (?:tell|talk|say|share)"
    r"|won't|will not|keep (?:it|that) secret|is a secret|not going to",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Accepts:
    """All `values` and one of `any_of` must stand in the reply as whole words, none of `rejects`."""

    values: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()  # (what, with which text): see `_CHECKS`
    calls: tuple[tuple[str, str], ...] = ()  # (name, arguments as JSON with sorted keys)


@lru_cache(maxsize=65536)
def _whole(text: str) -> re.Pattern[str]:
    # A point may follow a word, but "4.5" is not 4, nor is K7-42 found in K7-421.
    return re.compile(rf"(?<![\w-])(?<!\d[.:]){re.escape(text)}(?![\w-])(?![.:]\d)", re.IGNORECASE)


def holds(text: str, value: str) -> bool:
    """Whether `value` stands in `text` as a whole, whatever its case."""
    return _whole(value).search(text) is not None


def _ends(text: str, sign: str) -> bool:
    bare = text.rstrip()
    return bare.endswith(sign) or bare.rstrip(".!?\"'*)").endswith(sign)


def _is_replaced(text: str, pair: str) -> bool:
    wrong, right = pair.split("\n")
    return not holds(text, wrong) and holds(text, right)


def _last_number(text: str, number: str) -> bool:
    found = re.findall(r"\d+", text)
    return bool(found) and found[-1] == number


_NO_TOOL = re.compile(
    r"no tool|none of my tools|not possible|(?:can't|cannot) do|do(?:n't| not) have a tool",
    re.IGNORECASE,
)
_CHECKS = {
    "last_number": _last_number,
    "no_tool": lambda text, _: _NO_TOOL.search(text) is not None,
    "ends": _ends,
    "begins": lambda text, sign: text.lstrip("\"'*([=| ").startswith(sign),
    "capitals": lambda text, _: text == text.upper() and any(c.isalpha() for c in text),
    "one_word": lambda text, num: len(text.split()) <= int(num),
    "mentions": holds,
    "avoids": lambda text, value: not holds(text, value),
    "replaces": _is_replaced,
    "wraps": lambda text, sign: (
        text.strip().startswith(sign[0]) and text.strip().endswith(sign[-1])
    ),
    "unknown": lambda text, _: _UNKNOWN.search(text) is not None,
    "refuses": lambda text, _: _REFUSED.search(text) is not None,
}


def call_as_data(name: str, arguments: Any) -> tuple[str, str]:
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return name, json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def read_calls(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text before the first call, and the calls in a raw reply. Raises ValueError where a call
    is not well formed."""
    said, _, rest = text.partition("<tool_call>")
    calls = []
    while rest:
        body, end, rest = rest.partition("</tool_call>")
        parsed = json.loads(body)
        if not end or not isinstance(parsed, dict) or not isinstance(parsed.get("name"), str):
            raise ValueError(f"not a call: {body!r}")
        calls.append(call_as_data(parsed["name"], parsed.get("arguments", {})))
        _, _, rest = rest.partition("<tool_call>")
    return said.strip(), calls


def is_accepted(accepts: Accepts, text: str, tool_calls: Sequence[Any] = ()) -> bool:
    """`tool_calls` as OpenAI has them, or (name, arguments) pairs."""
    try:
        made = [
            call_as_data(call["function"]["name"], call["function"]["arguments"])
            if isinstance(call, dict)
            else call_as_data(*call)
            for call in tool_calls
        ]
    except (KeyError, TypeError, ValueError):
        return False
    if sorted(made) != sorted(accepts.calls):
        return False
    return (
        all(holds(text, value) for value in accepts.values)
        and (not accepts.any_of or any(holds(text, value) for value in accepts.any_of))
        and not any(holds(text, value) for value in accepts.rejects)
        and all(_CHECKS[what](text, sign) for what, sign in accepts.checks)
    )
