"""Decode: one step of the model for all sequences that run together. Engine thread.

A sequence that runs alone keeps its own caches. When another joins, both move into mlx-lm's
batch caches; when only one is left, it gets its own back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.cache.live import Live
from keepwarm.engine import merging
from keepwarm.engine.sampling import Draw, draw_together, logprobs

log = logging.getLogger("keepwarm.engine")


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was generated; `logprob` and `top` where they were asked for."""

    value: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Row:
    """One sequence in decode. When it joins, its first token is drawn, and not yet read by the
    model."""

    def __init__(
        self,
        live: Live,
        draw: Draw,
        logits: mx.array,
        *,
        num_top: int | None = None,
        replay: Sequence[int] = (),
        num_known: int = 0,
    ) -> None:
        """Draws the first token from `logits` (1, vocab), or takes it from `replay`: the tokens
        that `draw` drew before the sequence was preempted, the first `num_known` of which were
        read before, too."""
        self.live = live
        self.draw = draw
        self.error: Exception | None = None
        self._num_top = num_top
        self._replay = deque(replay)
        self._num_known = num_known
        self.first_token = self.next_token(logits)  # (1,)
        self.is_apart = False  # runs in a group of its own

    def next_token(self, logits: mx.array) -> mx.array:
        """The next token (1,), lazily, and its log probabilities where asked for. Mutates."""
        if self._replay:
            token = mx.array([self._replay.popleft()], dtype=mx.uint32)
        else:
            token = self.draw.draw(logits).astype(mx.uint32)
        self._logprobs = None
        if self._num_top is not None:
            self._logprobs = logprobs(logits, token, self._num_top)
        return token

    @property
    def is_plain(self) -> bool:
        """Whether a token drawn from the raw logits is all that is wanted."""
        is_raw = self.draw.is_greedy or self.draw.is_plain
        return is_raw and self._num_top is None and not self._replay

    @property
    def pending(self) -> list[mx.array]:
        """What is to be computed along with the token."""
        return list(self._logprobs or ())

    def read(self, value: int) -> Token:
        """The model reads the token: it, with its log probabilities, as plain numbers. Call
        before the next draw. Mutates."""
        self.live.advance([value])
        if self._num_known:
            self._num_known -= 1
        else:
            self.draw.accept(value)
        return self._as_token(value)

    def start(self) -> None:
        """Have the first token computed. Does not wait."""
        mx.async_eval(self.first_token, self.pending)  # type: ignore[no-untyped-call]

    def first(self) -> Token:
        """The first token, as plain numbers, before the model reads it. Waits for it."""
        return self._as_token(int(np.array(self.first_token)[0]))

    def _as_token(self, value: int) -> Token:
        """The token drawn last, with its log probabilities."""
        if self._logprobs is None:
            return Token(value)
        chosen, ids, values = (np.array(x).reshape(-1) for x in self._logprobs)
        top = tuple(zip(ids.tolist(), values.tolist()))
        return Token(value, float(chosen[0]), top)


