"""Calls without tags: the whole reply is {"name": ..., "parameters": {...}}, as Llama 3.1 and 3.2 are
told to write. No mlx; any thread, a scanner one at a time."""

from __future__ import annotations

import json
from typing import Any

from keepwarm.prompt.reply import Called, Piece, Said, ToolCall
from keepwarm.prompt.tags import Markup, Scanner, json_text, new_call_id
from keepwarm.prompt.template import Tokenizer

# In what templates tell the model.
_TOLD = 'Respond in the format {"name": function name, "parameters": dictionary of argument name'
_OPENING = '{"name":'
_PYTHON_TAG = "<|python_tag|>"


def calls_barely(tokenizer: Tokenizer) -> bool:
    """Whether the chat template of `tokenizer` asks for calls without tags."""
    template = getattr(tokenizer, "chat_template", None)
    return isinstance(template, str) and _TOLD in template


class BareScanner(Scanner):
    """A reply that may be a call is held back until that is known."""

    def __init__(self, tokenizer: Tokenizer, markup: Markup, tools: Any) -> None:
        super().__init__(tokenizer, markup, tools)
        self._held: str | None = "" if tools else None  # None: it is no call

    @property
    def can_call(self) -> bool:
        return bool(self._tools)

    def push(self, text: str) -> list[Piece]:
        if self._held is None:
            return super().push(text)
        self._held += text
        if _may_be_call(self._held):
            return []
        held, self._held = self._held, None
        return super().push(held)

    def end(self, finish_reason: str = "stop") -> list[Piece]:
        held, self._held = self._held or "", None
        call = _read_call(held)
        if call is not None:
            return [Called(0, call)]
        if finish_reason == "length" and _is_begun(held):
            return []
        pieces = [*super().push(held), *super().end(finish_reason)]
        return [piece for piece in pieces if not isinstance(piece, Said) or piece.text]


def _bare(text: str) -> str:
    """Without what may stand before a call, and without blanks that JSON may have."""
    return text.lstrip().removeprefix(_PYTHON_TAG).lstrip()


def _may_be_call(text: str) -> bool:
    bare = _bare(text)
    if _PYTHON_TAG.startswith(bare) and bare:
        return True
    squeezed = "".join(bare[: 4 * len(_OPENING)].split())
    return _OPENING.startswith(squeezed) or squeezed.startswith(_OPENING)


def _is_begun(text: str) -> bool:
    return "".join(_bare(text)[: 4 * len(_OPENING)].split()).startswith(_OPENING)


def _read_call(text: str) -> ToolCall | None:
    try:
        call = json.loads(_bare(text))
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("parameters")
    if not isinstance(arguments, dict):
        return None
    return ToolCall(new_call_id(), call["name"], json_text(arguments))
