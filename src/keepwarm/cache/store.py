"""The prefix cache: match, restore, insert, pin. One thread owns it.

Nothing here raises because of what is stored. A state that is not what its place says, or a
capture that fails, is a miss with a reason, and the request is served cold.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keepwarm.cache.audit import audit
from keepwarm.cache.blocks import Capture, Source
from keepwarm.cache.budget import default_budget_bytes
from keepwarm.cache.ends import End, LastEnd, take_end
from keepwarm.cache.evict import Evictor
from keepwarm.cache.explain import Inserted, Match, Reason, Refusal
from keepwarm.cache.finals import Finals
from keepwarm.cache.insert import Insertion
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.live import Live
from keepwarm.cache.owner import Owner
from keepwarm.cache.pin import Pin
from keepwarm.cache.placement import (
    EXACT_KEY_WIDTH,
    KEPT,
    KEY_WIDTH,
    SHORT_TURN,
    Keys,
    Placement,
    Stop,
    StopKind,
)
from keepwarm.cache.policy import CostModel, MeasuredCost, Policy, policy_named
from keepwarm.cache.restore import restored
from keepwarm.cache.scored import ScoredPrompts
from keepwarm.cache.space import Space
from keepwarm.cache.stats import Stats
from keepwarm.cache.tips import Share, shares
from keepwarm.errors import BadInput, CacheFault
from keepwarm.model.caches import cache_maker
from keepwarm.prompt.boundaries import AnyPrompt, Prompt, Tokens, as_prompt
from keepwarm.state.registry import Layout

if TYPE_CHECKING:
    from keepwarm.cache.disk.settings import Disk
    from keepwarm.cache.disk.tier import Tier

log = logging.getLogger("keepwarm.cache")


class PrefixCache:
    """States of past prompts, shared by all that begin alike.

    `model` is an mlx-lm model, or a function that makes its empty live caches (`cache_maker`
    gives one with quantized rows); with None each namespace takes the layout of the first caches
    it is given. With `exact` a restored prompt gives bit for bit the logits of a cold one: matches
    land on the prompt's own schedule, and rows that were decoded are not stored.
    """

    def __init__(
        self,
        model: Any,
        *,
        budget_bytes: int | None = None,
        exact: bool = False,
        placement: Placement | None = None,
        policy: Policy | str = "worth",
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
        disk: Disk | Path | str | None = None,
    ) -> None:
        """Raises BadInput for a negative budget, an unknown policy or something not a model. `disk`
        is a folder in which states are kept for the next start."""
        self.exact = exact
        # Neither reasons nor the time of a lookup tell what other namespaces hold.
        self.keeps_secrets = False
        self.placement = placement or Placement()
        self.cost = cost or MeasuredCost()
        self.ledger = Ledger(default_budget_bytes() if budget_bytes is None else budget_bytes)
        self.finals = Finals()
        self.scored = ScoredPrompts()
        self.last_end = LastEnd(self.ledger)
        self._make_caches = cache_maker(model) if model is not None else None
        self._owner = Owner(self._make_caches)
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._spaces: dict[str, Space] = {}
        self._keys = Keys(self.placement.exact_keys if exact else self.placement.keys)
        chosen = policy_named(policy, self.cost) if isinstance(policy, str) else policy
        self._evictor = Evictor(self.last_end, self.ledger, self.placement, chosen, self._counts)
        self.layout, self.disabled_because = self._learn_layout()
        self.disk = self._open_disk(disk, model)

    def _open_disk(self, disk: Disk | Path | str | None, model: Any) -> Tier | None:
        if disk is None or self.disabled_because is not None:
            return None
        from keepwarm.cache.disk.settings import Disk
        from keepwarm.cache.disk.tier import Tier

        return Tier(self, disk if isinstance(disk, Disk) else Disk(disk), self._owner.model)

    def _learn_layout(self) -> tuple[Layout | None, str | None]:
        if self._make_caches is None:
            return None, None
        try:
            return Layout.of(self._make_caches()), None
        except CacheFault as fault:
            log.warning(
                "caching is off for this model, and every prompt is read in full: %s", fault
            )
            return None, str(fault)

    def bind(self, model: Any) -> None:
        """Raises BadInput for another model object than the one whose states are held here."""
        self._owner.bind(model)

    def _check_weights(self) -> None:
        is_empty = not self._spaces and self.last_end.end is None
        if self._owner.check_weights(is_empty=is_empty):
            self.finals.clear()
            self.scored.clear()

    # Finding

    def match(self, prompt: AnyPrompt, *, namespace: str = "", limit: int | None = None) -> Match:
        """The deepest usable position for `prompt`. Changes nothing but the statistics.

        At most `limit` tokens, by default all but the last: the model must read something to
        say what comes next. Raises BadInput when the model's weights were replaced meanwhile.
        """
        self._check_weights()
        return self._counted(self.peek(as_prompt(prompt), namespace=namespace, limit=limit))

    def match_to_end(self, prompt: Prompt, *, namespace: str = "") -> Match:
        """As `match`, to the last token: for callers that already hold the final logits."""
        self._check_weights()
        return self._counted(self._find(prompt, namespace, len(prompt), self.last_end.end))

    def _counted(self, found: Match) -> Match:
        self._counts[f"match_{found.reason}"] += 1
        self._counts["prompt_tokens"] += len(found.prompt)
        self._counts["cached_tokens"] += found.cached_len
        return found

    def peek(self, prompt: Prompt, *, namespace: str = "", limit: int | None = None) -> Match:
        """What `match` would find now, outside the statistics. Changes nothing."""
        limit = len(prompt) - 1 if limit is None else max(0, min(limit, len(prompt)))
        return self._find(prompt, namespace, limit)

    def _find(self, prompt: Prompt, namespace: str, limit: int, end: End | None = None) -> Match:
        if self.disabled_because is not None:
            return Match(prompt, namespace, 0, 0, Reason.DISABLED)
        try:
            found = self._search(prompt, namespace, limit)
            if end is not None and end.is_of(namespace, prompt) and namespace in self._spaces:
                found = end.added_to(found, self._spaces[namespace], self._keys(prompt))
            return found
        except Exception as error:
            self._fault("match", error)
            return Match(prompt, namespace, 0, 0, Reason.FAULT)

    def _search(self, prompt: Prompt, namespace: str, limit: int) -> Match:
        keys = self._keys(prompt)
        space = self._spaces.get(namespace)
        if space is None:
            return Match(prompt, namespace, 0, 0, self._reason_cold(prompt, namespace, keys))
        walk = space.tree.walk(keys)
        if space.can_cut:
            cached_len = space.deepest_cut(walk, limit)
            node = next(iter(walk.until(cached_len)[-1:]), None)
        else:
            node = space.deepest_checkpoint(walk, limit)
            cached_len = node.end if node else 0
        goes_on = walk.is_inside or bool(walk.path and walk.path[-1].children)
        is_branch = goes_on and 0 < walk.matched < len(prompt)
        reason = self._reason(prompt, namespace, keys, cached_len, walk.matched, is_branch)
        return Match(
            prompt, namespace, cached_len, walk.matched, reason, is_branch, node,
            self._evictor.version,
        )  # fmt: skip

    def _reason(
        self, prompt: Prompt, namespace: str, keys: bytes, cached: int, parted: int, branch: bool
    ) -> Reason:
        if gone := self._evictor.ghosts.reason(prompt, namespace, cached):
            return gone
        if not cached:
            # What all prompts of a template begin with is nothing that anyone would miss.
            first_end = prompt.ends[0].position if prompt.ends else 1
            is_cold = parted < first_end
            return self._reason_cold(prompt, namespace, keys) if is_cold else Reason.NO_CHECKPOINT
        if parted >= len(prompt) or cached >= self.placement.tail(prompt):
            return Reason.EXACT
        return Reason.BRANCHED if branch else Reason.EXTENDED

    def _reason_cold(self, prompt: Prompt, namespace: str, keys: bytes) -> Reason:
        if gone := self._evictor.ghosts.reason(prompt, namespace, 0):
            return gone
        others = [] if self.keeps_secrets else list(self._spaces.values())
        for other in others:
            if other.name != namespace and other.tree.walk(keys).matched:
                return Reason.OTHER_NAMESPACE
        return Reason.COLD

    def stops(
        self, match: Match, *, start: int | None = None, is_read_ahead: bool = False,
        longest_end: int = SHORT_TURN,
    ) -> list[Stop]:  # fmt: skip
        """Where the prefill of a matched prompt stops, its end included. It begins at `start`: pass
        `live.position`, which is 0 when a restore failed. With `is_read_ahead` the next turn will
        be, while nobody waits. `longest_end` tokens may be read in one pass to the end."""
        start = match.cached_len if start is None else start
        if self.exact:
            return self.placement.exact_stops(match.prompt, start)
        layout, parted_at = self.layout, match.parted_at if match.is_branch else None
        if layout is not None and not layout.has_costly_checkpoints:
            return self.placement.row_stops(match.prompt, start, longest_end=longest_end)
        can_cut = layout is not None and layout.can_cut
        return self.placement.stops(
            match.prompt, start, parted_at,
            passes_tail=can_cut, is_read_ahead=is_read_ahead, longest_end=longest_end,
        )  # fmt: skip

    # Restoring

    def pin(self, match: Match) -> Pin:
        """Hold what was matched until the pin is released. Mutates the pin count only."""
        pin = Pin()
        if match.version != self._evictor.version:
            match = self._find(match.prompt, match.namespace, match.cached_len)
        if match.node is not None:
            pin.hold(match.node, match.tree_len)
        return pin

    def fresh(self) -> Live:
        """Empty live caches; none at all when nobody said how to make them."""
        return Live(self._make_caches() if self._make_caches is not None else [])

    def restore(self, match: Match, *, reserve: int | None = None) -> Live:
        """Live caches at `match.cached_len`, with room for `reserve` more tokens.

        `live.position` says where they stand: 0 when the state could not be restored; it never
        raises because of what is stored. By default there is room for the rest of the prompt.
        """
        if match.version != self._evictor.version:
            stale, match = match, self._find(match.prompt, match.namespace, match.cached_len)
            self._counts["cached_tokens"] += match.cached_len - stale.cached_len
        if not match.cached_len or match.node is None:
            return self.fresh()
        reserve = len(match.prompt) - match.cached_len if reserve is None else reserve
        try:
            caches = restored(self._spaces[match.namespace], match, reserve)
        except Exception as error:
            self._fault("restore", error)
            if match.end is not None:  # nothing is wrong with the tree
                self.last_end.let_go()
                return self.restore(replace(match, end=None, version=-1), reserve=reserve)
            self._counts["cached_tokens"] -= match.cached_len
            self._forget(match)
            return self.fresh()
        match.node.use(match.cached_len, self._clock())
        position = match.cached_len
        stops = [stop.position for stop in self.placement.exact_schedule(match.prompt)]
        return Live.at(caches, match.prompt, position, [p for p in stops if p <= position])

    # Storing

    def insert(
        self, prompt: AnyPrompt, live: Live, *, kind: StopKind = StopKind.MESSAGE, namespace: str = "",
        pin: Pin | None = None, at: int | None = None, is_awaited: bool = False,
    ) -> Inserted:  # fmt: skip
        """Store the state of `live` at its position, which must lie on `prompt`; or as it was `at`
        an earlier one, where rows make it and are still there. With `pin`, the pin moves there.
        What `is_awaited` by another request is stored if it fits, whatever it is worth.

        Rows that are there already are not stored again. Never raises because of the cache: what
        could not be stored says why. Raises BadInput for a kind that is not one of a checkpoint.
        """
        if kind not in KEPT:
            raise BadInput(
                f"kind: {kind!r} is not a kind of checkpoint; use one of {', '.join(KEPT)}"
            )
        prompt, position = as_prompt(prompt), live.position
        if not self._spaces:
            self._check_weights()
        if self.disabled_because is not None:
            return self._refuse(position, Refusal.DISABLED, self.disabled_because)
        if not 0 < position <= len(prompt) or live.digest != prompt.digest(position):
            return self._refuse(position, Refusal.MISMATCH, "the tokens read are not the prompt's")
        is_back = at is not None and at != position
        if self.exact and (is_back or not self.placement.is_on_schedule(prompt, live.cuts)):
            return self._refuse(position, Refusal.OFF_SCHEDULE, "read along other stops")
        try:
            space = self._space(namespace, live.caches)
            capture = Capture(space.layout, live.caches, position, at)
        except CacheFault as fault:
            return self._refuse(position, Refusal.MISMATCH, str(fault))
        except Exception as error:
            self._fault("insert", error)
            return self._refuse(position, Refusal.FAULT, str(error))
        return self.put(prompt, capture, kind, space, pin=pin, is_awaited=is_awaited)

    def put(
        self, prompt: Prompt, capture: Source, kind: StopKind, space: Space, *,
        pin: Pin | None = None, is_awaited: bool = False,
    ) -> Inserted:  # fmt: skip
        """As `insert`, of what is proven to be the state of `prompt` at its position."""
        position, namespace = capture.position, space.name
        try:
            space.check_signature(capture.signature)
            insertion = Insertion(space, self._keys(prompt), prompt, capture, self._evictor)
        except CacheFault as fault:
            return self._refuse(position, Refusal.MISMATCH, str(fault))
        except Exception as error:
            self._fault("insert", error)
            return self._refuse(position, Refusal.FAULT, str(error))
        self._spaces[namespace] = space
        try:
            now, spaces = self._clock(), list(self._spaces.values())
            node, done = insertion.run(StopKind(kind), now, spaces, is_awaited=is_awaited)
        except CacheFault as fault:
            return self._refuse(position, Refusal.MISMATCH, str(fault))
        except Exception as error:
            # The tree may be half changed: drop all of it rather than guess.
            self._fault("insert", error)
            self.clear()
            return self._refuse(position, Refusal.FAULT, str(error))
        finally:
            self._spaces = {n: s for n, s in self._spaces.items() if s.tree.root.children}
        if node is None:
            assert done.refusal is not None
            return self._refuse(position, done.refusal, f"no room for {done.nbytes} bytes")
        if pin is not None:
            pin.hold(node, position)
        space.signature = capture.signature
        self._counts["inserted"] += 1
        self._counts["inserted_rows"] += done.num_rows
        if self.disk is not None:
            self.disk.stored(space, node)
        return done

    def put_loaded(
        self, prompt: Prompt, loaded: Source, kind: StopKind, namespace: str
    ) -> Inserted:
        """As `insert`, of what was read from files that were proven to be the prompt's."""
        if not self._spaces:
            self._check_weights()
        return self.put(prompt, loaded, kind, self._space(namespace, []), is_awaited=True)

    def keep_end(self, prompt: Prompt, live: Live, *, namespace: str = "") -> None:
        """`live` has read all of `prompt`: keep the state for who asks the same and knows what the
        model says. Windows, where rows make it; else while memory is free and no other ends."""
        space = self._spaces.get(namespace)
        has_spare = self._evictor.fits(self.ledger.budget_bytes // 64)
        if space and space.can_cut and space.window_groups and has_spare:
            self.insert(prompt, live, kind=StopKind.TAIL, namespace=namespace)
        if space is None or space.can_cut or space.exact:
            return
        try:
            self.last_end.let_go()
            match = self._find(prompt, namespace, len(prompt) - 1)
            end = take_end(space, match, live, self._evictor.fits, self._clock())
            if end is not None and end.is_of(namespace, prompt):
                self.last_end.put(end)
        except Exception as error:
            self._fault("insert", error)

    def spare_tail(self, ahead: Prompt, *, namespace: str = "") -> None:
        """`ahead` was read in advance. The last prompt's end, if held, spares the one before it."""
        space, end = self._spaces.get(namespace), self.last_end.end
        if space is not None and end is not None and end.is_beside(namespace, ahead):
            with self._guarded("thin"):
                stays = not end.is_from_tail  # who edits a short turn starts there
                self._evictor.thin_at(space, self._keys(ahead), end.anchor, stays=stays)

    def _space(self, namespace: str, caches: Sequence[Any]) -> Space:
        found = self._spaces.get(namespace)
        if found is not None:
            return found
        return Space.empty(namespace, self.layout or Layout.of(caches), self.exact)

    def _refuse(self, position: int, refusal: Refusal, detail: str) -> Inserted:
        self._counts[f"refused_{refusal}"] += 1
        log.debug("not stored at %d: %s (%s)", position, refusal, detail)
        return Inserted(position, refusal=refusal, detail=detail)

    # For the disk tier

    def keys_of(self, prompt: Prompt) -> bytes:
        """What the trees compare."""
        return self._keys(prompt)

    @property
    def key_width(self) -> int:
        return EXACT_KEY_WIDTH if self.exact else KEY_WIDTH

    def tokens_of(self, keys: bytes) -> Tokens:
        """The tokens of a path; in exact mode its keys do not tell."""
        assert not self.exact
        return np.frombuffer(keys, dtype="<i4").astype(np.int32)

    @property
    def spaces(self) -> list[Space]:
        return list(self._spaces.values())

    def space_of(self, namespace: str) -> Space | None:
        return self._spaces.get(namespace)

    # Saving

    def save(
        self, folder: Path | str, prompt: AnyPrompt | None = None, *, namespace: str | None = None
    ) -> int:
        """Write what is held to a folder, or what is held of `prompt`; for `load`, by any program
        with the same model. Gives the bytes that lie there then. Raises BadInput for a folder that
        cannot be written."""
        from keepwarm.cache.disk import saved

        self._check_weights()
        return saved.save(self, self._owner.model, folder, prompt, namespace)

    def load(
        self, folder: Path | str, prompt: AnyPrompt | None = None, *, namespace: str = ""
    ) -> int:
        """Read what was saved in a folder, or what was saved of `prompt`, as far as it fits the
        budget; gives how many tokens that are. Every byte is verified, and nothing of another
        model, or of other weights, is found. Raises BadInput for a folder that is none. Mutates."""
        from keepwarm.cache.disk import saved

        self._check_weights()
        return saved.load(self, self._owner.model, folder, prompt, namespace)

    # Keeping house

    def _fault(self, act: str, error: Exception) -> None:
        self._counts[f"fault_{act}"] += 1
        log.error("%s failed; the request is served cold", act, exc_info=error)

    def _forget(self, match: Match) -> None:
        """Drop what could not be restored, so that it is not tried again."""
        space, node = self._spaces.get(match.namespace), match.node
        if space is not None and node is not None:
            with self._guarded("forget"):
                self._evictor.drop_below(space, node)

    def clear(self, namespace: str | None = None) -> None:
        """Drop everything, or everything of one namespace. Running requests go on."""
        self.finals.clear()
        self.scored.clear()
        self.last_end.let_go()
        for name in [namespace] if namespace is not None else list(self._spaces):
            if (space := self._spaces.pop(name, None)) is not None:
                self._evictor.drop_all(space)
        if not self._spaces:
            self._owner.forget()
            self.ledger.clear()  # whatever state a fault left it in

    def evict_to(self, held_bytes: int) -> None:
        """Evict by the policy until at most `held_bytes` are held, or all the rest is pinned."""
        self._evictor.evict_to(held_bytes, list(self._spaces.values()), self._clock())

    def discard(self, prompt: Prompt, after: int, *, namespace: str = "") -> None:
        """Drop what was stored of `prompt` behind its first `after` tokens, up to its very end,
        unless something hangs on it."""
        if (space := self._spaces.get(namespace)) is None:
            return
        with self._guarded("discard"):
            walk = space.tree.walk(self._keys(prompt))
            if walk.path and walk.path[-1].end == len(prompt) == walk.matched:
                self._evictor.discard(space, walk.path[-1], after)

    def lend(self, nbytes: int) -> bool:
        """Leave that much of the budget to running sequences until told otherwise, and evict
        what is in the way. False when what is pinned does not leave as much."""
        self.ledger.reserved_bytes = nbytes
        allowed = self.ledger.budget_bytes - self.ledger.staged_bytes - nbytes
        if self.ledger.held_bytes > allowed:
            with self._guarded("evict"):
                self.evict_to(allowed)
        return self.ledger.held_bytes <= max(0, allowed)

    @contextmanager
    def _guarded(self, act: str) -> Iterator[None]:
        """A fault inside leaves an empty cache, not a failed request."""
        try:
            yield
        except Exception as error:
            self._fault(act, error)
            self.clear()

    def evict_tips(self, num_tips: int, policy: Policy) -> None:
        """Evict whole tips in the order of `policy`, until at most `num_tips` are left or all
        the rest is pinned."""
        self._evictor.evict_tips(num_tips, policy, list(self._spaces.values()), self._clock())

    def shares(self, order: Sequence[StopKind] = ()) -> dict[StopKind, Share]:
        """What the tips of each kind hold. What tips of several kinds share counts for the kind
        that comes first in `order`."""
        return shares(list(self._spaces.values()), order)

    def stats(self) -> Stats:
        """Counts since the start, and what is held now."""
        num_ends = int(self.last_end.end is not None)
        return Stats.of(self._counts, self.ledger, list(self._spaces.values()), num_ends)

    def close(self) -> None:
        """Write what is worth it to the disk tier, if there is one, and let go of its folder."""
        if self.disk is not None:
            self.disk.close()

    def check(self) -> None:
        """Recompute every total, link, pin and hash. Raises Corrupt, naming what is wrong."""
        audit(list(self._spaces.values()), self.last_end.end, self.ledger)
