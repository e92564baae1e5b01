"""Few large blocks instead of many small ones. No mlx; the thread that owns the tree.

Every stop of a prefill and every turn of a chat adds a block, and a restore makes one copy for each
block, layer and kind of rows: the rows of a long prompt lie in thousands of pieces. So an insert,
whose live caches hold all the rows of the path, stores the last blocks anew together with its own
where there are NUM_JOINED of about one size.

    2K 2K 2K 2K 2K 2K 2K + 2K   ▶   16K           16K 2K 2K + 2K   ▶   16K 2K 2K 2K
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from keepwarm.cache.tree import Block, Span

NUM_JOINED = 8
# What goes is cut off a block, and what stays is copied: no block is larger than that.
MAX_LEN = 1 << 15


def joinable(spans: Sequence[Span], lo: int, hi: int, max_len: int | None = None) -> list[Block]:
    """The blocks that end at `lo`, in order, to be stored anew with the rows `lo ... hi - 1`.

    `spans` are those of one group along one path, without gaps; `max_len` is what a block may
    have at most, by default MAX_LEN. Changes nothing.
    """
    max_len = MAX_LEN if max_len is None else min(max_len, MAX_LEN)
    chosen: list[Block] = []
    found: list[Block] = []
    start, size = lo, _size(hi - lo)
    for block in _backwards(spans, lo):
        if hi - block.lo > max_len or _size(block.hi - block.lo) > size:
            break
        found.append(block)
        start = block.lo
        if len(found) >= len(chosen) + NUM_JOINED - 1:
            # All of these and the new rows: one block, which may be the last of its size.
            chosen, size = list(found), max(size, _size(hi - start))
    return chosen[::-1]


def _backwards(spans: Sequence[Span], lo: int) -> Iterator[Block]:
    """The blocks before `lo`, the last one first, as far as nothing off the path uses them."""
    at = lo
    for block, users in groupby(reversed(spans), key=lambda span: span.block):
        is_all = block.num_spans == sum(1 for _ in users) and block.hi == at
        if not is_all:
            return
        yield block
        at = block.lo


def _size(num_rows: int) -> int:
    """Blocks of one size differ by less than NUM_JOINED times."""
    size = 0
    while num_rows >= NUM_JOINED:
        num_rows //= NUM_JOINED
        size += 1
    return size
