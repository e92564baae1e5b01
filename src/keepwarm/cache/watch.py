"""Watching the checkpoints of the trees, and for a while those evicted: what they are, since when
they wait, when they are used. Owned by the thread that owns the trees; holds no arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keepwarm.cache.placement import LASTING, StopKind
from keepwarm.cache.returns import NUM_SIZES, Returns, Role
from keepwarm.cache.tree import Node

# How many are watched on after they went. Of tips nobody would know otherwise what comes back later
# than it is kept; and what was thinned goes on being of no use, as those that are left within a
# conversation mostly are while its end is held.
_NUM_GONE = 4096
# A conversation that comes back to find its end gone goes on from one of the checkpoints before it:
# of about so many, and nobody knows which.
_NUM_BEFORE = 10
_FORGET = 0.998  # of how often that happens, with each that comes back
# Looking through all that is watched costs; so does an old chance. In rankings.
_SETTLE_EVERY = 16

Key = tuple[str, bytes]  # namespace, digest


@dataclass(slots=True)
class Place:
    """A checkpoint as it is watched."""

    role: Role
    since: float  # its age counts from here
    turns: int  # how often the conversation went on before it got here
    size: int  # of the conversation: how often it doubled since it was a short one
    num_uses: int = 0  # in this role, unless it is a tip
    counted_s: float = 0.0  # of its age, what was counted as waiting
    is_counted: bool = True  # not where the tip that was evicted is watched instead

    @property
    def level(self) -> int:
        return self.turns if self.role is Role.TIP else self.num_uses

    @property
    def known_size(self) -> int:
        """Of tips only: what lies within a conversation is all too seldom used."""
        return self.size if self.role is Role.TIP else 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A checkpoint of a prompt, stored or to be stored."""

    space: str
    digest: bytes
    length: int  # tokens of the prompt, as far as the next turn may share them
    is_shared: bool = False  # other conversations start from there
    is_leaf: bool = True  # nothing is held behind it
    passes: Sequence[bytes] = ()  # the ends of messages and the like on the prompt's way
    answers: bytes | None = None  # the end of the prompt that this is the reply to


