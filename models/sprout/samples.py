"""Synthetic dialogues: `make_sample` makes one from a random generator, `is_right` judges a reply.
The same generator gives the same sample on any Python from 3.11 on. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models.sprout.calls import Loop
from models.sprout.chat import Chat, estimated_len
from models.sprout.check import Accepts, call_as_data, is_accepted
from models.sprout.kinds import KINDS, compose
from models.sprout.lexicon import TRAINING, Lexicon

Message = dict[str, Any]

_FILL = 0.95  # of the wanted length, by estimate: few samples may be longer than wanted

__all__ = ["KINDS", "Sample", "is_right", "make_sample"]


@dataclass(frozen=True)
class Sample:
    """A conversation whose last message is the reply to be learned."""

    messages: list[Message]
    tools: list[Message] | None
    is_thinking: bool
    kind: str
    accepts: Accepts
    distance_tokens: int | None  # about how far back the needed fact begins


def _distance(messages: list[Message], fact_text: str) -> int | None:
    """About how many tokens lie between the needed fact and the reply."""
    if not fact_text:
        return None
    distance = 0
    for message in reversed(messages[:-1]):
        text = str(message["content"])
        place = text.rfind(fact_text)
        if place >= 0:
            return distance + estimated_len(text[place:])
        distance += estimated_len(text) + 5
    return None


def _accepts(chat: Chat, loop: Loop) -> Accepts:
    """Nothing that the conversation tells of something else may stand in the reply."""
    rejects: dict[str, None] = {}
    asked = str(loop.messages[0]["content"])
    allowed = f"{loop.answer}\n{asked[-300:]}".lower()
    for fact in chat.book.facts:
        for value in (fact.value, fact.subject):
            # Cheap first: most values are nowhere in the question or the answer.
            if value not in ("", "me") and value.lower() not in allowed:
                rejects[value] = None
    calls = tuple(call_as_data(name, arguments) for name, arguments in loop.calls)
    return Accepts(loop.values, loop.any_of, tuple(rejects), loop.checks, calls)


def make_sample(
    rng: Random, target_len: int, kind: str | None = None, lexicon: Lexicon = TRAINING
) -> Sample:
    """A conversation of at most about `target_len` tokens, or the shortest of its kind. Mutates
    `rng` only."""
    if kind is None:
        fitting = [(k, share) for k, (share, shortest) in KINDS.items() if shortest <= target_len]
        kind = rng.choices([k for k, _ in fitting], [share for _, share in fitting])[0]
    is_thinking = rng.random() < (0.7 if target_len >= 90 else 0.0)
    chat = Chat.empty(rng, lexicon, int(target_len * _FILL))
    loop = compose(chat, kind, _reserve(kind, is_thinking))
    if not is_thinking:
        for message in loop.messages:
            message.pop("reasoning_content", None)
    messages = [*chat.system_message(), *chat.messages, *loop.messages]
    distance = _distance(messages, loop.fact_text)
    return Sample(messages, chat.tools, is_thinking, kind, _accepts(chat, loop), distance)


def _reserve(kind: str, is_thinking: bool) -> int:
    """About how many tokens the last question and reply take."""
    most = {"tool": 100, "tool_result": 150, "rule": 85}.get(kind, 70)
    return most if is_thinking else most - 30


def is_right(sample: Sample, reply_text: str, tool_calls: Sequence[Any] = ()) -> bool:
    """Whether a reply (its content, without the thought) is what the sample asks for."""
    return is_accepted(sample.accepts, reply_text, tool_calls)
