"""A trace through mlx-lm's own prompt cache, as its server fills it. No arrays.

Every entry holds all rows from the start and a snapshot; entries share nothing. The server stores
one at the end of the system prompt and one at the end of the last message. The number of entries
is not limited here, only their bytes: with the default of 10 it would do worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlx_lm.models.cache import LRUPromptCache

from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Request, Trace
from keepwarm.bench.trace.tally import Tally

_NO_LIMIT = 1 << 62
_MODEL = "model"


@dataclass(frozen=True, slots=True)
class Entry:
    """What mlx-lm asks of the caches it keeps."""

    nbytes: int

    def is_trimmable(self) -> bool:
        """A recurrent state cannot be cut."""
        return False


class PeerReplay:
    """mlx-lm's cache at one budget."""

    def __init__(self, trace: Trace, sizes: Sizes, budget_bytes: int) -> None:
        self._trace = trace
        self._sizes = sizes
        self.cache = LRUPromptCache(max_size=_NO_LIMIT, max_bytes=budget_bytes)
        self.tally = Tally(sizes, trace.block_len)

    def run(self, on_request: Callable[[], None]) -> Tally:
        for request in self._trace.requests:
            self._serve(request)
            self.tally.peak_bytes = max(self.tally.peak_bytes, self.cache.nbytes)
            on_request()
        return self.tally

    def _serve(self, request: Request) -> None:
        tokens = request.blocks.tolist()
        _, rest = self.cache.fetch_nearest_cache(_MODEL, [*tokens, 0])  # 0: the end, never stored
        cached_len = len(tokens) + 1 - len(rest)
        self.tally.add(request, cached_len)
        segments = {request.system_len: "system", len(tokens): "user"}
        for end, kind in segments.items():
            if cached_len < end:
                entry = Entry(self._nbytes(end))
                self.cache.insert_cache(_MODEL, tokens[:end], [entry], cache_type=kind)

    def _nbytes(self, num_blocks: int) -> int:
        num_tokens = num_blocks * self._trace.block_len
        return num_tokens * self._sizes.row_bytes + self._sizes.snapshot_bytes
