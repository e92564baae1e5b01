"""Replies that are known beforehand, from models that compute as always.

A model with random weights would talk on for ever. Here all of it runs, then its choice of the next
token is overruled by a table: the token after each token. Along it a reply is a thought, then an
answer or a tool call, then the end.

    <think>\\n  w1  w2 ... .\\n  </think>  \\n\\n  answer ...  <|im_end|>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.bench.words import CALL, END, NUM_WORDS, THOUGHT_END, ids, word

_CERTAIN = 1e4  # a logit far above all others


@dataclass(frozen=True, slots=True)
class Script:
    """How long a reply is; the words of its thought and its answer are always the same."""

    thought_len: int = 40
    answer_len: int = 20
    is_call: bool = False
    is_endless: bool = False  # the answer begins again, until the server ends it

    @property
    def thought(self) -> str:
        return _sentence(0, self.thought_len - 1) + THOUGHT_END.strip()

    @property
    def content(self) -> str:
        return "" if self.is_call else _sentence(NUM_WORDS // 2, self.answer_len)

    @property
    def calls(self) -> str:
        """As the model writes it."""
        return f"<tool_call>{CALL}</tool_call>" if self.is_call else ""

    def reply(self, words: Any) -> list[int]:
        """The tokens of a reply, its end not included; of an endless one, once round."""
        rest = f"{self.content}{self.calls}"
        return ids(words, f"{self.thought}\n</think>\n\n{rest}")

    def table(self, words: Any, vocab_size: int) -> np.ndarray:
        """What follows each token: along a reply from the prompt's last one on, and the answer
        after anything else."""
        [line], [gap], [end] = ids(words, "\n"), ids(words, "\n\n"), ids(words, END)
        chain = [line, *self.reply(words), *([] if self.is_endless else [end])]
        assert len(set(chain)) == len(chain), "no token may come twice in a reply"
        follows = dict(pairwise(chain))
        return np.array([follows.get(i, follows[gap]) for i in range(vocab_size)], dtype=np.int32)


def _sentence(first: int, num_words: int) -> str:
    assert num_words <= NUM_WORDS // 2, f"a reply has at most {NUM_WORDS // 2} words"
    return " ".join(word(first + i) for i in range(num_words))


@dataclass
class Reads:
    """Tokens the model was given in calls of more than one for each sequence, padding included.
    One by one they are decoded; the last of a known prompt may be among those."""

    num_tokens: int = 0
    num_calls: int = 0


class Prompter:
    """Tells a model what to say, and counts what it reads. On the thread that owns the arrays."""

    def __init__(self, model: Any, words: Any, vocab_size: int) -> None:
        """Mutates the class of the model, not its weights."""
        self.reads = Reads()
        self._words = words
        self._vocab_size = vocab_size
        self._next = Script().table(words, vocab_size)
        model.__class__ = _scripted(type(model), self)

    def play(self, script: Script) -> None:
        """From the next call on. Any thread: nothing may be running."""
        self._next = script.table(self._words, self._vocab_size)

    def overrule(self, inputs: mx.array, logits: mx.array) -> mx.array:
        """The logits, with those of the tokens that are to come far above the rest."""
        table = mx.array(self._next)
        wanted = table[inputs[:, -logits.shape[1] :]][..., None]  # of the last one only, at times
        return mx.where(mx.arange(logits.shape[-1]) == wanted, _CERTAIN, logits)


def _scripted(plain: type, prompter: Prompter) -> type:
    class Scripted(plain):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            if inputs.shape[1] > 1:
                prompter.reads.num_tokens += inputs.size
                prompter.reads.num_calls += 1
            return prompter.overrule(inputs, super().__call__(inputs, *args, **kwargs))

    # Caches are told apart by the module of the model's class.
    Scripted.__module__ = plain.__module__
    return Scripted


def tool(name: str = "look") -> dict[str, Any]:
    """The tool that scripted replies call."""
    return function(name, "Looks at it.", ["at"])


def function(name: str, description: str, arguments: Sequence[str]) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
