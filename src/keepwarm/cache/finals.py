"""What the model said at the end of the last prompts: who asks the same again need not read even
the last token. The thread that owns the arrays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import mlx.core as mx

from keepwarm.cache.ends import End
from keepwarm.cache.explain import Match, Reason
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.space import Space
from keepwarm.prompt.boundaries import Prompt

# Of a large vocabulary each takes half a megabyte.
MAX_FINALS = 16
_NUM_LAST = 16

Key = tuple[str, int, bytes]  # namespace, length, last tokens


@dataclass(frozen=True, slots=True)
class Final:
    """The logits (1, vocab) behind a prompt, with proof of the prompt; and the state there, where
    it was kept."""

    digest: bytes
    logits: mx.array
    end: End | None = None

    def added_to(self, found: Match, space: Space, keys: bytes) -> Match:
        """What was found in the tree of a prompt with these keys, and this beyond it, where that
        goes on from there."""
        end, position = self.end, len(found.prompt)
        if found.cached_len == position:
            return replace(found, final=self)
        if end is None or found.parted_at < end.anchor:
            return found
        path = space.tree.walk(keys).until(end.anchor)
        if not end.can_follow(space.layout, path):
            return found
        whole = replace(found, cached_len=position, parted_at=position, reason=Reason.EXACT)
        return replace(whole, node=path[-1], final=self, end=end)


class Finals:
    """Of those prompts that were asked last; the state at the end of the very last one only. Its
    bytes are in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: OrderedDict[Key, Final] = OrderedDict()
        self._with_end: Key | None = None

    @property
    def end(self) -> End | None:
        """The state that is held."""
        return self._known[self._with_end].end if self._with_end is not None else None

    @property
    def held_bytes(self) -> int:
        return self.end.nbytes if self.end is not None else 0

    def get(self, namespace: str, prompt: Prompt) -> Final | None:
        """Changes nothing."""
        found = self._known.get(_key(namespace, prompt))
        # Few prompts get as far as being hashed.
        is_it = found is not None and found.digest == prompt.digest(len(prompt))
        return found if is_it else None

    def use(self, namespace: str, prompt: Prompt) -> None:
        """It is among the last once more. Mutates."""
        self._known.move_to_end(_key(namespace, prompt))

    def put(self, namespace: str, prompt: Prompt, logits: mx.array) -> None:
        """Mutates."""
        key = _key(namespace, prompt)
        if key == self._with_end:
            self.let_go()
        self._known[key] = Final(prompt.digest(len(prompt)), logits)
        self._known.move_to_end(key)
        if len(self._known) > MAX_FINALS:
            oldest = next(iter(self._known))
            if oldest == self._with_end:
                self.let_go()
            del self._known[oldest]

    def put_end(self, namespace: str, prompt: Prompt, end: End) -> None:
        """The state behind a prompt whose logits are known, in place of the one that was held;
        there must be room for it. Mutates."""
        self.let_go()
        self._ledger.add(rows_bytes=end.rows_bytes, snapshot_bytes=end.checkpoint.nbytes)
        key = _key(namespace, prompt)
        self._known[key] = replace(self._known[key], end=end)
        self._with_end = key

    def let_go(self) -> None:
        """Of the state that is held. Mutates."""
        if self._with_end is not None and self.end is not None:
            end = self.end
            self._ledger.remove(rows_bytes=end.rows_bytes, snapshot_bytes=end.checkpoint.nbytes)
            self._known[self._with_end] = replace(self._known[self._with_end], end=None)
        self._with_end = None

    def clear(self) -> None:
        """Mutates."""
        self.let_go()
        self._known.clear()


def _key(namespace: str, prompt: Prompt) -> Key:
    return namespace, len(prompt), prompt.tokens[-_NUM_LAST:].tobytes()
