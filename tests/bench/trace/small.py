"""Traces small enough to know by hand what can be found in a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Request, Trace

# A token a block, a byte a row, ten a snapshot, a second a token.
UNIT = Sizes("unit", 1, 10, token_flops=1.0, depth_flops=0.0, flops_per_s=1.0)
# The same for blocks of 512 tokens, in which a stop may lie at every block.
BLOCK_LEN = 512
BLOCKY = Sizes("blocky", 1, 10 * BLOCK_LEN, 1.0, 0.0, 1.0)


def request(ids: Sequence[int], time_s: float = 0.0, *, block_len: int = 1) -> Request:
    """A prompt of these blocks and one token more."""
    blocks = np.array(ids, dtype=np.int32)
    return Request(time_s, len(ids) * block_len + 1, blocks)


def trace(*prompts: Sequence[int], block_len: int = 1) -> Trace:
    """One prompt a second."""
    requests = [request(ids, float(i), block_len=block_len) for i, ids in enumerate(prompts)]
    return Trace("small", block_len, requests)
