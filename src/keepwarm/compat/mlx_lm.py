"""mlx-lm's `LRUPromptCache` over keepwarm's store: replace one import and keep the rest.

    from keepwarm.compat.mlx_lm import LRUPromptCache

The thread that uses a cache owns its arrays; it may be another one than made it. What differs
from mlx-lm's own class, and why, is in docs/mlx-lm.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from keepwarm.cache.budget import default_budget_bytes
from keepwarm.cache.explain import Match, Refusal
from keepwarm.cache.live import Live
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import StopKind
from keepwarm.cache.policy import LeastRecentlyUsed, MeasuredCost, TypePriority, Worth
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tips import Share
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Prompt, Tokens
from keepwarm.state.nested import flattened, shape_of
from keepwarm.state.registry import settings_of

log = logging.getLogger("keepwarm.compat")

# The types of mlx-lm, the one that is evicted first in front.
_KINDS = {"assistant": StopKind.REPLY, "user": StopKind.TAIL, "system": StopKind.SYSTEM}

# Room for a reply behind the prompt, in tokens: one step of mlx-lm's own buffers.
_REPLY_ROOM = 256


class LRUPromptCache:
    """A prefix cache with mlx-lm's interface. Rows are stored once, however many share them.

    A *sequence* here is a stored one that no other stored sequence begins with: `len()`,
    `max_size` and `trim_to(n_sequences=)` count these, and the checkpoints on the way to one
    belong to it. `max_bytes` is a budget that is never passed; more than keepwarm's own share
    of the device's memory is not taken either.
    """

    def __init__(self, max_size: int = 10, max_bytes: int = 1 << 63) -> None:
        """Raises BadInput for negative `max_bytes`."""
        if max_bytes < 0:
            raise BadInput(f"max_bytes cannot be negative, got {max_bytes}")
        self.max_size = max_size
        self._max_bytes = max_bytes
        self._tokens = TokenReader()
        # By model, and by the kinds of its layers: mlx-lm quantizes caches as they grow.
        self._namespaces: dict[Hashable, dict[Hashable, str]] = {}
        self._order = TypePriority(within=LeastRecentlyUsed())
        self.refused: Counter[str] = Counter()  # why inserts stored nothing

    @cached_property
    def store(self) -> PrefixCache:
        """The store behind it, with its `stats()` and `check()`.

        Made when first used: by then the weights are loaded, and the budget can tell how much
        memory they leave. Who inserts here expects to find it: nothing that fits is refused.
        """
        cost = MeasuredCost()
        return PrefixCache(
            None,
            budget_bytes=min(self._max_bytes, default_budget_bytes()),
            policy=Worth(cost, refuses=False),
            cost=cost,
        )

    @property
    def max_bytes(self) -> int:
        """What the caller allowed; `store.ledger.budget_bytes` is what is kept to."""
        return self._max_bytes

    def __len__(self) -> int:
        return sum(share.num_tips for share in self.store.shares().values())

    @property
    def nbytes(self) -> int:
        """The bytes really held. Every row counts once."""
        return self.store.ledger.held_bytes

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Sequence[Any]
    ) -> tuple[list[Any] | None, Sequence[Any]]:
        """Live caches for the longest stored beginning of `tokens`, and the tokens left to read.

        At least one token is always left: the model must read something to say what comes
        next. With nothing to reuse that is `(None, tokens)`. The caches are the caller's own.
        """
        match = self._match(model, tokens)
        if match is None or not match.cached_len:
            return None, tokens
        live = self.store.restore(match, reserve=len(tokens) - match.cached_len + _REPLY_ROOM)
        if not live.position:
            return None, tokens
        return live.caches, tokens[live.position :]

    def _match(self, model: Hashable, tokens: Sequence[Any]) -> Match | None:
        prompt = self._tokens.read(tokens)
        if prompt is None:
            return None
        namespaces = list(self._namespaces.get(model, {}).values()) or [""]
        matches = [self.store.match(prompt, namespace=name) for name in namespaces]
        return max(matches, key=lambda match: match.cached_len)

    def insert_cache(
        self,
        model: Hashable,
        tokens: Sequence[Any],
        prompt_cache: list[Any],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Store a copy of `prompt_cache`, which has read `tokens` and nothing else.

        The new sequence stays, others go when there are more than `max_size`. What cannot be
        stored is refused: counted in `refused` and logged, never raised. Raises BadInput for a
        type that mlx-lm does not have.
        """
        if cache_type not in _KINDS:
            raise BadInput(f"cache_type is one of {', '.join(_KINDS)}, not {cache_type!r}")
        if self.max_size <= 0:
            return
        if self._tokens.is_full:
            self.store.clear()
            self._tokens = TokenReader()
        prompt = self._tokens.learn(tokens)
        if prompt is None:
            self._refuse("tokens", "no tokens, or some that cannot be told apart")
            return
        live = Live.at(prompt_cache, prompt, len(prompt), cuts=[])
        namespace = self._namespace(model, prompt_cache)
        with Pin() as pin:
            done = self.store.insert(
                prompt, live, kind=_KINDS[cache_type], namespace=namespace, pin=pin
            )
            if done.refusal is not None:
                self._refuse(done.refusal, f"{len(prompt)} tokens: {done.detail}")
                return
            self.store.evict_tips(self.max_size, self._order)

    def _namespace(self, model: Hashable, caches: Sequence[Any]) -> str:
        layout = (shape_of(caches), tuple(settings_of(leaf) for leaf in flattened(caches)))
        known = self._namespaces.setdefault(model, {})
        if layout not in known:
            known[layout] = str(sum(map(len, self._namespaces.values())))
        return known[layout]

    def _refuse(self, reason: str, detail: str) -> None:
        self.refused[reason] += 1
        if reason == Refusal.MISMATCH and self.refused[reason] == 1:
            log.warning(
                "not cached: %s. The key must be the tokens that the caches have read; the last"
                " token of a reply was drawn, but not read by the model. Further ones are counted"
                " in `refused`",
                detail,
            )
            return
        log.info("not cached (%s): %s", reason, detail)

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Evict until no more than that is left; a negative number means nothing."""
        if n_sequences is not None:
            self.store.evict_tips(max(0, n_sequences), self._order)
        if n_bytes is not None:
            self.store.evict_to(max(0, n_bytes))

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """For each type its sequences and bytes, which add up to `len()` and `nbytes`.

        What sequences of several types share counts for the type that is evicted last.
        """
        found = {name: Share() for name in _KINDS}
        names = {kind: name for name, kind in _KINDS.items()}
        for kind, share in self.store.shares(list(_KINDS.values())[::-1]).items():
            name = names.get(kind, "assistant")  # what is left where a reply was cut off
            found[name] = found[name] + share
        return {
            name: {"n_sequences": share.num_tips, "n_bytes": share.nbytes}
            for name, share in found.items()
        }


class TokenReader:
    """Reads mlx-lm's tokens, which may hold more than ids: to it an image is a large negative
    number. Whatever is not an id gets one, from a range that no vocabulary reaches."""

    _FIRST = 1 << 30
    _UNKNOWN = (1 << 31) - 1  # equal to nothing that was ever stored
    _MOST = 1 << 16

    def __init__(self) -> None:
        self._names: dict[Hashable, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether the names take so much room that it is time for a new reader."""
        return len(self._names) >= self._MOST

    def learn(self, tokens: Sequence[Any]) -> Prompt | None:
        """The prompt to store these tokens under; None when they cannot be told apart or there
        are none. Mutates: what is not an id is known from now on."""
        ids = _as_ids(tokens, self._FIRST)
        try:
            for token in tokens if ids is None else ():
                if not self._is_id(token):
                    self._names.setdefault(token, self._FIRST + len(self._names))
        except TypeError:  # it cannot be hashed
            return None
        return self._prompt(tokens, ids)

    def read(self, tokens: Sequence[Any]) -> Prompt | None:
        """The prompt to look for; None when the tokens cannot be told apart or there are none."""
        return self._prompt(tokens, _as_ids(tokens, self._FIRST))

    def _prompt(self, tokens: Sequence[Any], ids: Tokens | None) -> Prompt | None:
        if not len(tokens):
            return None
        try:
            return Prompt(ids if ids is not None else [self._id(token) for token in tokens])
        except TypeError:
            return None

    def _id(self, token: Any) -> int:
        return int(token) if self._is_id(token) else self._names.get(token, self._UNKNOWN)

    def _is_id(self, token: Any) -> bool:
        return isinstance(token, int | np.integer) and bool(0 <= token < self._FIRST)


def _as_ids(tokens: Sequence[Any], end: int) -> Tokens | None:
    """The tokens at once, when they are all ids below `end`."""
    try:
        ids = np.asarray(tokens)
    except ValueError:  # items of several lengths
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        return None
    return ids.astype(np.int32) if ids.min() >= 0 and ids.max() < end else None
