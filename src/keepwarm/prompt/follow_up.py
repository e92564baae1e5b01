"""What the next turn of a conversation will begin with, whatever is said in it: that can be read
before it comes. No mlx; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from keepwarm.errors import RenderError
from keepwarm.prompt.boundaries import BoundaryKind, Prompt, shared_len
from keepwarm.prompt.messages import Message, read_messages
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.template import Tokenizer

_MESSAGES = (BoundaryKind.MESSAGE, BoundaryKind.USER)

# Nothing in common, at neither end: what both renderings begin with is not made up.
_MADE_UP = (".", "Why is that so?")


def follow_up(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    reply_message: Mapping[str, Any],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    namespace: str = "",
) -> Prompt | None:
    """What every next turn begins with when `reply_message` has answered `messages`: the
    conversation as the template writes it once a question, or results after tool calls, follow
    (thoughts are often dropped then), up to the last message boundary before them.

    None where the template refuses, or no message of it ends at a boundary. Raises BadInput where
    `messages` are no conversation.
    """
    past = [*messages, reply_message]
    try:
        one, other = (
            render_chat(
                tokenizer,
                [*past, *_next_messages(reply_message, content)],
                tools=tools,
                template_kwargs=template_kwargs,
                namespace=namespace,
                is_made_up=True,
            )
            for content in _MADE_UP
        )
    except RenderError:
        return None
    shared = shared_len(one.tokens, other.tokens)
    kept = [boundary for boundary in one.boundaries if boundary.position <= shared]
    ends = [boundary.position for boundary in kept if boundary.kind in _MESSAGES]
    if not ends:
        return None
    return Prompt(
        one.tokens[: ends[-1]], (boundary for boundary in kept if boundary.position <= ends[-1])
    )


def as_sent_back(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], reply_message: Mapping[str, Any]
) -> Mapping[str, Any]:
    """`reply_message` as the client that sent `messages` will most likely send it back: without
    its thought where the replies since the last question, those of one tool loop, have none."""
    since = takewhile(lambda message: message["role"] != "user", reversed(read_messages(messages)))
    replies = [message for message in since if message["role"] == "assistant"]
    tag = getattr(tokenizer, "think_end", None)
    if not replies or any(_has_thought(reply, tag) for reply in replies):
        return reply_message
    return {key: value for key, value in reply_message.items() if key != "reasoning_content"}


def _has_thought(message: Message, tag: str | None) -> bool:
    return "reasoning_content" in message or bool(tag and tag in (message["content"] or ""))


def continues(read: Prompt, upcoming: Prompt) -> bool:
    """Whether `upcoming` begins with all the tokens that were `read`: then a state that cannot be
    cut is of use to it."""
    return shared_len(read.tokens, upcoming.tokens) == len(read)


def _next_messages(reply_message: Mapping[str, Any], content: str) -> list[Message]:
    """What may come next: results after tool calls, within which thoughts are often kept, and
    a question otherwise."""
    calls = reply_message.get("tool_calls") or ()
    if not calls:
        return [{"role": "user", "content": content}]
    return [
        {
            "role": "tool",
            "tool_call_id": call.get("id", ""),
            "name": call.get("function", {}).get("name", ""),
            "content": content,
        }
        for call in calls
    ]
