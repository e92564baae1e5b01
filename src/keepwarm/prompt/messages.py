"""Reads OpenAI-style messages: checks their shape and brings them into the form templates expect.
What the caller passed is never changed. Plain data, no mlx; any thread."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.errors import BadInput

Message = dict[str, Any]

# The system part of a conversation: what stands before the first message of these roles' ends.
SYSTEM_ROLES = ("system", "developer")

# Less of a system message is not worth a place of its own; and each costs two renderings, once.
_MIN_BLOCK_CHARS = 1000
_MAX_BREAKS = 8

# Templates know by this markup that a message of the user's holds results.
_RESULT_BEGIN, _RESULT_END = "<tool_response>", "</tool_response>"
# Parts of content that are text, and the field that holds it.
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
# Parts that are a thought of the assistant's; what is encrypted in one nobody here can read.
THOUGHT_PARTS = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": None}

# Arguments of the rendering itself, which a request must not set through the template's.
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class Null:
    """None to a template, where transformers drops what is None from a message (5.23 does): like a
    model of Pydantic's it is asked for plain data, after that. There is but `NULL`."""

    def model_dump(self) -> None:
        return None

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<null content>"

    def __reduce__(self) -> str:
        return "NULL"  # a copy is the same


NULL = Null()


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template wants an assistant message that calls tools."""

    absent_content: str | Null | None = ""  # some templates render calls only where content is none
    arguments: type[dict[str, Any]] | type[str] = dict  # most read a mapping, a few join text
    thought: str = "reasoning_content"  # the name that its thought goes by
    is_exclusive: bool = False  # a thought or content, never both


def read_messages(messages: object) -> list[Message]:
    """Copies of `messages` with content as one string (or None), `reasoning` also known as
    `reasoning_content`, and no empty fields. Raises BadInput for what is not a conversation."""
    return [
        _read_message(message, f"messages[{i}]") for i, message in enumerate(sequence_of(messages))
    ]


def sequence_of(messages: object) -> Sequence[Mapping[str, Any]]:
    """`messages`, where they are a list of objects, and not empty. Raises BadInput."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise BadInput(f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise BadInput("messages must hold at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadInput(f"messages[{i}] must be an object, got {type(message).__name__}")
    return messages


def read_tools(tools: object) -> list[dict[str, Any]] | None:
    """`tools`, or None where there are none: templates ask whether tools are none, and an empty
    list is not. Raises BadInput."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise BadInput(f"tools must be a list, got {type(tools).__name__}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise BadInput(f"tools[{i}] must be an object, got {type(tool).__name__}")
    return copy.deepcopy(list(tools)) or None


def read_template_kwargs(kwargs: object) -> dict[str, Any]:
    """The template's own arguments. Raises BadInput where one would change the rendering call."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise BadInput(f"template arguments must be an object, got {type(kwargs).__name__}")
    for name in kwargs:
        if not isinstance(name, str) or name in _RESERVED:
            raise BadInput(f"{name!r} cannot be passed as a template argument")
    return dict(kwargs)


def in_form(messages: Sequence[Message], form: CallForm) -> list[Message]:
    """`messages` with tool calls as `form` has them; messages without calls are shared."""
    return [_message_in_form(message, form) for message in messages]


def num_leading_system(messages: Sequence[Message]) -> int:
    """How many messages at the start belong to the system part."""
    for i, message in enumerate(messages):
        if message["role"] not in SYSTEM_ROLES:
            return i
    return len(messages)


