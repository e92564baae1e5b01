"""What clients send and a chat template cannot write, brought into a form that it can: a closed
list of rules, the same for every protocol. No mlx; any thread.

A rule changes only what this template refuses or drops, which small trial renderings show, or what
is not meant for the model; the result is remembered with the template. What a message becomes depends on the messages before it
and on its neighbours of the same turn, so a longer conversation begins with the same tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from keepwarm.prompt.endings import find_call_form
from keepwarm.prompt.markup import ALPHA, QUEBEC
from keepwarm.prompt.memory import Memory, memory_of
from keepwarm.prompt.messages import (
    SYSTEM_ROLES,
    Message,
    in_form,
    read_content,
    read_messages,
    read_tools,
    sequence_of,
)
from keepwarm.prompt.template import Template, Tokenizer

# What a part that is no text is called in the text that stands for it.
ATTACHMENTS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "document": "file",
    "file": "file",
    "input_file": "file",
}
# A line that Claude Code puts in front of its prompt: another one in every session.
_BILLING = "x-anthropic-billing-header:"
# Around a system message that stands inside a user's turn.
_MARKED = "<system-message>\n{}\n</system-message>"
_BETWEEN = "\n\n"
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
# Arguments that were no JSON object, as the one value of an object.
_INVALID = "invalid_json"

_SYSTEM, _DEVELOPER = SYSTEM_ROLES


class Trials:
    """What one template, with the arguments of one request, takes. Each trial is a rendering of
    made-up messages; the template's memory keeps the answers."""

    def __init__(
        self, tokenizer: Tokenizer, tools: object, template_kwargs: Mapping[str, Any] | None
    ) -> None:
        self._memory: Memory = memory_of(tokenizer)
        # One tool shows what the template does with tools; all of them would only be written.
        short = (read_tools(tools) or [])[:1] or None
        self._template = Template(tokenizer, short, dict(template_kwargs or {}))

    @cached_property
    def _key(self) -> object:
        return self._template.key(), self._template.tools is not None

    def writes(self, *roles: str) -> bool:
        """Whether the template writes messages of these roles, all of them and in this order."""
        return self._memory.recall(("writes", self._key, roles), lambda: self._writes(roles))

    def takes_bare_tools(self) -> bool:
        """Whether it writes a tool without a description, or none with one either."""
        return self._memory.recall(("bare tools", self._key), self._takes_bare_tools)

    def _takes_bare_tools(self) -> bool:
        bare, described = (
            replace(self._template, tools=[{"type": "function", "function": function}]).try_text(
                [{"role": "user", "content": ALPHA}], add_generation_prompt=True
            )
            for function in ({"name": "lookup"}, {"name": "lookup", "description": ""})
        )
        return bare is not None or described is None

    def writes_argument_text(self) -> bool:
        """Whether it writes the arguments of a past call that are text and no JSON."""
        return self._memory.recall(("argument text", self._key), self._writes_argument_text)

    def takes_any_id(self) -> bool:
        """Whether it writes calls whose ids are not nine letters and digits."""
        return self._memory.recall(("ids", self._key), self._takes_any_id)

    def _takes_any_id(self) -> bool:
        def text(call_id: str) -> str | None:
            asked = _calling({"query": QUEBEC})
            asked = {**asked, "tool_calls": [{**asked["tool_calls"][0], "id": call_id}]}
            result = {"role": "tool", "tool_call_id": call_id, "content": ALPHA}
            return self._text([{"role": "user", "content": ALPHA}, asked, result])

        # A template that writes no calls at all has nothing to be spared.
        return text("toolu_01abcdefghij") is not None or text("000000001") is None

    def _writes(self, roles: Sequence[str]) -> bool:
        messages: list[Message] = []
        for i, role in enumerate(roles):
            messages.append({"role": role, "content": f"{ALPHA}{i}x"})
            if role == "tool":
                messages[-1] |= {"name": "lookup", "tool_call_id": "000000001"}
                # Not all templates write what is said beside a call.
                messages[-2] = _calling({"query": QUEBEC})
        text = self._text(messages)
        if text is None:
            return False
        places = [text.find(m["content"]) for m in messages if m["content"] is not None]
        return -1 not in places and places == sorted(places)

    def _writes_argument_text(self) -> bool:
        text, usual = (
            self._text([{"role": "user", "content": ALPHA}, _calling(arguments)])
            for arguments in (QUEBEC, {"query": QUEBEC})
        )
        # A template that writes no arguments at all has nothing to be spared.
        return QUEBEC in (text or "") or QUEBEC not in (usual or "")

    def _text(self, messages: Sequence[Message]) -> str | None:
        form = self._memory.recall(("form", self._key), lambda: find_call_form(self._template))
        read = in_form(read_messages(messages), form)
        return self._template.try_text(read, add_generation_prompt=True)


def _calling(arguments: object) -> Message:
    function = {"name": "lookup", "arguments": arguments}
    call = {"id": "000000001", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request brings to a template, and what may be asked about that."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    trials: Trials


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is put right. `apply` gives its argument back where there is nothing to do;
    it never changes it. Raises BadInput where messages are none."""

    name: str
    words: str
    apply: Callable[[Conversation], Conversation]


@dataclass(frozen=True, slots=True)
class Clean:
    """What is rendered instead, and the names of the rules that changed something."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    acted: tuple[str, ...]


def clean(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> Clean:
    """Applies the rules in their order, but those named in `without`. Changes no argument.

    Raises BadInput where `messages` are no conversation, as rendering them would.
    """
    messages = sequence_of(messages)
    conversation = Conversation(messages, tools, Trials(tokenizer, tools, template_kwargs))
    acted = []
    for rule in RULES:
        changed = conversation if rule.name in without else rule.apply(conversation)
        if changed is not conversation:
            acted.append(rule.name)
            conversation = changed
    kept = conversation.tools
    return Clean(
        [dict(message) for message in conversation.messages],
        None if kept is None else [dict(tool) for tool in kept],
        tuple(acted),
    )


# Parts that are no text


def _describe_attachments(conversation: Conversation) -> Conversation:
    def described(message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if not isinstance(content, list) or not any(map(_attachment, content)):
            return message
        return {**message, "content": [_as_text_part(part) for part in content]}

    return _mapped(conversation, described)


def _attachment(part: object) -> str | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return ATTACHMENTS.get(kind) if isinstance(kind, str) else None


def _as_text_part(part: Any) -> Any:
    kind = _attachment(part)
    if kind is None:
        return part
    return {"type": "text", "text": f"[{kind}: this model reads text only]"}


# What is about the client, and not for the model


def _drop_billing_header(conversation: Conversation) -> Conversation:
    def dropped(message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if _role(message) not in SYSTEM_ROLES:
            return message
        if isinstance(content, str) and content.startswith(_BILLING):
            return {**message, "content": content.partition("\n")[2].lstrip("\n")}
        if isinstance(content, list) and any(map(_is_billing, content)):
            return {**message, "content": [part for part in content if not _is_billing(part)]}
        return message

    return _mapped(conversation, dropped)


def _is_billing(part: object) -> bool:
    text = part.get("text") if isinstance(part, Mapping) else None
    return isinstance(text, str) and text.startswith(_BILLING)


# Arguments of past calls


def _wrap_arguments(conversation: Conversation) -> Conversation:
    def wrapped(message: Mapping[str, Any]) -> Mapping[str, Any]:
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return message
        if conversation.trials.writes_argument_text():
            made = [_with_text(call) for call in calls]
        else:
            made = [_with_object(call) for call in calls]
        is_same = all(new is old for new, old in zip(made, calls))
        return message if is_same else {**message, "tool_calls": made}

    return _mapped(conversation, wrapped)


def _has_object(call: object) -> bool:
    """Whether the arguments of a call are an object, or JSON text of one, or not there."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str):
        return arguments is None or isinstance(arguments, Mapping)
    if not arguments:
        return True
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _with_object(call: Any) -> Any:
    """The call with an object for its arguments; itself where it has one, or none."""
    if _has_object(call):
        return call
    text = _with_text(call)["function"]["arguments"]
    arguments = {} if text.strip() == "null" else {_INVALID: text}
    return _with_arguments(call, json.dumps(arguments, ensure_ascii=False))


def _with_text(call: Any) -> Any:
    """The call with text for arguments that are neither text nor an object; else itself."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if arguments is None or isinstance(arguments, str | Mapping):
        return call
    return _with_arguments(call, json.dumps(arguments, ensure_ascii=False))


def _with_arguments(call: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    return {**call, "function": {**call["function"], "arguments": text}}


# Names of calls


def _shorten_ids(conversation: Conversation) -> Conversation:
    """By position, so that the same conversation has the same names whoever made up its own."""
    if conversation.trials.takes_any_id():
        return conversation
    names: dict[str, str] = {}  # of the calls so far, the last of each name
    num_calls = 0

    def renamed(message: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal num_calls
        calls = message.get("tool_calls")
        if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
            made = []
            for call in calls:
                num_calls += 1
                given = call.get("id")
                if isinstance(given, str) and not _SHORT_ID.fullmatch(given):
                    names[given] = f"{num_calls:09d}"
                    call = {**call, "id": names[given]}
                made.append(call)
            if any(new is not old for new, old in zip(made, calls)):
                return {**message, "tool_calls": made}
        named = message.get("tool_call_id")
        if isinstance(named, str) and named in names:
            return {**message, "tool_call_id": names[named]}
        return message

    return _mapped(conversation, renamed)


# Messages of developers and of the system


def _rename_developer(conversation: Conversation) -> Conversation:
    """A developer's message that the template does not write is the system's, where it stands."""
    num_leading = _num_leading(conversation)
    writes = conversation.trials.writes
    roles = list(map(_role, conversation.messages))
    keeps_leading = _DEVELOPER not in roles[:num_leading] or writes(_DEVELOPER, "user")
    keeps_later = _DEVELOPER not in roles[num_leading:] or _writes_later(writes, _DEVELOPER)
    if (keeps_leading and keeps_later) or not writes("user"):
        return conversation
    kept = [keeps_leading] * num_leading + [keeps_later] * (len(roles) - num_leading)
    messages = [
        {**message, "role": _SYSTEM} if role == _DEVELOPER and not is_kept else message
        for message, role, is_kept in zip(conversation.messages, roles, kept)
    ]
    return replace(conversation, messages=messages)


def _join_leading(conversation: Conversation) -> Conversation:
    """Several system messages at the start are one, where the template does not write them all."""
    num_leading = _num_leading(conversation)
    leading = conversation.messages[:num_leading]
    writes = conversation.trials.writes
    roles = tuple(map(_role, leading))
    if num_leading < 2 or writes(*roles[:_MOST_ROLES], "user") or not writes("user"):
        return conversation
    texts = [_text_of(message, i) for i, message in enumerate(leading)]
    joined = {**leading[0], "content": _BETWEEN.join(filter(None, texts))}
    return replace(conversation, messages=[joined, *conversation.messages[num_leading:]])


def _move_into_turn(conversation: Conversation) -> Conversation:
    """A system message that the template does not write where it stands is a marked part of the
    user's turn there."""
    messages, writes = conversation.messages, conversation.trials.writes
    roles = list(map(_role, messages))
    num_leading = _num_leading(conversation)
    misplaced = [
        role == _SYSTEM
        and not (writes(role, "user") if i < num_leading else _writes_later(writes, role))
        for i, role in enumerate(roles)
    ]
    if not any(misplaced) or not writes("user"):
        return conversation
    made: list[Mapping[str, Any]] = []
    is_open = False  # the last one made is a turn that holds such a part
    for i, (message, role) in enumerate(zip(messages, roles)):
        text = _text_of(message, i) if misplaced[i] or (is_open and role == "user") else ""
        if misplaced[i]:
            text = _MARKED.format(text)
        last = _role(made[-1]) if made else None
        if misplaced[i] and last == "tool" and not writes("user", "assistant", "tool", "user"):
            made[-1] = _with_more(made[-1], text, i - 1)
        elif (misplaced[i] and last == "user") or (is_open and role == "user"):
            made[-1] = _with_more(made[-1], text, i - 1)
            is_open = True
        elif misplaced[i]:
            made.append({"role": "user", "content": text})
            is_open = True
        else:
            made.append(message)
            is_open = False
    return replace(conversation, messages=made)


# More system messages in a row are not tried.
_MOST_ROLES = 4
# Where a system message may stand behind the first question.
_LATER = (
    ("user", "?", "assistant", "user"),
    ("user", "assistant", "?", "user"),
    ("system", "user", "assistant", "?", "user"),
)


def _writes_later(writes: Callable[..., bool], role: str) -> bool:
    """Whether a template writes messages of `role` behind the first question, where they stand."""
    ways = [[role if each == "?" else each for each in way] for way in _LATER]
    if not writes(_SYSTEM, "user"):
        ways = [way for way in ways if way[0] != _SYSTEM]
    return all(writes(*way) for way in ways)


def _num_leading(conversation: Conversation) -> int:
    leading = takewhile(lambda message: _role(message) in SYSTEM_ROLES, conversation.messages)
    return len(list(leading))


def _role(message: Mapping[str, Any]) -> Any:
    return message.get("role")


def _text_of(message: Mapping[str, Any], i: int) -> str:
    return read_content(message.get("content"), f"messages[{i}].content") or ""


def _with_more(message: Mapping[str, Any], text: str, i: int) -> Mapping[str, Any]:
    said = _text_of(message, i)
    return {**message, "content": f"{said}{_BETWEEN}{text}" if said else text}


def _mapped(
    conversation: Conversation, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Conversation:
    """The conversation with each message changed; itself where none was."""
    messages = [change(message) for message in conversation.messages]
    if all(new is old for new, old in zip(messages, conversation.messages)):
        return conversation
    return replace(conversation, messages=messages)


# Tools


def _describe_tools(conversation: Conversation) -> Conversation:
    tools = conversation.tools or ()
    if all(map(_is_described, tools)) or conversation.trials.takes_bare_tools():
        return conversation
    return replace(
        conversation,
        tools=[
            tool
            if _is_described(tool)
            else {**tool, "function": {**tool["function"], "description": ""}}
            for tool in tools
        ],
    )


def _is_described(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return not isinstance(function, Mapping) or function.get("description") is not None


RULES = (
    Rule(
        "billing_header",
        "a line about billing in front of a coding agent's prompt is left out: it changes with"
        " every session, and no prompt would begin as another one",
        _drop_billing_header,
    ),
    Rule(
        "attachments",
        "images, sounds, videos and files become a short text that says what was there",
        _describe_attachments,
    ),
    Rule(
        "call_arguments",
        "arguments of a past tool call that are no JSON object are wrapped into one, where the"
        " template refuses them",
        _wrap_arguments,
    ),
    Rule(
        "tool_descriptions",
        "a tool without a description has an empty one, where the template refuses it",
        _describe_tools,
    ),
    Rule(
        "call_ids",
        "ids of calls become nine digits, by the position of the call, where the template refuses"
        " all but nine letters and digits",
        _shorten_ids,
    ),
    Rule(
        "developer",
        "developer messages become system messages, where the template does not write them",
        _rename_developer,
    ),
    Rule(
        "leading_system",
        "several system messages at the start are joined, where the template does not write all",
        _join_leading,
    ),
    Rule(
        "later_system",
        "a system message that the template does not write where it stands becomes a marked part"
        " of the user's turn there",
        _move_into_turn,
    ),
)
RULE_NAMES = tuple(rule.name for rule in RULES)
