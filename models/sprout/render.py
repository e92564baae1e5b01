"""The chat template by hand: the same text as `chat_template.jinja`, many times faster, in spans
that say which parts the assistant makes. Equality is proven in the tests. Any thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Span = tuple[str, bool]  # a text, and whether the assistant makes it


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _signature(tool: Message) -> str:
    function = tool.get("function", tool)
    said = (
        f', "description": {_json(function["description"])}' if function.get("description") else ""
    )
    properties = (function.get("parameters") or {}).get("properties") or {}
    given = ", ".join(
        f"{_json(name)}: {_json(p.get('enum') or p.get('type') or 'any')}"
        for name, p in properties.items()
    )
    return f'{{"name": {_json(function["name"])}{said}, "parameters": {{{given}}}}}'


def _call(call: Message) -> str:
    function = call.get("function", call)
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return f'<tool_call>\n{{"name": {_json(function["name"])}, "arguments": {text}}}\n</tool_call>'


def _said(message: Message) -> str:
    """An assistant's content and calls."""
    content = (message.get("content") or "").strip()
    calls = "\n".join(map(_call, message.get("tool_calls") or ()))
    return f"{content}\n\n{calls}" if content and calls else content + calls


def _last_query(messages: Sequence[Message]) -> int:
    return max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)


def generation_prompt(is_thinking: bool) -> str:
    return "<|im_start|>assistant\n<think>\n" + ("" if is_thinking else "\n</think>\n\n")


def _system(messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
    content = (messages[0]["content"] or "").strip() if messages[0]["role"] == "system" else ""
    if not tools:
        return (
            f"<|im_start|>system\n{content}<|im_end|>\n" if messages[0]["role"] == "system" else ""
        )
    lines = "\n".join(["Tools:", *map(_signature, tools)])
    rest = f"\n\n{content}" if content else ""
    return f"<|im_start|>system\n{lines}{rest}<|im_end|>\n"


def spans(
    messages: Sequence[Message], tools: Sequence[Message] | None, is_thinking: bool
) -> list[Span]:
    """The conversation as text. An assistant's turn begins behind its generation prompt."""
    last_query = _last_query(messages)
    found: list[Span] = [(_system(messages, tools), False)]
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            found.append((f"<|im_start|>user\n{message['content'].strip()}<|im_end|>\n", False))
        elif role == "tool":
            opening = "" if messages[i - 1]["role"] == "tool" else "<|im_start|>user"
            is_last = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            closing = "<|im_end|>\n" if is_last else ""
            content = message["content"].strip()
            found.append(
                (f"{opening}\n<tool_response>\n{content}\n</tool_response>{closing}", False)
            )
        elif role == "assistant":
            found += _assistant(message, is_thinking, is_kept=i > last_query)
    return found


def _assistant(message: Message, is_thinking: bool, is_kept: bool) -> list[Span]:
    opening, made = "<|im_start|>assistant\n", _said(message)
    if is_kept:
        thought = (message.get("reasoning_content") or "").strip()
        if is_thinking:
            opening, made = generation_prompt(is_thinking), f"{thought}\n</think>\n\n{made}"
        else:
            # Without thinking, an earlier thought can only be empty: it is part of the prompt.
            opening = generation_prompt(is_thinking)
    return [(opening, False), (made + "<|im_end|>", True), ("\n", False)]


def text_of(found: Sequence[Span]) -> str:
    return "".join(text for text, _ in found)


def prompt_text(
    messages: Sequence[Message], tools: Sequence[Message] | None, is_thinking: bool
) -> str:
    """What the model reads before it makes the last message, generation prompt included."""
    before = spans(messages[:-1], tools, is_thinking)
    return text_of(before) + generation_prompt(is_thinking)