def system_breaks(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Where the blocks of leading system messages end that are given as lists of blocks, the last
    block of each left out: the index of the message, and characters of its text. Blocks that are
    short by themselves are taken together."""
    found: list[tuple[int, int]] = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if message.get("role") not in SYSTEM_ROLES:
            break
        last = end = 0
        for part in content[:-1] if isinstance(content, list | tuple) else ():
            said = _read_parts([part], f"messages[{i}].content")
            end += sum(len(text) for text, is_thought in said if not is_thought)
            if end - last >= _MIN_BLOCK_CHARS:
                found.append((i, end))
                last = end
    return found[:_MAX_BREAKS]


def is_users(message: Message) -> bool:
    """Whether the user speaks in it. Some clients send tool results as the user's."""
    if message["role"] != "user" or "tool_call_id" in message:
        return False
    text = (message["content"] or "").strip()
    return not (text.startswith(_RESULT_BEGIN) and text.endswith(_RESULT_END))


def _read_message(message: Mapping[str, Any], where: str) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadInput(f"{where}.role must be a non-empty string, got {role!r}")
    # Clients send null for what is not there; templates ask whether a key is defined.
    known = ("content", "tool_calls")
    read = {key: copy.deepcopy(v) for key, v in message.items() if v is not None}
    read = {key: value for key, value in read.items() if key not in known}
    read["content"] = read_content(message.get("content"), f"{where}.content")
    calls = _read_tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    if calls:
        read["tool_calls"] = calls
    elif read["content"] is None:
        read["content"] = ""
    # Servers stream `reasoning`; templates read `reasoning_content`. Losing it loses the prefix.
    for name in ("reasoning_content", "reasoning", "thinking"):
        if not isinstance(read.get(name, ""), str):
            raise BadInput(f"{where}.{name} must be a string")
        if name in read:
            read.setdefault("reasoning_content", read[name])
    thoughts = _read_thoughts(message.get("content"), f"{where}.content")
    if thoughts is not None:
        read.setdefault("reasoning_content", thoughts)
    return read


def read_content(content: object, where: str) -> str | None:
    """Content as one string, whatever parts it came in, without the thoughts among them. Raises
    BadInput."""
    if content is None or isinstance(content, str):
        return content
    return "".join(text for text, is_thought in _read_parts(content, where) if not is_thought)


def _read_thoughts(content: object, where: str) -> str | None:
    """The thoughts among the parts of content; None where there are none."""
    if content is None or isinstance(content, str):
        return None
    found = [text for text, is_thought in _read_parts(content, where) if is_thought and text]
    return "\n".join(found) if found else None


def _read_parts(content: object, where: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it is a thought) of each part."""
    if not isinstance(content, Sequence):
        raise BadInput(f"{where} must be a string or a list of parts")
    for i, part in enumerate(content):
        place = f"{where}[{i}]"
        if not isinstance(part, Mapping):
            raise BadInput(f"{place} must be an object with a text")
        kind = part.get("type", "text")
        if isinstance(kind, str) and kind in THOUGHT_PARTS:
            yield _read_thought(part, THOUGHT_PARTS[kind], place), True
            continue
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise BadInput(f"{place} is of type {kind!r}; only text is supported")
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise BadInput(f"{place} must be an object with a {TEXT_PARTS[kind]}")
        yield text, False


def _read_thought(part: Mapping[str, Any], name: str | None, where: str) -> str:
    thought = part.get(name, "") if name is not None else ""
    if isinstance(thought, list):  # Mistral's are lists of parts
        return read_content(thought, f"{where}.{name}") or ""
    if not isinstance(thought, str):
        raise BadInput(f"{where}.{name} must be a string")
    return thought


def _read_tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise BadInput(f"{where} must be a list")
    read = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadInput(f"{where}[{i}] must be an object with a function that has a name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str | Mapping | None):
            raise BadInput(f"{where}[{i}].function.arguments must be an object or its JSON text")
        copied = copy.deepcopy({"type": "function", **call})
        copied["function"] = {
            **copied["function"],
            "arguments": copied["function"].get("arguments") or {},
        }
        read.append(copied)
    return read


def _message_in_form(message: Message, form: CallForm) -> Message:
    if "tool_calls" not in message:
        return message
    as_wanted = _as_text if form.arguments is str else _as_mapping
    calls = [
        {**call, "function": {**call["function"], "arguments": as_wanted(call["function"])}}
        for call in message["tool_calls"]
    ]
    content, thought = message["content"], message.get("reasoning_content")
    named = {} if thought is None else {form.thought: thought}
    if form.is_exclusive and thought and content:
        # Said before a call, to nobody but the tool: of what the model thought of it.
        named, content = {form.thought: f"{thought}\n\n{content}"}, None
    # An empty string and none mean the same to a client; the template decides between them.
    said = {"content": content or form.absent_content, "tool_calls": calls}
    return {**message, **named, **said}


def _as_mapping(function: Mapping[str, Any]) -> Any:
    """The arguments as an object; as they are where their text is not one in JSON."""
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
