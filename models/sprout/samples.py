"""Synthetic dialogues: `make_sample` makes one from a random generator, `is_right` judges a reply.
The same generator gives the same sample on any Python from 3.11 on. Any process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models.sprout.chat import Chat, Turn, estimated_len
from models.sprout.check import Accepts, holds, is_accepted
from models.sprout.kinds import KINDS, compose
from models.sprout.lexicon import TRAINING, Lexicon

Message = dict[str, Any]

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


def _distance(chat: Chat, turn: Turn, final: list[Message]) -> int | None:
    """About how many tokens lie between the needed fact and the reply."""
    if not turn.fact_text:
        return None
    texts = ["\n".join(chat.system), *(str(m.get("content")) for m in [*chat.messages, *final[:-1]])]
    distance = 0
    for text in reversed(texts):
        place = text.rfind(turn.fact_text)
        if place >= 0:
            return distance + estimated_len(text[place:])
        distance += estimated_len(text) + 5
    return None


def _accepts(chat: Chat, turn: Turn) -> Accepts:
    """Nothing that the conversation tells of something else may stand in the reply."""
    rejects = []
    for fact in chat.book.facts:
        for value in (fact.value, fact.subject):
            if value == "me" or value in rejects or not value:
                continue
            if not holds(turn.answer, value) and not holds(turn.user, value):
                rejects.append(value)
    return Accepts(turn.values, turn.any_of, tuple(rejects), turn.checks)


def make_sample(
    rng: Random, target_len: int, kind: str | None = None, lexicon: Lexicon = TRAINING
) -> Sample:
    """A conversation of at most about `target_len` tokens. Mutates `rng` only."""
    if kind is None:
        fitting = [(k, share) for k, (share, shortest) in KINDS.items() if shortest <= target_len]
        kind = rng.choices([k for k, _ in fitting], [share for _, share in fitting])[0]
    is_thinking = rng.random() < 0.7
    chat = Chat.empty(rng, lexicon, int(target_len * 0.95))
    turn = compose(chat, kind, 70 if is_thinking else 40)
    user = chat.user_text(turn.user)
    reply = {"role": "assistant", "content": turn.answer}
    if is_thinking:
        reply["reasoning_content"] = turn.thought
    final = [{"role": "user", "content": user}, reply]
    messages = [*chat.system_message(), *chat.messages, *final]
    return Sample(
        messages, chat.tools, is_thinking, kind, _accepts(chat, turn), _distance(chat, turn, final)
    )


def is_right(sample: Sample, reply_text: str, tool_calls: Sequence[Any] = ()) -> bool:
    """Whether a reply (its content, without the thought) is what the sample asks for."""
    return is_accepted(sample.accepts, reply_text, tool_calls)