class Group:
    """Rows that share one step of the model."""

    def __init__(self, model: Any, row: Row) -> None:
        self._model = model
        self.rows = [row]
        self._caches: list[Any] = row.live.caches
        self._tokens = row.first_token  # (B,): drawn, not yet read by the model
        self.read: list[Token] = []  # by the last step
        self._is_read = False  # between reading these tokens and having the next

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        return max(row.live.position for row in self.rows)

    def join(self, rows: Sequence[Row]) -> None:
        """Mutates. Raises whatever mlx-lm does when these caches cannot be merged; a group of
        one, and the rows, are then as they were."""
        joining = [row.live.caches for row in rows]
        if len(self) == 1:
            batch = merging.merged([self._caches, *joining])
            merging.extracted(batch, 1)  # lazily: the proof that it can be taken apart again
            self._caches = batch
            self._set_free(self.rows[0])
        else:
            merging.extend(self._caches, merging.merged(joining))
        for row in rows:
            self._set_free(row)
        self.rows += rows
        self._tokens = mx.concatenate([self._tokens, *(row.first_token for row in rows)])

    @staticmethod
    def _set_free(row: Row) -> None:
        row.live.caches = []  # they live in the batch now

    def step(self) -> list[Token | Exception]:
        """One token for each row, which the model has read when this returns; or what went
        wrong with that row. Raises what the model raises; `read` then has the tokens that were
        read before that."""
        tokens, self.read, self._is_read = self._tokens, [], False  # (B,)
        logits = self._model(tokens[:, None], cache=self._caches)[:, -1, :]  # (B, vocab)
        self._start(tokens)
        if any(row.draw.needs_last or row.pending for row in self.rows):
            # What is drawn next depends on this token: let the model run while it is looked at.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            self.read = self._read(tokens)
            upcoming = self._draw(logits)
            self._start(upcoming)
        else:
            upcoming = self._draw(logits)
            self._start(upcoming)
            self.read = self._read(tokens)
        self._tokens, self._is_read = upcoming, False
        return [row.error or token for row, token in zip(self.rows, self.read)]

    def _read(self, tokens: mx.array) -> list[Token]:
        values: list[int] = np.array(tokens).tolist()
        self._is_read = True
        return [row.read(value) for row, value in zip(self.rows, values)]

    def _draw(self, logits: mx.array) -> mx.array:
        """The next tokens (B,)."""
        if all(row.is_plain for row in self.rows):
            drawn = draw_together([row.draw for row in self.rows], logits)
            return drawn.astype(mx.uint32)
        tokens = []
        for i, row in enumerate(self.rows):
            try:
                tokens.append(row.next_token(logits[i : i + 1]))
            except Exception as error:
                # One row's trouble is not the others'.
                row.error = error
                tokens.append(mx.zeros((1,), dtype=mx.uint32))
        return mx.concatenate(tokens)

    def _start(self, tokens: mx.array) -> None:
        pending = [array for row in self.rows for array in row.pending]
        mx.async_eval(tokens, pending)  # type: ignore[no-untyped-call]

    def unread(self) -> dict[Row, int | None]:
        """The token of each row that is drawn and not yet read by the model; None where that is
        not known, or where it was read before the step failed."""
        if self._is_read:
            return dict.fromkeys(self.rows)
        try:
            values: list[int] = np.array(self._tokens).tolist()
        except Exception:
            log.exception("the tokens drawn last are lost")
            return dict.fromkeys(self.rows)
        return dict(zip(self.rows, values))

    def take(self, row: Row) -> None:
        """Give a row its own caches back, at the position it has reached. The row stays a part
        of the group until `drop`. Mutates the row."""
        if len(self) > 1 or not row.live.caches:
            row.live.caches = merging.extracted(self._caches, self.rows.index(row))

    def drop(self, gone: Sequence[Row]) -> None:
        """Rows leave. Mutates."""
        stay = [i for i, row in enumerate(self.rows) if row not in gone]
        was_merged = len(self) > 1
        self.rows = [self.rows[i] for i in stay]
        if not stay:
            self._caches = []
            return
        self._tokens = self._tokens[mx.array(stay)]
        if not was_merged:
            return
        if len(stay) == 1:
            self._caches = merging.extracted(self._caches, stay[0])
            self.rows[0].live.caches = self._caches
        else:
            merging.keep(self._caches, stay)


class Broken(Exception):
    """The states of these rows are lost; `unread` has the token of each that was drawn."""

    def __init__(self, unread: dict[Row, int | None]) -> None:
        super().__init__("caches could not be merged")
        self.unread = unread


class _Plan:
    """Rows that are to join a group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rows: list[Row] = []

    def padding(self, row: Row) -> int:
        """How many rows of padding there would be more with `row`: the short ones are filled up
        to the length of the longest."""
        mine = max([self.group.longest, *(r.live.position for r in self.rows)])
        its, count = row.live.position, len(self.group) + len(self.rows)
        return (its - mine) * count if its > mine else mine - its


class Batch:
    """All running sequences, in as few groups as their caches allow."""

    def __init__(self, model: Any, *, can_merge: bool) -> None:
        self._model = model
        self.can_merge = can_merge
        self.groups: list[Group] = []

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    def add(self, rows: Sequence[Row], *, max_padding: int) -> None:
        """Let rows run with the others, or beside them where that takes more padding: all that
        come at once are merged at once. Mutates. Raises Broken when a group could not be
        extended: it and the rows that were to join are in no group any more."""
        plans = [_Plan(group) for group in self.groups]
        for row in rows:
            plan = self._plan_for(row, plans, max_padding)
            if plan is None:
                self.groups.append(Group(self._model, row))
                plans.append(_Plan(self.groups[-1]))
            else:
                max_padding -= plan.padding(row)
                plan.rows.append(row)
        for plan in plans:
            if plan.rows:
                self._join(plan.group, plan.rows)

    def _plan_for(self, row: Row, plans: Sequence[_Plan], max_padding: int) -> _Plan | None:
        if not self.can_merge or row.is_apart:
            return None
        open_plans = [plan for plan in plans if not plan.group.rows[0].is_apart]
        nearest = min(open_plans, key=lambda plan: plan.padding(row), default=None)
        is_near = nearest is not None and nearest.padding(row) <= max_padding
        return nearest if is_near else None

    def _join(self, group: Group, rows: Sequence[Row]) -> None:
        try:
            group.join(rows)
        except Exception as error:
            if len(group) > 1:
                self.groups.remove(group)
                unread = group.unread()
                for row in rows:
                    unread[row] = int(np.array(row.first_token)[0])
                raise Broken(unread) from error
            log.warning("these caches cannot be merged: decoding in turn", exc_info=True)
            self.can_merge = False
            self.groups += [Group(self._model, row) for row in rows]

    def clear(self) -> None:
        """All rows leave, and no array is looked at. Mutates."""
        self.groups = []

    def group_of(self, row: Row) -> Group:
        return next(group for group in self.groups if row in group.rows)

    def drop(self, rows: Sequence[Row]) -> None:
        """Rows leave. Mutates."""
        for group in self.groups:
            if any(row in rows for row in group.rows):
                group.drop(rows)
        self.groups = [group for group in self.groups if group.rows]
