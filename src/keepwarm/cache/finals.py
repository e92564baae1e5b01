"""What the model said at the end of the last prompts: who asks the same again need not read even
the last token. The thread that owns the arrays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import mlx.core as mx

from keepwarm.prompt.boundaries import Prompt

# Of a large vocabulary each takes half a megabyte.
MAX_FINALS = 16
_NUM_LAST = 16

Key = tuple[str, int, bytes]  # namespace, length, last tokens


@dataclass(frozen=True, slots=True)
class Final:
    """The logits (1, vocab) behind a prompt, with proof of the prompt."""

    digest: bytes
    logits: mx.array


class Finals:
    """Of those prompts that were asked last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Final] = OrderedDict()

    def get(self, namespace: str, prompt: Prompt) -> mx.array | None:
        """Mutates: it counts as used."""
        key = _key(namespace, prompt)
        found = self._known.get(key)
        # Few prompts get as far as being hashed.
        if found is None or found.digest != prompt.digest(len(prompt)):
            return None
        self._known.move_to_end(key)
        return found.logits

    def put(self, namespace: str, prompt: Prompt, logits: mx.array) -> None:
        """Mutates."""
        key = _key(namespace, prompt)
        self._known[key] = Final(prompt.digest(len(prompt)), logits)
        self._known.move_to_end(key)
        if len(self._known) > MAX_FINALS:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Mutates."""
        self._known.clear()


def _key(namespace: str, prompt: Prompt) -> Key:
    return namespace, len(prompt), prompt.tokens[-_NUM_LAST:].tobytes()
