"""Messages to render in tests, and rendered prompts as text one can read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

Message = dict[str, Any]

_SIGNS = {kind: f"⟦{kind[0].upper()}⟧" for kind in BoundaryKind}
_SIGNS[BoundaryKind.USER] = _SIGNS[BoundaryKind.MESSAGE]  # whoever speaks


def system(content: str = "Be brief.") -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def tool(content: str, call_id: str = "call00001") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": "get_weather", "content": content}


def call(call_id: str = "call00001", **arguments: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments or {"city": "Paris"}}
    return {"id": call_id, "type": "function", "function": function}


def _declared(name: str, description: str) -> dict[str, Any]:
    city = {"type": "string", "description": "Name of the city"}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [_declared("get_weather", "The weather"), _declared("get_time", "The time of day")]


def shown(tokenizer: Any, prompt: Prompt) -> str:
    """The prompt's text with ⟦S⟧, ⟦M⟧ and ⟦G⟧ where its boundaries are."""
    pieces, start = [], 0
    for boundary in prompt.boundaries:
        pieces.append(tokenizer.decode(prompt.tokens[start : boundary.position]))
        pieces.append(_SIGNS[boundary.kind])
        start = boundary.position
    return "".join([*pieces, tokenizer.decode(prompt.tokens[start:])])


def common_len(one: Prompt, other: Prompt) -> int:
    """How many tokens two prompts begin with in common."""
    length = min(len(one), len(other))
    parted = (one.tokens[:length] != other.tokens[:length]).nonzero()[0]
    return int(parted[0]) if len(parted) else length


def lasting(prompt: Prompt, limit: int) -> set[Boundary]:
    """The boundaries within the first `limit` tokens that the next turn must find again."""
    own = (BoundaryKind.GENERATION, BoundaryKind.PARAGRAPH)
    return {b for b in prompt.boundaries if b.kind not in own and b.position <= limit}


def set_day(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    """Templates that write the date write that day of January 2030."""

    class Clock(datetime):
        fixed = datetime(2030, 1, day)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fixed

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
