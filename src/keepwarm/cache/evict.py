"""Making room: which states go, in which order, and what is freed by it.

A leaf of the tree can go with all it holds. A checkpoint within the tree can go while the rows
stay. What is pinned stays, and so does everything before it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from keepwarm.cache.blocks import held, shrink
from keepwarm.cache.ends import LastEnd
from keepwarm.cache.intervals import Interval, clipped
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.placement import Placement, StopKind
from keepwarm.cache.policy import Candidate, Policy
from keepwarm.cache.space import Space, span_bytes, window_bytes
from keepwarm.cache.thinning import MAX_STEPS, Thinning
from keepwarm.cache.tips import tips
from keepwarm.cache.tree import Block, Node, Span, subtree, users
from keepwarm.cache.watch import Watch
from keepwarm.prompt.boundaries import Prompt

# How many evicted checkpoints are remembered, to tell "evicted" from "never seen".
_NUM_GHOSTS = 4096
# Nodes from which on room is made in larger portions.
_LARGE = 512


@dataclass(frozen=True, slots=True)
class Victim:
    """What a candidate stands for."""

    space: Space
    node: Node
    above: Node | None  # the checkpoint that a prefill would fall back to
    is_leaf: bool  # all of it goes; otherwise only its checkpoint


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
        self._watch = Watch(MAX_STEPS * placement.prefill_step)
        self._thinning = Thinning(placement)
        self._ghosts: OrderedDict[tuple[str, bytes], None] = OrderedDict()
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

    def make_room(self, nbytes: int, leaf_bytes: int, spaces: Sequence[Space], now: float) -> bool:
        """Evict until `nbytes` fit. When they cannot, nothing is lost.

        In a large tree a little more goes at once, since looking through all of it is what costs.
        """
        if self.fits(nbytes, leaf_bytes):
            return True
        reclaimable = self._last_end.held_bytes + sum(_reclaimable_bytes(space) for space in spaces)
        scratch = max(self._scratch_bytes, leaf_bytes)
        spare = self.ledger.free_bytes + reclaimable - scratch - nbytes
        if spare < 0:
            return False
        num_nodes = sum(1 for space in spaces for _ in space.tree.nodes())
        slack = min(spare, self.ledger.budget_bytes // 64) if num_nodes > _LARGE else 0
        self._evict_until(lambda: self.fits(nbytes + slack, leaf_bytes), spaces, now)
        self._cut_loose()
        return self.fits(nbytes, leaf_bytes)

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
        self, is_enough: Callable[[], bool], spaces: Sequence[Space], now: float
    ) -> None:
        """Evict until it is enough, or until nothing is left to evict."""
        if not is_enough():
            self._last_end.let_go()  # of use only if the very same is asked again
        while not is_enough():
            ranked = self.policy.order(self._all_candidates(spaces, now), now)
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
        return [candidate for space in spaces for candidate in self._candidates(space, now)]

    def _candidates(self, space: Space, now: float) -> Iterator[Candidate]:
        stack: list[tuple[Node, Node | None]] = [
            (node, None) for node in space.tree.root.children.values()
        ]
        while stack:
            node, above = stack.pop()
            if not node.pins:
                if not node.children:
                    chance = self._watch.chance(space.name, node, now)
                    yield _leaf_candidate(space, node, above, chance)
                elif node.checkpoint is not None and space.layout.has_costly_checkpoints:
                    chance = self._watch.chance(space.name, node, now)
                    yield _checkpoint_candidate(space, node, above, chance)
            below = node if node.checkpoint is not None else above
            stack.extend((child, below) for child in node.children.values())

    # Thinning

    def thin(self, space: Space, tip: Node) -> None:
        """There is a new checkpoint at `tip`: drop those that are too many now."""
        self._watch.inserted(space.name, tip)
        if not space.layout.has_costly_checkpoints:
            return
        self._drop_thinned(self._thinning.superfluous(space, tip))

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

    # Ghosts

    def _remember(self, space: Space, node: Node) -> None:
        if node.checkpoint is not None:
            self._ghosts[(space.name, node.checkpoint.digest)] = None
            if len(self._ghosts) > _NUM_GHOSTS:
                self._ghosts.popitem(last=False)

    def recall(self, namespace: str, digest: bytes) -> None:
        """That state is back. Mutates."""
        self._ghosts.pop((namespace, digest), None)

    def remembers(self, prompt: Prompt, namespace: str, deeper_than: int) -> bool:
        """Whether a checkpoint of this prompt beyond that position was evicted."""
        if not self._ghosts:
            return False
        return any(
            (namespace, prompt.digest(place)) in self._ghosts
            for place in self.placement.places(prompt)
            if deeper_than < place < len(prompt)
        )

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
            self.recall(space.name, digest)
        self._cut_loose()

    def _drop_leaf(self, space: Space, node: Node) -> None:
        """Drop a leaf, and above it the rows that no checkpoint leads to any more."""
        while True:
            self._remember(space, node)
            parent = self._take_off(space, node)
            if parent.is_root or parent.pins or parent.checkpoint is not None:
                return
            if parent.children or (space.can_cut and any(parent.spans)):
                break
            node = parent
        if len(parent.children) == 1:
            self._join(space, next(iter(parent.children.values())))

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


def _leaf_candidate(space: Space, node: Node, above: Node | None, chance: float) -> Candidate:
    candidate = _checkpoint_candidate(space, node, above, chance)
    nbytes = span_bytes(node) + (node.checkpoint.nbytes if node.checkpoint else 0)
    candidate = replace(
        candidate,
        handle=Victim(space, node, above, is_leaf=True),
        nbytes=nbytes,
        last_used=max(node.last_used, candidate.last_used),
        is_leaf=True,
    )
    if space.can_cut and any(node.spans):
        return replace(candidate, position=node.end, fallback=node.start)
    return candidate


def _checkpoint_candidate(space: Space, node: Node, above: Node | None, chance: float) -> Candidate:
    fallback = above.end if above is not None else 0
    checkpoint = node.checkpoint
    return Candidate(
        handle=Victim(space, node, above, is_leaf=False),
        nbytes=checkpoint.nbytes + window_bytes(space, node) if checkpoint else 0,
        # Rows without a checkpoint that leads to them save nothing.
        position=node.end if checkpoint else fallback,
        fallback=fallback,
        kind=StopKind(checkpoint.kind) if checkpoint else None,
        created=checkpoint.created if checkpoint else node.last_used,
        # Not the node's: a hit further down took its rows, but not its snapshots.
        last_used=checkpoint.last_used if checkpoint else node.last_used,
        hits=checkpoint.hits if checkpoint else node.hits,
        chance=chance,
        is_leaf=False,
    )


def _reclaimable_bytes(space: Space) -> int:
    """What could be freed at most: all that is neither pinned nor before something pinned."""
    total = 0
    staying: set[int] = set()
    for node in reversed(list(space.tree.nodes())):  # children before their parents
        if node.pins or id(node) in staying:
            staying.add(id(node.parent))
        else:
            total += span_bytes(node)
        if node.checkpoint is not None and not node.pins:
            total += node.checkpoint.nbytes
    return total
