"""A compressed radix tree over token ids, with rows on its edges and checkpoints at its nodes.

A node stands for the edge that leads to it: the keys of positions `start ... end - 1`. It may
carry a checkpoint, which always belongs to position `end`. Keys are bytes of a fixed width, so
that whole edges are compared by memory comparison. No mlx, no policy, no bytes counted here.

             root (0) ── "You are ..." ──▶ (412)* ── "Hello" ──▶ (430)*
                                              └───── "Bonjour" ▶ (433)*      * checkpoint

A split never moves rows: both halves refer to the same block. It leaves the object of the lower
half in place, so that a pin or a checkpoint stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class Block:
    """Rows of some leaves for positions `lo ... hi - 1`, stored once, shared by reference.

    `origin` and `digest` prove where it belongs: it was cut on a path whose first `origin`
    tokens have this hash. `lo` may move past `origin` when rows in front are dropped.
    """

    __slots__ = ("arrays", "digest", "hi", "lo", "nbytes", "num_spans", "origin")

    def __init__(self, lo: int, hi: int, arrays: Any, nbytes: int, digest: bytes) -> None:
        self.origin = lo
        self.digest = digest
        self.lo = lo
        self.hi = hi
        self.arrays = arrays  # per leaf a tuple of arrays; opaque here
        self.nbytes = nbytes
        self.num_spans = 0  # how many spans of the tree refer to it

    def bytes_of(self, num_rows: int) -> int:
        """What that many of its rows weigh."""
        return self.nbytes * num_rows // (self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class Span:
    """The part `lo ... hi - 1` of a block."""

    block: Block
    lo: int
    hi: int


class Checkpoint:
    """Where every layer can be restored: snapshots at one position, with proof of the place."""

    __slots__ = (
        "created",
        "digest",
        "hits",
        "kind",
        "last_used",
        "nbytes",
        "position",
        "snapshots",
    )

    def __init__(
        self, position: int, digest: bytes, kind: str, snapshots: Any, nbytes: int, now: float
    ) -> None:
        self.position = position
        self.digest = digest
        self.kind = kind
        self.snapshots = snapshots  # by leaf; opaque here
        self.nbytes = nbytes
        self.created = now
        self.last_used = now
        self.hits = 0


class Node:
    """One edge of the tree and the place it leads to."""

    __slots__ = (
        "checkpoint",
        "children",
        "hits",
        "holds",
        "label",
        "last_used",
        "parent",
        "spans",
        "start",
        "width",
    )

    def __init__(self, label: bytes, start: int, parent: Node | None, width: int) -> None:
        self.label = label
        self.start = start
        self.parent = parent
        self.width = width
        self.children: dict[bytes, Node] = {}
        self.spans: tuple[list[Span], ...] = ()  # one list for each group of leaves
        self.checkpoint: Checkpoint | None = None
        self.holds: list[int] = []  # the pinned positions of this edge
        self.last_used = 0.0
        self.hits = 0

    @property
    def end(self) -> int:
        return self.start + len(self.label) // self.width

    @property
    def pins(self) -> int:
        """How many hold this place; it and all before it stay."""
        return len(self.holds)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def use(self, position: int, now: float) -> None:
        """A hit at `position`, on this edge, refreshes what it consumed, and nothing else."""
        for step in self.path():
            step.last_used = now
        self.hits += 1
        if self.checkpoint is not None and self.end == position:
            self.checkpoint.last_used = now
            self.checkpoint.hits += 1

    def let_go(self) -> None:
        """Off the tree it holds nothing, whoever still knows the node. Mutates."""
        self.spans, self.checkpoint = (), None

    def __repr__(self) -> str:
        mark = "*" if self.checkpoint else ""
        return f"Node({self.start}..{self.end}{mark}, {len(self.children)} children)"


@dataclass(frozen=True, slots=True)
class Walk:
    """How far some keys lead into the tree.

    `path` holds every node they enter; the last one may be entered in part only.
    """

    path: list[Node]
    matched: int

    @property
    def is_inside(self) -> bool:
        """Whether the walk ended inside an edge."""
        return bool(self.path) and self.path[-1].end > self.matched

    def until(self, position: int) -> list[Node]:
        """The path up to the edge that `position` lies on."""
        return [node for node in self.path if node.start < position]


class Tree:
    """The radix tree of one namespace."""

    def __init__(self, width: int, num_groups: int) -> None:
        self.width = width
        self.num_groups = num_groups
        self.root = Node(b"", 0, None, width)

    def walk(self, keys: bytes) -> Walk:
        """Follow `keys` as far as they go. Changes nothing."""
        width, end = self.width, len(keys)
        node, at, path = self.root, 0, []
        while at < end:
            child = node.children.get(keys[at : at + width])
            if child is None:
                break
            path.append(child)
            label = child.label
            if keys[at : at + len(label)] != label:
                at += common_len(label, keys[at : at + len(label)], width)
                break
            at += len(label)
            node = child
        return Walk(path, at // width)

    def append(self, parent: Node, keys: bytes) -> Node:
        """A new leaf below `parent`. Mutates."""
        node = Node(keys, parent.end, parent, self.width)
        node.spans = tuple([] for _ in range(self.num_groups))
        parent.children[keys[: self.width]] = node
        return node

    def split(self, node: Node, position: int) -> Node:
        """Cut the edge of `node` at `position`; returns the new upper half. Mutates.

        `node` stays the lower half, with its checkpoint, pins and children.
        """
        assert node.parent is not None and node.start < position < node.end
        at = (position - node.start) * self.width
        upper = Node(node.label[:at], node.start, node.parent, self.width)
        upper.last_used, upper.hits = node.last_used, node.hits
        node.parent.children[upper.label[: self.width]] = upper
        node.label, node.start, node.parent = node.label[at:], position, upper
        upper.children[node.label[: self.width]] = node
        halves = [split_spans(spans, position) for spans in node.spans]
        upper.spans = tuple(left for left, _ in halves)
        node.spans = tuple(right for _, right in halves)
        return upper

    def join(self, node: Node) -> None:
        """Undo a split: `node` takes the edge of its parent, which has no other use. Mutates."""
        upper = node.parent
        assert upper is not None and upper.parent is not None
        assert len(upper.children) == 1 and upper.checkpoint is None and not upper.pins
        upper.parent.children[upper.label[: self.width]] = node
        node.label, node.start, node.parent = upper.label + node.label, upper.start, upper.parent
        node.spans = tuple(
            join_spans(above, below) for above, below in zip(upper.spans, node.spans, strict=True)
        )
        upper.let_go()

    def remove(self, node: Node) -> None:
        """Take a leaf off the tree. Mutates; the node's spans are the caller's to release."""
        assert node.parent is not None and not node.children and not node.pins
        del node.parent.children[node.label[: self.width]]

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        for top in self.root.children.values():
            yield from subtree(top)


def subtree(node: Node) -> Iterator[Node]:
    """A node and all below it, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def users(node: Node, block: Block) -> Iterator[Span]:
    """The spans that refer to `block`, one of whose edges is `node` or lies next to it."""
    while node.parent is not None and node.start > block.lo:
        node = node.parent
    stack = [node]
    while stack:
        at = stack.pop()
        for spans in at.spans:
            yield from (span for span in spans if span.block is block)
        stack.extend(child for child in at.children.values() if child.start < block.hi)


