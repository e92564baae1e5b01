"""What is kept of a reply for the turn after it, and what is read for that turn in advance.

Engine thread.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.idle import Idle
from keepwarm.engine.pace import Pace
from keepwarm.engine.request import IdlePrefill
from keepwarm.engine.room import Room
from keepwarm.engine.sequence import Sequence
from keepwarm.prompt.boundaries import Prompt, shared_len
from keepwarm.prompt.follow_up import continues

log = logging.getLogger("keepwarm.engine")


class Warmth:
    """Stores replies, and corrects itself when it is told how the conversation goes on."""

    def __init__(self, model: Any, cache: PrefixCache, mode: IdlePrefill) -> None:
        self.idle = Idle(model, cache)
        self._cache = cache
        self._mode = mode

    @property
    def reads_ahead(self) -> bool:
        """Whether a next turn that does not begin with the reply is read in advance, if there is
        time."""
        return self._mode != IdlePrefill.OFF

    def keep_reply(self, sequence: Sequence) -> None:
        """Store the state at the end of a reply, whole or cut short: the next turn may begin
        with it. Not in exact mode, where decoded rows are not reused. Mutates the cache."""
        if sequence.tokens and sequence.prefill is not None and not self._cache.exact:
            sequence.prefill.insert(sequence.read, StopKind.REPLY)

    def follow_up(self, sequence: Sequence, upcoming: Prompt) -> None:
        """The next turn will begin with `upcoming`. What it does not pass through of a reply is
        dropped (a thought, say, that is never written again); what it lacks is read when nothing
        else is to do."""
        read, namespace = sequence.read, sequence.request.namespace
        goes_on = continues(read, upcoming)
        if not goes_on:
            shared = shared_len(read.tokens, upcoming.tokens) if self._can_cut_anywhere else 0
            after = max(len(sequence.prompt), shared)
            self._cache.discard(read, after, namespace=namespace)
        is_wanted = self._mode is IdlePrefill.ALL or (
            self._mode is IdlePrefill.STRIPPED and not goes_on
        )
        if is_wanted and self._cache.disabled_because is None:
            self.idle.offer(upcoming, namespace)

    def read_ahead(self, room: Room, pace: Pace) -> bool:
        """Read a little of what may be asked for next; whether there was anything. Mutates."""
        idle = self.idle
        if not idle.has_work:
            return False
        # Nothing is evicted for a guess.
        if idle.next_len and not room.is_free(room.needed_bytes(idle.next_len)):
            idle.drop_next()
            return True
        began, before = perf_counter(), idle.num_tokens
        try:
            idle.step(pace.chunk_len)
        except Exception:
            log.exception("idle prefill failed")
            return True
        if idle.num_tokens > before:
            pace.observe(idle.num_tokens - before, perf_counter() - began)
        return True

    @property
    def _can_cut_anywhere(self) -> bool:
        """Whether rows alone are enough; windows go with the checkpoint that took them."""
        layout = self._cache.layout
        return layout is not None and layout.can_cut and not any(g.is_window for g in layout.groups)
