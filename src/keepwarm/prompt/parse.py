"""A generated reply to the message a client sends back: reasoning, content and tool calls, cut so
that the template writes the same text again where it can. No mlx; any thread."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.endings import find_call_form
from keepwarm.prompt.messages import CallForm, Message, in_form, read_messages
from keepwarm.prompt.template import Template, Tokenizer


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` are JSON text, as clients expect."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered. `reasoning` is None where it did not think at all."""

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    def as_message(self) -> Message:
        """The assistant's message in OpenAI's form, to be sent back with the next turn."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["content"] = self.content or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


def parse_reply(
    tokenizer: Tokenizer,
    text: str,
    *,
    prompt: Prompt | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Reply:
    """Splits `text`, the whole reply without its end token, by the tags mlx-lm knows of
    `tokenizer`. `prompt` is what it continues: it may have opened a thought already. What was
    meant as a tool call but cannot be read stays in the content."""
    contents, thoughts, calls = [""], [], []
    is_opened = prompt is not None and opens_thought(tokenizer, prompt)
    start = getattr(tokenizer, "response_initial_state", None)
    for state, piece, tagged in _pieces(
        _transitions(tokenizer), start or ("reasoning" if is_opened else "normal"), text
    ):
        if state == "reasoning":
            thoughts.append(piece)
        elif state == "normal":
            contents.append(piece)
        elif state == "tool":
            read = _read_calls(tokenizer, piece, tools)
            calls += read
            if not read:
                contents.append(tagged)
    reasoning = "".join(thoughts) if thoughts or is_opened else None
    reply = Reply("".join(contents), reasoning, tuple(calls))
    return _as_written_again(Template(tokenizer, kwargs=dict(template_kwargs or {})), text, reply)


def opens_thought(tokenizer: Tokenizer, prompt: Prompt) -> bool:
    """Whether the generation prompt of `prompt` leaves a thought open."""
    start_tokens = getattr(tokenizer, "think_start_tokens", None)
    end_tokens = getattr(tokenizer, "think_end_tokens", None)
    if not start_tokens or not end_tokens:
        return False
    # Users write tags too; the generation prompt begins behind the last message.
    tail = prompt.tokens[prompt.last_message_end or 0 :].tolist()
    return _last_index(tail, start_tokens) > _last_index(tail, end_tokens)


def _last_index(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens lie before the last occurrence of `wanted`, plus one; 0 without one."""
    width = len(wanted)
    places = range(len(tokens) - width + 1, 0, -1)
    return next((i for i in places if list(tokens[i - 1 : i - 1 + width]) == list(wanted)), 0)


_Transitions = dict[str, list[tuple[str, str | None]]]


def _transitions(tokenizer: Tokenizer) -> _Transitions:
    """state → [(tag, next state)], the same table mlx-lm's server streams by."""
    facts: Any = tokenizer
    table: _Transitions = {"normal": [], "reasoning": [], "tool": []}
    given: Mapping[str, Any] = getattr(facts, "response_transitions", {})
    if getattr(facts, "has_thinking", False):
        table["normal"].append((facts.think_start, "reasoning"))
        table["reasoning"].append((facts.think_end, "normal"))
    if getattr(facts, "has_tool_calling", False):
        # A response format of the model's own decides where calls start.
        if not any(state == "tool" for edges in given.values() for _, state in edges):
            table["normal"].append((facts.tool_call_start, "tool"))
        table["reasoning"].append((facts.tool_call_start, "tool"))
        if facts.tool_call_end:
            table["tool"].append((facts.tool_call_end, "normal"))
    for tag in getattr(facts, "structural_markers", ()):
        table["normal"].append((tag, "normal"))
    for state, edges in given.items():
        table.setdefault(state, []).extend(edges)
    return table


def _pieces(table: _Transitions, state: str | None, text: str) -> Iterator[tuple[str, str, str]]:
    """(state, text without tags, text with the tags around it) from the first to the last."""
    opened = start = 0
    while state is not None:
        found = [
            (place, -len(tag), tag, following)
            for tag, following in table.get(state, [])
            if (place := text.find(tag, start)) >= 0
        ]
        if not found:
            yield state, text[start:], text[opened:]
            return
        place, _, tag, following = min(found, key=lambda edge: edge[:2])
        yield state, text[start:place], text[opened : place + len(tag)]
        opened, start, state = place, place + len(tag), following


def _read_calls(
    tokenizer: Tokenizer, piece: str, tools: Sequence[Mapping[str, Any]] | None
) -> list[ToolCall]:
    parser: Any = getattr(tokenizer, "tool_parser", None)
    try:
        parsed = parser(piece, tools)
        return [_read_call(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
    except Exception:
        # A model may write anything, and each parser fails in its own way.
        return []


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError(f"a tool's name must be text, got {name!r}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    # Nine letters and digits: the one form that all templates accept.
    return ToolCall(str(call.get("id") or uuid.uuid4().hex[:9]), name, arguments)


def _as_written_again(template: Template, text: str, reply: Reply) -> Reply:
    """`reply` with the line breaks around its parts kept or left to the template, whichever makes
    the template write `text` again; left to it where it never does."""
    if reply.reasoning is None and not reply.tool_calls:
        return reply
    content = reply.content
    thoughts = [None] if reply.reasoning is None else [reply.reasoning.strip("\n"), reply.reasoning]
    trimmed = content.strip("\n") if reply.tool_calls else content.lstrip("\n")
    contents = [trimmed, content.lstrip("\n"), content]
    ways = [
        Reply(words, thought, reply.tool_calls)
        for thought, words in itertools.product(dict.fromkeys(thoughts), dict.fromkeys(contents))
    ]
    form = find_call_form(template) if reply.tool_calls else CallForm()
    user = {"role": "user", "content": "x"}
    for way in ways:
        echo = in_form(read_messages([user, way.as_message()]), form)
        if text in (template.try_text(echo, add_generation_prompt=False) or ""):
            return way
    return ways[0]
