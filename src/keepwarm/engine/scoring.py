"""How likely the model finds the tokens of a prompt. Engine thread."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.cache.placement import Stop, StopKind
from keepwarm.cache.scored import Scored
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.events import TokenScore
from keepwarm.prompt.boundaries import Prompt, Tokens

# Logits of a piece, in float32: what may be computed at once, besides the model's own.
_PIECE_BYTES = 64 << 20
_FIRST_PIECE_LEN = 16  # until the size of the vocabulary is known


class Scores:
    """Those of one prompt, as it is read; they stay when it is read a second time."""

    def __init__(
        self, cache: PrefixCache, prompt: Prompt, namespace: str, start: int, num_top: int
    ):
        """`start` is the first token whose score is wanted. What is known of it is taken over."""
        self._prompt = prompt
        self._cache = cache
        self._namespace = namespace
        self._start = max(1, start)  # nothing tells how likely the first one is
        self._num_top = num_top
        self._scores: list[Scored] = cache.scored.get(
            namespace, prompt.tokens, self._start, num_top
        )
        self.piece_len = _FIRST_PIECE_LEN

    @property
    def at(self) -> int:
        """The next token to be scored."""
        return self._start + len(self._scores)

    @property
    def is_done(self) -> bool:
        return self.at >= len(self._prompt)

    def take(self, start: int, logits: mx.array) -> None:
        """What the model said behind the tokens from `start` on: logits (T, vocab). Waits for
        them. Mutates."""
        first, last = self.at, min(start + len(logits), len(self._prompt) - 1)
        if first > last:
            return
        wanted = self._prompt.tokens[first : last + 1]
        found = _scored(logits[first - 1 - start : last - start], wanted, self._num_top)
        self._scores += found
        self.piece_len = max(_FIRST_PIECE_LEN, _PIECE_BYTES // (4 * logits.shape[-1]))
        if self.is_done:
            self._cache.scored.put(
                self._namespace, self._prompt.tokens, self._start, self._num_top, self._scores
            )

    def told(self) -> tuple[TokenScore, ...]:
        """Every token from the start on; the very first of a prompt has no score."""
        scored = [
            TokenScore(int(token), *score)
            for token, score in zip(self._prompt.tokens[self._start :], self._scores)
        ]
        return tuple(scored)


def _scored(logits: mx.array, tokens: Tokens, num_top: int) -> list[Scored]:
    """Of each token by the logits (T, vocab) before it."""
    values = logits.astype(mx.float32)
    values = values - mx.logsumexp(values, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(values, mx.array(tokens)[:, None], axis=-1)[:, 0]
    likeliest = mx.argmax(values, axis=-1)
    count = min(num_top, values.shape[-1])
    ids = mx.zeros((len(tokens), 0), dtype=mx.uint32)
    if count:
        ids = mx.argpartition(-values, kth=count - 1, axis=-1)[:, :count]
    tops = mx.take_along_axis(values, ids, axis=-1)
    mx.eval(chosen, likeliest, ids, tops)
    rows = zip(*(np.array(x).tolist() for x in (chosen, likeliest, ids, tops)))
    return [
        (float(score), best == token, tuple(sorted(zip(row, their), key=lambda p: -p[1])))
        for token, (score, best, row, their) in zip(tokens.tolist(), rows)
    ]


class Scoring(Prefill):
    """Reads a prompt from the longest stored beginning before the first wanted token, and looks
    at all that the model says from there on, in pieces whose logits take little memory."""

    def __init__(
        self, model: Any, cache: PrefixCache, prompt: Prompt, scores: Scores, *, namespace: str
    ) -> None:
        self._scores = scores
        match = cache.match(prompt, namespace=namespace, limit=scores.at - 1)
        super().__init__(model, cache, prompt, namespace=namespace, match=match)
        if cache.layout is not None and cache.layout.has_costly_checkpoints:
            self.stop_at(scores.at - 1)  # others may go on in another way from here

    def advance(self, max_tokens: int | None = None) -> None:
        start = self.live.position
        stop = next(stop.position for stop in self._stops if not stop.is_passed)
        if stop < self._scores.at:
            super().advance(max_tokens)
        else:
            piece_len = min(self._scores.piece_len, max_tokens or self._scores.piece_len)
            self._read(min(stop, start + piece_len))

    def keep(self) -> None:
        """Nothing: nobody goes on from the end of what was only scored."""

    @property
    def _can_cut(self) -> bool:
        layout = self._cache.layout
        return layout is not None and layout.can_cut

    def _plan(self) -> list[Stop]:
        """A snapshot just before the last token would be of use to nobody."""
        stops = super()._plan()
        return stops if self._can_cut else [s for s in stops if s.kind is not StopKind.TAIL]

    def _last_logits(self, tokens: Tokens) -> mx.array:
        start = self.live.position
        if start + len(tokens) < self._scores.at:
            return super()._last_logits(tokens)
        logits: mx.array = self._model(
            mx.array(tokens)[None], cache=self.live.caches
        )  # (1, T, vocab)
        self._scores.take(start, logits[0])
        return logits[:, -1, :]