def common_len(a: bytes, b: bytes, width: int) -> int:
    """The length in bytes, a multiple of `width`, of what `a` and `b` have in common."""
    lo, hi = 0, min(len(a), len(b)) // width  # equal up to lo keys, perhaps up to hi
    while lo < hi:
        middle = (lo + hi + 1) // 2
        if a[lo * width : middle * width] == b[lo * width : middle * width]:
            lo = middle
        else:
            hi = middle - 1
    return lo * width


def split_spans(spans: list[Span], position: int) -> tuple[list[Span], list[Span]]:
    """The spans before and after `position`; one that lies across becomes two of one block."""
    before, after = [], []
    for span in spans:
        if span.hi <= position:
            before.append(span)
        elif span.lo >= position:
            after.append(span)
        else:
            before.append(Span(span.block, span.lo, position))
            after.append(Span(span.block, position, span.hi))
            span.block.num_spans += 1
    return before, after


def join_spans(above: list[Span], below: list[Span]) -> list[Span]:
    """The spans of two neighbouring edges; two halves of one block become one span again."""
    if above and below and above[-1].block is below[0].block and above[-1].hi == below[0].lo:
        first, second = above[-1], below[0]
        first.block.num_spans -= 1
        return [*above[:-1], Span(first.block, first.lo, second.hi), *below[1:]]
    return above + below
