"""Decode for one sequence. Runs on the thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from keepwarm.cache.live import Live
from keepwarm.engine.batch import Group, Row, Token
from keepwarm.engine.sampling import Draw


def decode(
    model: Any, live: Live, logits: mx.array, draw: Draw, *, num_top: int | None = None
) -> Iterator[Token]:
    """Tokens without end, the first one drawn from `logits` (1, vocab); with `num_top` their log
    probabilities too, and those of as many others.

    The model already reads a token while the caller looks at it, so that after a token was
    yielded `live` has seen it too: a reply and its end marker can be stored as they stand.
    """
    row = Row(live, draw, logits, num_top=num_top)
    del logits
    group = Group(model, row)
    while True:
        [outcome] = group.step()
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome
