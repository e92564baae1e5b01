"""What a request must fit: the vocabulary, the model's context and the memory. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from keepwarm.engine.request import EngineSettings, Request
from keepwarm.engine.room import Room
from keepwarm.errors import BadInput, TooLarge, TooLong

# What the configs of different families call the length of the context.
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_positions",
    "n_ctx",
)


@dataclass(frozen=True)
class Limits:
    """Set once, when the model is loaded."""

    vocab_size: int = 0
    context_len: int | None = None
    memory_bytes: int = 0
    room: Room | None = None

    @classmethod
    def of(cls, model: Any, vocab_size: int, room: Room, settings: EngineSettings) -> Limits:
        context_len = settings.context_len or context_len_of(model)
        return cls(vocab_size, context_len, room.memory_bytes, room)

    def fitted(self, request: Request) -> Request:
        """The request, its reply no longer than the context allows. Raises BadInput."""
        prompt_len, largest = len(request.prompt), int(request.prompt.tokens.max())
        if largest >= self.vocab_size:
            raise BadInput(
                f"token {largest} is not in the model's vocabulary of {self.vocab_size} tokens"
            )
        if self.context_len is not None and prompt_len >= self.context_len:
            raise TooLong(
                f"the prompt has {prompt_len} tokens; the model's context has {self.context_len},"
                " the reply included: shorten the prompt",
                prompt_len=prompt_len,
                context_len=self.context_len,
            )
        needed = self.room.needed_bytes(prompt_len) if self.room is not None else 0
        if needed > self.memory_bytes:
            raise TooLarge(
                f"a prompt of {prompt_len} tokens needs {needed / 1e9:.2f} GB; the cache and all"
                f" running requests have {self.memory_bytes / 1e9:.2f} GB together: shorten the"
                " prompt, or raise --memory-bytes"
            )
        if self.context_len is None:
            return request
        return replace(request, max_tokens=min(request.max_tokens, self.context_len - prompt_len))

    def retry_after_s(self, num_waiting: int) -> float:
        """A guess: when some of those who wait will have been served."""
        return max(1.0, min(60.0, num_waiting / 16))


def context_len_of(model: Any) -> int | None:
    """What the model's config says, its text part first; None where it says nothing."""
    args = getattr(model, "args", None)
    inner = getattr(args, "text_config", None)
    for config in (inner, args):
        found = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        for key in _CONTEXT_KEYS:
            value = found.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
