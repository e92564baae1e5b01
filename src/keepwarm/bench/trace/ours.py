"""A trace through keepwarm's own cache. Runs on the thread that owns the arrays.

A token of the replay is a block of the trace, and a byte of it stands for many: the caches are
real ones, of a hybrid so small that a row of a block has `_ROW_UNITS` bytes and a snapshot as many
in proportion. Match, restore, insert, placement, thinning, eviction and the ledger are those that
serve; only the model is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from keepwarm.bench.trace.marconi import is_marconi, marconi_named
from keepwarm.bench.trace.oracle import Oracle
from keepwarm.bench.trace.policies import ORACLE
from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Request, Trace
from keepwarm.bench.trace.tally import Tally
from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement, StopKind
from keepwarm.cache.policy import Policy, policy_named
from keepwarm.cache.store import PrefixCache
from keepwarm.errors import CacheFault
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

# An even number: half of them are keys. Large enough that rounding a snapshot does not matter.
_ROW_UNITS = 8
# Stands for what follows the last whole block, which is read but never stored.
_END = 0

OnRequest = Callable[[], None]


class BlockCost:
    """Prefill seconds of blocks, as the policy asks for them. What is observed changes nothing."""

    def __init__(self, sizes: Sizes, block_len: int) -> None:
        self._sizes = sizes
        self._block_len = block_len

    def observe(self, start: int, end: int, seconds: float) -> None:
        pass

    def prefill_s(self, start: int, end: int) -> float:
        return self._sizes.prefill_s(start * self._block_len, end * self._block_len)


class SmallHybrid:
    """Live caches whose bytes stand for those of a large model."""

    def __init__(self, sizes: Sizes, block_len: int, max_len: int) -> None:
        self.bytes_per_unit = sizes.row_bytes * block_len / _ROW_UNITS
        num_units = max(1, round(sizes.snapshot_bytes / self.bytes_per_unit))
        # One for all: what is stored is copied from it, and nobody looks at its values.
        self._rows = mx.zeros((1, 1, max_len, _ROW_UNITS // 2), dtype=mx.uint8)
        self._snapshot = mx.zeros((1, num_units), dtype=mx.uint8)
        mx.eval(self._rows, self._snapshot)

    def units(self, num_bytes: int) -> int:
        """The bytes here that stand for `num_bytes`."""
        return int(num_bytes / self.bytes_per_unit)

    def caches(self) -> list[Any]:
        """Empty ones."""
        return [KVCache(), ArraysCache(1)]

    def read(self, live: Live, prompt: Prompt, end: int) -> None:
        """As if a model had read the prompt up to `end`. Mutates the live caches."""
        rows, recurrent = live.caches
        rows.keys = rows.values = self._rows
        rows.offset = end
        recurrent[0] = self._snapshot
        live.advance(prompt.tokens[live.position : end])


class Replay:
    """One policy at one budget."""

    def __init__(self, trace: Trace, sizes: Sizes, budget_bytes: int, policy: str) -> None:
        """Raises BadInput for an unknown policy."""
        self._now = 0.0
        self._trace = trace
        self._model = SmallHybrid(sizes, trace.block_len, _longest(trace))
        cost = BlockCost(sizes, trace.block_len)
        self.cache = PrefixCache(
            self._model.caches,
            budget_bytes=self._model.units(budget_bytes),
            placement=_in_blocks(Placement(), trace.block_len),
            policy=self._policy(policy, cost),
            cost=cost,
            clock=lambda: self._now,
        )
        self.tally = Tally(sizes, trace.block_len)

    def _policy(self, name: str, cost: BlockCost) -> Policy:
        """Raises BadInput for an unknown name."""
        if name == ORACLE:  # a request is told to the tally before anything of it is stored
            return Oracle(cost, self._trace, lambda: self.tally.num_requests - 1)
        return marconi_named(name, cost) if is_marconi(name) else policy_named(name, cost)

    def run(self, on_request: OnRequest) -> Tally:
        """Raises CacheFault where the cache failed: figures of a broken replay are worth
        nothing."""
        for request, ends in self._trace.message_ends():
            self._now = request.time_s
            self._serve(request, ends)
            on_request()
        stats = self.cache.stats()
        faults = {name: n for name, n in stats.events.items() if name.startswith("fault")}
        if faults:
            raise CacheFault(f"the replay failed: {faults}")
        lost = (
            "evicted_leaves",
            "evicted_checkpoints",
            "refused_over_budget",
            "refused_worth_less",
        )
        self.tally.is_all_held = not any(stats.events.get(name) for name in lost)
        self.tally.peak_bytes = int(stats.peak_bytes * self._model.bytes_per_unit)
        return self.tally

    def _serve(self, request: Request, ends: list[int]) -> None:
        """Match, restore, read the rest along the stops and store each of them."""
        prompt = prompt_of(request, ends)
        match = self.cache.match(prompt)
        checkpoint = match.node.checkpoint if match.node is not None else None
        self.tally.add(request, match.cached_len, checkpoint.kind if checkpoint else "")
        with self.cache.pin(match) as pin:
            live = self.cache.restore(match)
            for stop in self.cache.stops(match, start=live.position):
                self._model.read(live, prompt, stop.position)
                if stop.kind is not StopKind.END:
                    self.cache.insert(prompt, live, kind=stop.kind, pin=pin)


def prompt_of(request: Request, ends: list[int]) -> Prompt:
    """The blocks as tokens, and one more for what follows them."""
    boundaries = [Boundary(end, BoundaryKind.MESSAGE) for end in ends if end != request.system_len]
    if request.system_len:
        boundaries.append(Boundary(request.system_len, BoundaryKind.SYSTEM))
    return Prompt([*request.blocks.tolist(), _END], boundaries)


def _in_blocks(placement: Placement, block_len: int) -> Placement:
    """The same settings, where a token is a block."""
    return Placement(
        min_span=max(1, placement.min_span // block_len),
        prefill_step=max(1, placement.prefill_step // block_len),
        keep_recent=placement.keep_recent,
        thinning=placement.thinning,
    )


def _longest(trace: Trace) -> int:
    return 1 + max((len(request.blocks) for request in trace.requests), default=0)
