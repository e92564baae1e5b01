"""What no cache of that size could pass, even one that knows the future. Plain numbers.

A request that is served from `d` blocks needs their rows, each held since it was last read, and a
snapshot at `d`, held since a request last went through there.

    blocks   1   2   3   4   5          of request 9
    seen at  8   8   8   5   5          by the request before that had this very prefix
    choices  ........3.......5          none, 3 blocks or 5: where the wait is the same, all or none

Put a price on memory between any two requests. Whoever serves all requests within the budget gains
no more than the prices of the whole budget, plus what each request gains at best beyond the price
of what it holds. That is so for any prices (they are Lagrange multipliers); the prices are moved
until that sum is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NUM_ROUNDS = 600


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that can be saved."""

    cached_tokens: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Choices:
    """All choices of all requests that have one, request by request, from few blocks to many."""

    now: Ints  # which request could be served
    seen: Ints  # since which request its last blocks and the snapshot have to be held
    num_blocks: Ints
    run_len: Ints  # how many of these blocks were seen then
    first: Ints  # the index of the first choice of each request
    tokens: Floats
    seconds: Floats


class Bounds:
    """The bounds of one trace, for any budget."""

    def __init__(self, trace: Trace, sizes: Sizes) -> None:
        self._num_requests = len(trace.requests)
        self._sizes = sizes
        self._block_len = trace.block_len
        self._block_bytes = sizes.row_bytes * trace.block_len
        self._snapshot_bytes = sizes.snapshot_bytes
        self._choices = choices_of(trace, sizes)

    def at(self, budget_bytes: int) -> Bound:
        choices = self._choices
        if not len(choices.now):
            return Bound(0.0, 0.0)
        most_blocks = (budget_bytes - self._snapshot_bytes) // self._block_bytes
        clipped, seconds = self._clipped(int(max(0, most_blocks)))
        return Bound(
            self._bound(clipped, clipped.tokens, budget_bytes),
            self._bound(clipped, seconds, budget_bytes),
        )

    def most(self) -> Bound:
        """With room for all."""
        if not len(self._choices.now):
            return Bound(0.0, 0.0)
        tokens, seconds = (
            float(np.maximum.reduceat(gains, self._choices.first).sum())
            for gains in (self._choices.tokens, self._choices.seconds)
        )
        return Bound(tokens, seconds)

    def _clipped(self, most_blocks: int) -> tuple[Choices, Floats]:
        """The choices where no request holds more than that: of a run that is too long, as much
        as fits. Tokens deeper down take longer, so less than that is never better."""
        c = self._choices
        before = c.num_blocks - c.run_len
        num_blocks = np.minimum(c.num_blocks, most_blocks)
        is_left = num_blocks > before
        is_cut = num_blocks < c.num_blocks
        tokens = np.where(is_cut, num_blocks * float(self._block_len), c.tokens)
        cut_s = np.array([self._sizes.prefill_s(0, int(n)) for n in tokens[is_cut]])
        seconds = c.seconds.copy()
        seconds[is_cut] = cut_s
        clipped = replace(
            c,
            num_blocks=np.where(is_left, num_blocks, c.num_blocks),
            run_len=np.where(is_left, num_blocks - before, c.run_len),
            tokens=np.where(is_left, tokens, 0.0),
        )
        return clipped, np.where(is_left, seconds, 0.0)

    def _bound(self, choices: Choices, gains: Floats, budget_bytes: int) -> float:
        """The least sum that any of the prices tried gives."""
        # The price of the whole budget between requests i and i + 1.
        prices = np.full(self._num_requests, gains.sum() * 0.01 / self._num_requests)
        most = float(np.maximum.reduceat(gains, choices.first).sum())  # at no price
        floor = most * 1e-9 / self._num_requests
        for number in range(_NUM_ROUNDS):
            value, load = self._answer(choices, gains, prices, budget_bytes)
            most = min(most, value)
            pace = 0.5 / (1 + number / 10)
            prices *= np.exp(pace * np.clip(load / budget_bytes - 1, -1, 3))
            prices = np.maximum(prices, floor)
        return most

    def _answer(
        self, c: Choices, gains: Floats, prices: Floats, budget_bytes: int
    ) -> tuple[float, Floats]:
        """The sum at these prices, and the bytes held after each request if all choose by them."""
        until = np.concatenate([[0.0], np.cumsum(prices)]) / budget_bytes
        waited = until[c.now] - until[c.seen]  # what a byte costs
        rows = _sums(self._block_bytes * c.run_len * waited, c.first)
        net = gains - rows - self._snapshot_bytes * waited
        best = np.maximum.reduceat(net, c.first)
        value = float(prices.sum() + np.maximum(best, 0).sum())
        return value, self._load(c, net, best)

    def _load(self, c: Choices, net: Floats, best: Floats) -> Floats:
        num_choices = np.diff(c.first, append=len(c.now))
        of_request = np.repeat(np.arange(len(c.first)), num_choices)
        is_chosen = (net == best[of_request]) & (net > 0)
        # All runs up to the chosen one are held, and the snapshot at its end.
        chosen_len = np.zeros(len(c.first), dtype=np.int64)
        np.maximum.at(chosen_len, of_request[is_chosen], c.num_blocks[is_chosen])
        is_held = c.num_blocks <= chosen_len[of_request]
        is_last = c.num_blocks == chosen_len[of_request]
        held = self._block_bytes * c.run_len * is_held + self._snapshot_bytes * is_last
        change = np.zeros(self._num_requests + 1)
        np.add.at(change, c.seen, held)
        np.add.at(change, c.now, -held)
        return np.cumsum(change)[: self._num_requests]


def choices_of(trace: Trace, sizes: Sizes) -> Choices:
    last_seen = np.full(trace.num_ids, -1, dtype=np.int64)
    found: list[tuple[int, int, int, int, float, float]] = []
    first: list[int] = []
    for now, request in enumerate(trace.requests):
        seen = last_seen[request.blocks]
        # A prefix was seen at least as recently as what goes on from it.
        seen = seen[: int(np.count_nonzero(seen >= 0))]
        last_seen[request.blocks] = now
        if not len(seen):
            continue
        first.append(len(found))
        ends = np.flatnonzero(np.diff(seen, append=-1)) + 1
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            tokens = min(int(end) * trace.block_len, request.num_tokens - 1)
            seconds = sizes.prefill_s(0, tokens)
            found.append((now, int(seen[end - 1]), int(end), int(end - start), tokens, seconds))
    table = np.array(found, dtype=np.float64).reshape(-1, 6)
    now_, seen_, num_blocks, run_len = (column.astype(np.int64) for column in table[:, :4].T)
    starts = np.array(first, dtype=np.int64)
    return Choices(now_, seen_, num_blocks, run_len, starts, table[:, 4], table[:, 5])


def _sums(values: Floats, first: Ints) -> Floats:
    """Running sums that begin anew at each index of `first`."""
    total = np.cumsum(values)
    before = np.concatenate([[0.0], total])[first]
    running: Floats = total - np.repeat(before, np.diff(first, append=len(values)))
    return running