class Watch:
    """All places that are held, and of those that went the last ones."""

    def __init__(self, spacing: int, short_len: int) -> None:
        """`spacing`: no gap between checkpoints is made wider than that but for want of room.
        `short_len`: conversations of less than twice as many tokens are short ones."""
        self._spacing = spacing
        self._short_len = short_len
        self._returns = Returns()
        self._places: dict[Key, Place] = {}
        self._gone: OrderedDict[Key, Place] = OrderedDict()  # tips, evicted or refused
        self._thinned: OrderedDict[Key, Place] = OrderedDict()
        self._num_rankings = 0
        self._num_returns = 0.0  # of tips, forgetting slowly
        self._num_missed = 0.0  # of those, how many had gone

    def chance(self, space: str, node: Node, now: float) -> float:
        """Uses to be expected for a second of holding this node's checkpoint."""
        place = self._places.get(_key(space, node))
        if place is None:  # rows that no checkpoint ends
            age_s = max(0.0, now - node.last_used)
            return self._returns.chance(Role.TIP, 0, age_s, self._size(node.end))
        age_s = max(0.0, now - max(place.since, _last_seen(place, node)))
        chance = self._returns.chance(place.role, place.level, age_s, place.known_size)
        if place.role in (Role.PREVIOUS, Role.INNER):
            chance *= self._num_covered(node)
            tip_chance = self._returns.chance(Role.TIP, place.turns, age_s, place.size)
            chance += self._missed_share / _NUM_BEFORE * tip_chance
        return chance

    def chance_of_new(self, arrival: Arrival, above: Node | None) -> float:
        """As `chance`, of what is to be stored behind the checkpoint at `above`."""
        if arrival.is_shared:
            return self._returns.chance(Role.SHARED, 0, 0.0)
        if not arrival.is_leaf:
            return self._returns.chance(Role.INNER, 0, 0.0)
        tip, turns = self._tip(arrival.space, above), 0
        if tip is not None and above is not None:
            turns = tip.turns + (_last_seen(tip, above) > tip.since)
        if arrival.answers is not None:
            own = self._gone.get((arrival.space, arrival.answers))
            turns = max(turns, own.turns if own is not None else 0)
        passed = [self._gone.get((arrival.space, digest)) for digest in arrival.passes]
        turns = max([turns, *(gone.turns + 1 for gone in passed if gone is not None)])
        return self._returns.chance(Role.TIP, turns, 0.0, self._size(arrival.length))

    def is_tip(self, space: str, node: Node | None) -> bool:
        """Whether a conversation ends at this checkpoint, and others do not start from it."""
        return self._tip(space, node) is not None

    def _tip(self, space: str, node: Node | None) -> Place | None:
        if node is None or _is_lasting(node):
            return None
        place = self._places.get(_key(space, node))
        return place if place is not None and place.role is Role.TIP else None

    @property
    def misses_any(self) -> bool:
        """Whether any are watched that went."""
        return bool(self._gone)

    def _num_covered(self, node: Node) -> float:
        """For how many checkpoints this one stands. Who parts from the conversation between it
        and the next one goes on from here, and would have found those that went."""
        below = node
        while len(below.children) == 1:
            (below,) = below.children.values()
            if below.checkpoint is not None:
                break
        return max(1.0, (below.end - node.end) / self._spacing)

    def _size(self, num_tokens: int) -> int:
        doublings = max(1, num_tokens // self._short_len).bit_length() - 1
        return min(doublings, NUM_SIZES - 1)

    @property
    def _missed_share(self) -> float:
        """Of the conversations that came back, those whose end had gone."""
        return self._num_missed / (self._num_returns + 1)

    def before_ranking(self, now: float) -> None:
        """Chances are asked for next. Mutates the counts."""
        self._num_rankings += 1
        if self._num_rankings % _SETTLE_EVERY == 1:
            for places in (self._places, self._gone, self._thinned):
                for place in places.values():
                    self._wait(place, now)
            self._returns.settle()

    # What happens to a tree

    def inserted(self, arrival: Arrival, node: Node) -> None:
        """There is a checkpoint at `node`, now. Mutates."""
        space, now, key = arrival.space, node.last_used, (arrival.space, arrival.digest)
        for step in node.path()[:-1]:
            self._look(space, step)
        above = nearest(node)
        before = self._places.get(_key(space, above)) if above is not None else None
        tip = self._tip(space, above)
        self._thinned.pop(key, None)
        if node.children:  # the rest of the prompt comes later, and goes on where it ended
            arrival = replace(arrival, passes=(), answers=None)
        turns = max(tip.turns if tip is not None else 0, self._came_back(arrival, now))
        if key in self._places:
            return
        size = self._size(arrival.length)
        if node.children:
            self._places[key] = Place(_inner_role(node, Role.INNER), now, turns, size)
            return
        self._places[key] = Place(Role.TIP, now, turns, size)
        if above is None or before is None:
            return
        if before.role is Role.TIP:
            self._set_role(before, _inner_role(above, Role.PREVIOUS), now)
            further = nearest(above)
            if further is not None:
                self._demote(space, further, now)
        else:
            self._promote(space, above, now)

    def refused(self, arrival: Arrival, above: Node | None, now: float) -> None:
        """A conversation was read to its end, and that was not stored: as if it had been, and had
        gone at once. The nearest checkpoint that is held is `above`. Mutates."""
        for step in above.path() if above is not None else []:
            self._look(arrival.space, step)
        tip = self._tip(arrival.space, above)
        turns = max(tip.turns if tip is not None else 0, self._came_back(arrival, now))
        gone = Place(Role.TIP, now, turns, self._size(arrival.length))
        self._let_go(self._gone, (arrival.space, arrival.digest), gone)
        if tip is not None:
            self._stand_in(tip, gone, now)

    def _came_back(self, arrival: Arrival, now: float) -> int:
        """Count the ends of the conversation that had gone; returns how often it went on. Mutates."""
        turns = 0
        if arrival.answers is not None:
            gone = self._gone.pop((arrival.space, arrival.answers), None)
            turns = gone.turns if gone is not None else 0
        for digest in dict.fromkeys([*arrival.passes, arrival.digest]):
            gone = self._gone.pop((arrival.space, digest), None)
            if gone is not None:
                self._use(gone, now)
                self._num_missed += 1
                turns = max(turns, gone.turns)
        return turns

    def evicted(self, space: str, node: Node, now: float) -> None:
        """The checkpoint of `node` is about to go for want of room. Mutates."""
        place = self._places.pop(_key(space, node), None)
        above = nearest(node)
        if place is None:
            return
        if place.role is Role.TIP and place.is_counted:
            self._let_go(self._gone, _key(space, node), place)
        elif place.is_counted:
            self._wait(place, now)
        if above is None:
            return
        if not node.children and _is_only_end(above, node):
            self._end_again(space, above, place, now)
        elif place.role is Role.PREVIOUS:
            self._promote(space, above, now)

    def thinned(self, space: str, node: Node) -> None:
        """The checkpoint of `node` is about to go, for it lies close to others. Mutates."""
        key = _key(space, node)
        place = self._places.pop(key, None)
        if place is not None and place.is_counted:
            self._let_go(self._thinned, key, place)

    def _let_go(self, gone: OrderedDict[Key, Place], key: Key, place: Place) -> None:
        gone[key] = place
        if len(gone) > _NUM_GONE:
            gone.popitem(last=False)

    def forget(self, space: str, node: Node) -> None:
        """The checkpoint of `node` is no more. Mutates."""
        self._places.pop(_key(space, node), None)

    # Roles

    def _end_again(self, space: str, node: Node, tip: Place, now: float) -> None:
        """The conversation whose tip goes ends at `node` now."""
        place = self._places.get(_key(space, node))
        if place is None or _is_lasting(node):
            return
        self._stand_in(place, tip, now)
        further = nearest(node)
        if further is not None:
            self._promote(space, further, now)

    def _stand_in(self, place: Place, tip: Place, now: float) -> None:
        """A place is the tip now in place of one that goes, which is watched instead."""
        if place.is_counted:
            self._wait(place, now)
        place.role, place.turns, place.size, place.since = Role.TIP, tip.turns, tip.size, tip.since
        place.counted_s, place.is_counted = 0.0, False

    def _promote(self, space: str, node: Node, now: float) -> None:
        place = self._places.get(_key(space, node))
        if place is not None and place.role is not Role.TIP:
            self._change(place, _inner_role(node, Role.PREVIOUS), now)

    def _demote(self, space: str, node: Node, now: float) -> None:
        place = self._places.get(_key(space, node))
        if place is not None and place.role is Role.PREVIOUS:
            self._change(place, _inner_role(node, Role.INNER), now)

    def _change(self, place: Place, role: Role, now: float) -> None:
        if place.role is not role:
            self._wait(place, now)
            place.role = role

    def _set_role(self, place: Place, role: Role, now: float) -> None:
        """No tip any more."""
        self._wait(place, now)
        place.role, place.since, place.num_uses = role, now, 0
        place.counted_s, place.is_counted = 0.0, True

    # Counting

    def _look(self, space: str, node: Node) -> None:
        """Take notice of uses since the last look."""
        place = self._places.get(_key(space, node))
        if place is None or node.checkpoint is None:
            return
        seen = _last_seen(place, node)
        if place.role is Role.TIP or node.checkpoint.last_used > place.since:
            if seen > place.since:
                self._use(place, seen)
        elif seen > place.since:
            self._wait(place, seen)
            place.since, place.counted_s = seen, 0.0

    def _use(self, place: Place, now: float) -> None:
        self._wait(place, now)
        if place.is_counted:
            age_s = now - place.since
            self._returns.used(place.role, place.level, age_s, place.known_size)
            if place.role is Role.TIP:
                self._num_returns = _FORGET * self._num_returns + 1
                self._num_missed *= _FORGET
        if place.role is Role.TIP:
            place.turns += 1
        else:
            place.num_uses += 1
        place.since, place.counted_s = now, 0.0

    def _wait(self, place: Place, now: float) -> None:
        """It waited until `now`."""
        age_s = now - place.since
        if place.is_counted and age_s > place.counted_s:
            self._returns.waited(place.role, place.level, place.counted_s, age_s, place.known_size)
            place.counted_s = age_s


def _last_seen(place: Place, node: Node) -> float:
    """When its age last began anew: for what others share when it was used, for the rest when
    the conversation was last heard of."""
    used = node.checkpoint.last_used if node.checkpoint is not None else 0.0
    return used if place.role is Role.SHARED else max(used, node.last_used)


def nearest(node: Node) -> Node | None:
    """The next node above that has a checkpoint."""
    above = node.parent
    while above is not None and above.checkpoint is None:
        above = above.parent
    return above


def _is_only_end(above: Node, leaf: Node) -> bool:
    """Whether nothing but `leaf` hangs on `above`."""
    node: Node | None = leaf
    while node is not above:
        assert node is not None
        node = node.parent
        if node is not None and len(node.children) > 1:
            return False
    return True


def _inner_role(node: Node, otherwise: Role) -> Role:
    assert node.checkpoint is not None
    return Role.SHARED if len(node.children) > 1 or _is_lasting(node) else otherwise


def _is_lasting(node: Node) -> bool:
    """Whether other conversations start from there, whoever was there first."""
    return node.checkpoint is not None and StopKind(node.checkpoint.kind) in LASTING


def _key(space: str, node: Node) -> Key:
    return space, node.checkpoint.digest if node.checkpoint is not None else b""
