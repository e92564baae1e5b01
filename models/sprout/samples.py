"""Synthetic dialogues: `make_sample` makes one from a random generator, `is_right` judges a reply.
The same generator gives the same sample on any Python from 3.11 on. Any process."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from models.sprout.calls import Loop
from models.sprout.chat import Chat, estimated_len
from models.sprout.check import Accepts, call_as_data, is_accepted
from models.sprout.common import COMMON
from models.sprout.kinds import KINDS, compose
from models.sprout.lexicon import TRAINING, Lexicon
from models.sprout.render import spans, text_of

Message = dict[str, Any]

# Lengths are estimated, short ones less well: what is aimed at so that none is much too long.
_FILL, _SLACK_LEN = 0.98, 6
_NUM_TRIES, _LONG_LEN = 4, 600  # short ones that came out too long are made again

_SPOKEN = frozenset(COMMON) | {"phone", "dog", "job", "room", "code", "book", "key", "table"}

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
    allowed = f"{loop.answer}\n{asked[:200]}\n{asked[-300:]}".lower()
    for fact in chat.book.facts:
        told = (fact.value,) if fact.relation.group in ("mine", "") else (fact.value, fact.subject)
        for value in told:
            # What sentences are made of may stand in any: a phone number is not "the phone".
            if value.lower() not in allowed and value.lower() not in _SPOKEN:
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
    for _ in range(_NUM_TRIES):
        chat = Chat.empty(rng, lexicon, int(target_len * _FILL) - _SLACK_LEN)
        loop = compose(chat, kind, is_thinking)
        if not is_thinking:
            for message in loop.messages:
                message.pop("reasoning_content", None)
        messages = [*chat.system_message(), *chat.messages, *loop.messages]
        if target_len >= _LONG_LEN or _estimated_len(messages, chat.tools) <= target_len:
            break
    distance = _distance(messages, loop.fact_text)
    return Sample(messages, chat.tools, is_thinking, kind, _accepts(chat, loop), distance)


def _estimated_len(messages: list[Message], tools: list[Message] | None) -> int:
    """About how many tokens the whole conversation has."""
    total = sum(estimated_len(json.dumps(tool["function"])) // 2 for tool in tools or ())
    for message in messages:
        for name in ("content", "reasoning_content"):
            total += estimated_len(message.get(name) or "")
        calls = message.get("tool_calls", ())
        total += 6 + sum(4 + estimated_len(json.dumps(call["function"])) for call in calls)
    return total


def is_right(sample: Sample, reply_text: str, tool_calls: Sequence[Any] = ()) -> bool:
    """Whether a reply (its content, without the thought) is what the sample asks for."""
    return is_accepted(sample.accepts, reply_text, tool_calls)


def _show(kind: str | None, length: int, num_samples: int, seed: int) -> None:
    """Prints samples for people."""
    for index in range(num_samples):
        sample = make_sample(Random(f"show-{seed}-{index}"), length, kind)
        text = text_of(spans(sample.messages, sample.tools, sample.is_thinking))
        sys.stdout.write(f"──── {sample.kind}\n{text}\n{sample.accepts}\n\n")


def _speed(num_samples: int = 40) -> None:
    """Tokens of made and encoded samples per second of one core."""
    from models.sprout.encode import encode
    from models.sprout.tokenizer import load

    tokenizer = load()
    for length in (128, 512, 2048):
        begun, num_tokens, num_targets = time.process_time(), 0, 0
        for index in range(num_samples):
            ids, is_target = encode(make_sample(Random(f"speed-{index}"), length), tokenizer)
            num_tokens += len(ids)
            num_targets += int(is_target.sum())
        rate = num_tokens / (time.process_time() - begun)
        sys.stdout.write(
            f"length {length:5}: {rate:9,.0f} tokens/s, {num_tokens / num_samples:6.0f} tokens and "
            f"{num_targets / num_samples:5.0f} targets a sample\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Shows samples, or how fast they are made.")
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.speed:
        _speed()
    else:
        _show(args.kind, args.length, args.show, args.seed)


if __name__ == "__main__":
    main()
