"""Decode for one sequence. Runs on the thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.cache.live import Live
from keepwarm.engine.sampling import Draw


def decode(model: Any, live: Live, logits: mx.array, draw: Draw) -> Iterator[int]:
    """Token ids without end, the first one drawn from `logits` (1, vocab).

    The model already reads a token while the caller looks at it, so that after a token was
    yielded `live` has seen it too: a reply and its end marker can be stored as they stand.
    """
    token = draw.draw(logits)
    del logits
    while True:
        upcoming = model(token[None], cache=live.caches)[:, -1, :]
        if not draw.is_guided:
            upcoming = draw.draw(upcoming)
        mx.async_eval(token, upcoming)  # type: ignore[no-untyped-call]
        value = int(np.array(token)[0])
        if draw.is_guided:
            # What may come next hangs on this one: drawn while the model still reads it.
            draw.accept(value)
            upcoming = draw.draw(upcoming)
        live.advance([value])
        yield value
        token = upcoming
