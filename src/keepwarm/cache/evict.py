"""Making room: which states go, in which order, and what is freed by it.

A leaf of the tree can go with all it holds. A checkpoint within the tree can go while the rows
stay. What is pinned stays, and so does everything before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from keepwarm.cache.blocks import held, shrink
from keepwarm.cache.candidates import (
    Newcomer,
    Victim,
    candidate_of,
    candidates,
    reclaimable_bytes,
    stays,
)
from keepwarm.cache.ends import LastEnd
from keepwarm.cache.explain import Reason, Refusal
from keepwarm.cache.ghosts import Ghosts
from keepwarm.cache.intervals import Interval, clipped
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.placement import Placement
from keepwarm.cache.policy import Candidate, Policy
from keepwarm.cache.space import Space
from keepwarm.cache.thinning import MAX_STEPS, Thinning
from keepwarm.cache.tips import tips
from keepwarm.cache.tree import Block, Node, Span, subtree, users
from keepwarm.cache.watch import Arrival, Watch

# Nodes from which on room is made in larger portions.
_LARGE = 512


class Evictor:
    """Drops states. Besides an insert that stores blocks anew, and the state at the end of the last
    prompt, nobody else takes bytes off the ledger."""

    def __init__(
        self,
        last_end: LastEnd,
        ledger: Ledger,
        placement: Placement,
        policy: Policy,
        counts: Counter[str],
    ) -> None:
        self._last_end = last_end
        self.ledger = ledger
        self.placement = placement
        self.policy = policy
        self.version = 0  # changes whenever a match found before may no longer hold
        self._counts = counts
        self._watch = Watch(MAX_STEPS * placement.prefill_step, placement.min_span)
        self._thinning = Thinning(placement)
        self.ghosts = Ghosts(placement)
        self._scratch_bytes = 0  # the most that cutting one block can need for a moment
        # Blocks with rows that nothing refers to, and the rows that are left: the ledger knows,
        # and they are cut when all that goes has gone. Empty between two calls from outside.
        self._loose: dict[Block, Interval] = {}

    # Room

    def fits(self, nbytes: int, leaf_bytes: int = 0) -> bool:
        """Whether that much can be added now, and a block whose largest leaf weighs
        `leaf_bytes` be cut later: for a moment that leaf is held twice."""
        scratch = max(self._scratch_bytes, leaf_bytes)
        return not nbytes or nbytes + scratch <= self.ledger.free_bytes

    def expect(self, leaf_bytes: int) -> None:
        """A block whose largest leaf weighs that much may have to be cut one day. Mutates."""
        self._scratch_bytes = max(self._scratch_bytes, leaf_bytes)

    def make_room(
        self, newcomer: Newcomer, leaf_bytes: int, spaces: Sequence[Space], now: float
    ) -> Refusal | None:
        """Evict until it fits, or say why it is not to be stored: over budget, and nothing is lost;
        or worth less than what would have to go, and what is worth still less has gone.

        In a large tree a little more goes at once, since looking through all of it is what costs.
        """
        nbytes = newcomer.nbytes
        if self.fits(nbytes, leaf_bytes):
            return None
        reclaimable = self._last_end.held_bytes + sum(reclaimable_bytes(space) for space in spaces)
        scratch = max(self._scratch_bytes, leaf_bytes)
        spare = self.ledger.free_bytes + reclaimable - scratch - nbytes
        if spare < 0:
            return Refusal.OVER_BUDGET
        num_nodes = sum(1 for space in spaces for _ in space.tree.nodes())
        slack = min(spare, self.ledger.budget_bytes // 64) if num_nodes > _LARGE else 0
        may_refuse = self.policy.refuses and not newcomer.is_awaited
        rival = self._rival(newcomer, now) if may_refuse else None
        self._evict_until(lambda: self.fits(nbytes + slack, leaf_bytes), spaces, now, rival)
        self._cut_loose()
        if self.fits(nbytes, leaf_bytes):
            return None
        if rival is None:
            return Refusal.OVER_BUDGET
        if newcomer.is_end(self.placement):
            self._watch.refused(self._arrival(newcomer), newcomer.above, now)
            digest = newcomer.prompt.digest(newcomer.position)
            self.ghosts.add(newcomer.space.name, digest, Reason.NOT_STORED)
        return Refusal.WORTH_LESS

    def _rival(self, newcomer: Newcomer, now: float) -> Candidate:
        """What is to be stored, as one of those that could go."""
        arrival, above = self._arrival(newcomer), newcomer.above
        chance = self._watch.chance_of_new(arrival, above)
        is_tip = above is not None and self._watch.is_tip(newcomer.space.name, above)
        return candidate_of(newcomer, chance, is_tip, now)

    def _arrival(self, newcomer: Newcomer) -> Arrival:
        space, prompt, position = newcomer.space, newcomer.prompt, newcomer.position
        end = self.placement.end(prompt, exact=space.exact)
        arrival = Arrival(
            space.name, prompt.digest(position), max(position, end), newcomer.is_shared,
            newcomer.is_leaf,
        )  # fmt: skip
        if not self._watch.misses_any or not self.policy.refuses:
            return arrival
        # What follows the end of a prompt, its reply, does not come back to it.
        own = end if position > end else None
        places = [place for place in self.placement.places(prompt) if place != own]
        return replace(
            arrival,
            passes=[prompt.digest(place) for place in places],
            answers=prompt.digest(own) if own is not None else None,
        )

    def evict_to(self, held_bytes: int, spaces: Sequence[Space], now: float) -> None:
        """Evict until at most that much is held, or until all that is left is pinned."""
        self._evict_until(lambda: self.ledger.held_bytes <= held_bytes, spaces, now)
        self._cut_loose()

    def evict_tips(
        self, num_tips: int, policy: Policy, spaces: Sequence[Space], now: float
    ) -> None:
        """Evict tips in the order of `policy` until at most that many are left, or until all
        that are left are pinned. What lay before a tip may become one."""
        while sum(1 for _ in tips(spaces)) > num_tips:
            leaves = [c for c in self._all_candidates(spaces, now) if c.handle.is_leaf]
            if not leaves:
                break
            self._evict(policy.order(leaves, now)[:1], lambda: True, now)
        self._cut_loose()

    def _evict_until(
        self,
        is_enough: Callable[[], bool],
        spaces: Sequence[Space],
        now: float,
        rival: Candidate | None = None,
    ) -> None:
        """Evict until it is enough, or until nothing is left to evict that goes before `rival`."""
        if not is_enough():
            self._last_end.let_go()  # of use only if the very same is asked again
        while not is_enough():
            rivals = [rival] if rival is not None else []
            ranked = self.policy.order([*self._all_candidates(spaces, now), *rivals], now)
            if rival is not None:
                ranked = list(takewhile(lambda candidate: candidate is not rival, ranked))
            if not ranked:
                return
            self._evict(ranked, is_enough, now)

    def _evict(
        self, ranked: Sequence[Candidate], is_enough: Callable[[], bool], now: float
    ) -> None:
        """Drop candidates in order until it is enough, or until their worth has to be looked at
        anew: dropping a checkpoint makes the next one on that path dearer."""
        dropped: set[int] = set()
        for candidate in ranked:
            victim: Victim = candidate.handle
            if victim.above is not None and id(victim.above) in dropped:
                continue
            dropped.add(id(victim.node))
            self._watch.evicted(victim.space.name, victim.node, now)
            if victim.is_leaf or not victim.node.children:  # those went meanwhile
                self._counts["evicted_leaves"] += 1
                self._drop_leaf(victim.space, victim.node)
            else:
                self._counts["evicted_checkpoints"] += 1
                self._remember(victim.space, victim.node)
                self._drop_checkpoint(victim.space, victim.node)
            if is_enough():
                return

    def _all_candidates(self, spaces: Sequence[Space], now: float) -> list[Candidate]:
        self._watch.before_ranking(now)
        return [one for space in spaces for one in candidates(space, self._watch, now)]

    # Thinning

    def thin(self, newcomer: Newcomer, tip: Node) -> None:
        """It was stored at `tip`: drop the checkpoints that are too many now."""
        self._watch.inserted(self._arrival(newcomer), tip)
        if newcomer.space.layout.has_costly_checkpoints:
            self._drop_thinned(self._thinning.superfluous(newcomer.space, tip))

    def thin_at(self, space: Space, keys: bytes, position: int, *, stays: bool) -> None:
        """The checkpoint at `position` may go, or the one before if it `stays`, where snapshots are
        dear and those around it lie close. Not where it has windows, which would go with it."""
        walk = space.tree.walk(keys)
        path = [node for node in walk.path if node.end <= walk.matched]
        if path and not space.window_groups:
            found = self._thinning.dear_between(path, position, stays=stays)
            self._drop_thinned((space, node) for node in found)

    def _drop_thinned(self, superfluous: Iterable[tuple[Space, Node]]) -> None:
        for home, node in superfluous:
            self._counts["thinned"] += 1
            self._watch.thinned(home.name, node)
            self._drop_checkpoint(home, node)
        self._cut_loose()

    # Dropping

    def drop_all(self, space: Space) -> None:
        """Drop all of a space, pinned or not: live caches are copies and go on.

        Cuts no block, so that it works when nothing else does.
        """
        nodes = list(space.tree.nodes())
        blocks = {span.block for node in nodes for spans in node.spans for span in spans}
        self.ledger.remove(rows_bytes=sum(map(self._counted_bytes, blocks)))
        self._loose = {block: left for block, left in self._loose.items() if block not in blocks}
        for node in nodes:
            self._drop_checkpoint_bytes(space, node)
            node.let_go()
        space.tree.root.children.clear()
        self.version += 1

    def drop_below(self, space: Space, node: Node) -> None:
        """Drop a node and everything below it, pinned or not."""
        for below in reversed(list(subtree(node))):  # children before their parents
            below.holds.clear()
            self._take_off(space, below)
        self._cut_loose()

    def discard(self, space: Space, node: Node, after: int) -> None:
        """Drop a leaf, and all that leads to it alone behind `after` tokens; nobody will ask where
        it went. Where any row can be restored, those of the first `after` tokens stay."""
        going = [step for step in reversed(node.path()) if step.end > after]
        for step in going:
            # One without a checkpoint may have gone with the last.
            if step.children or step.pins or (not any(step.spans) and step.checkpoint is None):
                break
            self._counts["discarded"] += step is node
            if space.can_cut and step.start < after:
                space.tree.split(step, after)
            digest = step.checkpoint.digest if step.checkpoint is not None else b""
            self._drop_leaf(space, step)
            self.ghosts.forget(space.name, digest)
        self._cut_loose()

    def _drop_leaf(self, space: Space, node: Node) -> None:
        """Drop a leaf, and above it the rows that no checkpoint leads to any more."""
        while True:
            self._remember(space, node)
            parent = self._take_off(space, node)
            # Asked after each: with a leaf, windows of its parent may have gone.
            if parent.children or stays(space, parent):
                break
            node = parent
        is_place = parent.is_root or parent.pins or parent.checkpoint is not None
        if not is_place and len(parent.children) == 1:
            self._join(space, next(iter(parent.children.values())))

    def _remember(self, space: Space, node: Node) -> None:
        if node.checkpoint is not None:
            self.ghosts.add(space.name, node.checkpoint.digest, Reason.EVICTED)

    def _take_off(self, space: Space, leaf: Node) -> Node:
        """Take one leaf off the tree with all it holds; returns its parent."""
        parent = leaf.parent
        assert parent is not None
        self._drop_checkpoint_bytes(space, leaf)
        space.tree.remove(leaf)
        self.version += 1
        for spans in leaf.spans:
            self._release(parent, spans)
        leaf.let_go()
        self._collect_windows(space, parent, leaf.end)
        return parent

    def _drop_checkpoint(self, space: Space, node: Node) -> None:
        """Drop the checkpoint of a node; its rows stay."""
        self._drop_checkpoint_bytes(space, node)
        node.checkpoint = None
        self.version += 1
        self._collect_windows(space, node, node.end)
        if len(node.children) == 1 and not node.pins:
            self._join(space, next(iter(node.children.values())))

    def _drop_checkpoint_bytes(self, space: Space, node: Node) -> None:
        if node.checkpoint is not None:
            self._watch.forget(space.name, node)
            self.ledger.remove(snapshot_bytes=node.checkpoint.nbytes)

    def _join(self, space: Space, node: Node) -> None:
        """Make one edge of two that no checkpoint parts any more, while it stays short."""
        assert node.parent is not None
        if node.end - node.parent.start <= self.placement.prefill_step:
            space.tree.join(node)

    def _collect_windows(self, space: Space, node: Node, position: int) -> None:
        """Drop window rows on the way to `node` that only a checkpoint at `position` took."""
        for group in space.window_groups:
            needs = space.layout.groups[group].state.needs(position)
            for step in node.path():
                if clipped(needs, step.start, step.end):
                    self._trim(space, step, group)

    def _trim(self, space: Space, node: Node, group: int) -> None:
        """Reduce the window rows of one edge to those that are needed. Mutates."""
        needed = space.needed_rows(node, group, held(node.spans[group]))
        kept: list[Span] = []
        released: list[Span] = []
        for span in node.spans[group]:
            parts = clipped(needed, span.lo, span.hi)
            if parts == [(span.lo, span.hi)]:
                kept.append(span)
                continue
            kept += [Span(span.block, lo, hi) for lo, hi in parts]
            span.block.num_spans += len(parts)
            released.append(span)
        node.spans[group][:] = kept
        self._release(node, released)

    def _release(self, node: Node, spans: Sequence[Span]) -> None:
        """Let go of spans that were on or right below `node`. Mutates the ledger, and says which
        blocks are to be cut."""
        for span in spans:  # all of them before a block is looked at: several may be parts of one
            span.block.num_spans -= 1
        for block in dict.fromkeys(span.block for span in spans):
            before_bytes = self._counted_bytes(block)
            if block.num_spans:
                used = list(users(node, block))
                left = min(span.lo for span in used), max(span.hi for span in used)
                if left != (block.lo, block.hi):
                    self._loose[block] = left
                self.ledger.remove(rows_bytes=before_bytes - self._counted_bytes(block))
            else:
                self._loose.pop(block, None)
                self.ledger.remove(rows_bytes=before_bytes)

    def _counted_bytes(self, block: Block) -> int:
        """What the ledger has of it."""
        lo, hi = self._loose.get(block, (block.lo, block.hi))
        return block.bytes_of(hi - lo)

    def _cut_loose(self) -> None:
        """Cut the blocks down to the rows that are still referred to, each once."""
        for block, (lo, hi) in self._loose.items():
            shrink(block, lo, hi)
        self._loose.clear()
