"""Replies that a test writes, from a model that computes as always: its choice of each token is
overruled, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from keepwarm.engine.engine import Engine, OnEvent, Ticket
from keepwarm.engine.request import Request
from keepwarm.prompt.boundaries import Prompt

_CERTAIN = 1e9  # a logit above all others

Write = Callable[[Prompt], str | None]


@dataclass(frozen=True)
class Forced:
    """The tokens of one reply, whatever the logits say. A processor of logits."""

    tokens: list[int]
    prompt_len: int

    def __call__(self, history: mx.array, logits: mx.array) -> mx.array:
        at = history.size - self.prompt_len
        if at >= len(self.tokens):
            return logits
        return mx.where(mx.arange(logits.shape[-1]) == self.tokens[at], _CERTAIN, logits)


class Begun(str):
    """How a reply begins; the rest is the model's."""

    __slots__ = ()


def follow(engine: Engine, write: Write) -> None:
    """From now on `engine` replies what `write` gives for a prompt; None leaves a reply to the
    model."""
    submit = engine.submit

    def scripted(request: Request, on_event: OnEvent) -> Ticket:
        tokenizer: Any = engine.tokenizer
        text = write(request.prompt)
        if text is None:
            return submit(request, on_event)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if not isinstance(text, Begun) and tokens[-1] not in tokenizer.eos_token_ids:
            tokens.append(min(tokenizer.eos_token_ids))
        forced = Forced(tokens, len(request.prompt))
        sampling = replace(request.sampling, processors=(forced,))
        return submit(replace(request, sampling=sampling), on_event)

    engine.submit = scripted  # type: ignore[method-assign]
