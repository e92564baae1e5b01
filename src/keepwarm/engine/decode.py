"""Decode for one sequence. Runs on the thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.cache.live import Live

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


def decode(
    model: Any,
    live: Live,
    logits: mx.array,
    *,
    history: Sequence[int],
    sampler: Sampler,
    processors: Sequence[LogitsProcessor] = (),
) -> Iterator[int]:
    """Token ids without end, the first one drawn from `logits` (1, vocab).

    The model already reads a token while the caller looks at it, so that after a token was
    yielded `live` has seen it too: a reply and its end marker can be stored as they stand.
    `history` holds the prompt, for processors that look back.
    """
    seen = mx.array(list(history) if processors else [], dtype=mx.int32)

    def draw(logits: mx.array) -> mx.array:
        for processor in processors:
            logits = processor(seen, logits)
        return sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))  # (1,)

    token = draw(logits)
    del logits
    while True:
        if processors:
            seen = mx.concatenate([seen, token.astype(mx.int32)])
        upcoming = draw(model(token[None], cache=live.caches)[:, -1, :])
        mx.async_eval(token, upcoming)  # type: ignore[no-untyped-call]
        value = int(np.array(token)[0])
        live.advance([value])
        yield value
        token = upcoming
