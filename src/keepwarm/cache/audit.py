"""`check()`: every link, position, hash and total of the cache, recomputed from scratch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keepwarm.cache.blocks import has_rows, held, nbytes_of
from keepwarm.cache.ends import End
from keepwarm.cache.ledger import Ledger
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Node
from keepwarm.errors import Corrupt
from keepwarm.prompt.boundaries import PrefixHasher


def audit(spaces: Sequence[Space], end: End | None, ledger: Ledger) -> None:
    """Raises Corrupt, naming the first thing that does not hold. Changes nothing."""
    uses: dict[Block, int] = {}
    snapshot_bytes = rows_bytes = 0
    if end is not None:
        _check_end(end)
        snapshot_bytes, rows_bytes = end.checkpoint.nbytes, end.rows_bytes
    for space in spaces:
        for node in space.tree.nodes():
            _check_links(node)
            _check_spans(space, node, uses)
            snapshot_bytes += _check_checkpoint(space, node)
        if not space.exact:  # exact keys are hashed chunk by chunk: the tokens are not in them
            _check_digests(space)
    for block, num_spans in uses.items():
        _expect(block.num_spans == num_spans, f"{num_spans} spans use a block that says otherwise")
        _expect(has_rows(block), "a block of other rows than it says")
        _expect(nbytes_of(block.arrays) == block.nbytes, "a block weighs something else")
    rows_bytes += sum(block.nbytes for block in uses)
    _expect(rows_bytes == ledger.rows_bytes, f"{rows_bytes} bytes of rows, not as in the ledger")
    _expect(snapshot_bytes == ledger.snapshot_bytes, f"{snapshot_bytes} bytes of snapshots")
    _expect(ledger.held_bytes <= ledger.budget_bytes, "the budget is passed")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise Corrupt(what)


def _check_end(end: End) -> None:
    """What can be said of it without its prompt. Whether it follows what is in the tree, is looked
    at when it is matched."""
    checkpoint = end.checkpoint
    _expect(0 < end.anchor < checkpoint.position, "the last end lies before what it follows")
    _expect(bool(checkpoint.snapshots), "the last end has no snapshots")
    nbytes = sum(a.nbytes for s in checkpoint.snapshots.values() for a in s.arrays)
    _expect(nbytes == checkpoint.nbytes, f"the snapshots of the last end weigh {nbytes}")
    for block in (block for blocks in end.blocks for block in blocks):
        _expect(end.anchor <= block.lo < block.hi <= checkpoint.position, "its rows lie elsewhere")
        _expect(has_rows(block), "a block of the last end has other rows than it says")
        _expect(nbytes_of(block.arrays) == block.nbytes, "a block of the last end weighs otherwise")


def _check_links(node: Node) -> None:
    parent = node.parent
    _expect(parent is not None and parent.end == node.start, f"{node} does not follow its parent")
    assert parent is not None
    _expect(bool(node.label), f"{node} has no tokens")
    _expect(parent.children.get(node.label[: node.width]) is node, f"{node} is filed elsewhere")
    _expect(all(0 < p <= node.end for p in node.holds), f"{node}: a pin beyond its end")


def _check_spans(space: Space, node: Node, uses: dict[Block, int]) -> None:
    for index, spans in enumerate(node.spans):
        at = node.start
        for span in spans:
            _expect(at <= span.lo < span.hi <= node.end, f"{node}: rows out of place")
            _expect(span.block.lo <= span.lo and span.hi <= span.block.hi, f"{node}: rows gone")
            _expect(span.block.origin <= span.block.lo, f"{node}: a block before its origin")
            at = span.hi
            uses[span.block] = uses.get(span.block, 0) + 1
        if not space.layout.groups[index].is_window:
            _expect(held(spans) == [(node.start, node.end)], f"{node}: full rows have a gap")


def _check_checkpoint(space: Space, node: Node) -> int:
    """The bytes of the node's snapshots."""
    checkpoint = node.checkpoint
    if checkpoint is None:
        return 0
    _expect(checkpoint.position == node.end, f"{node}: a checkpoint of {checkpoint.position}")
    path = node.path()
    for index, group in enumerate(space.layout.groups):
        rows = held(spans_of(path, index))
        _expect(group.state.can_restore(node.end, rows), f"{node} cannot be restored")
    snapshots = checkpoint.snapshots
    _expect(tuple(snapshots) == space.layout.whole, f"{node}: a snapshot is missing")
    nbytes: int = sum(a.nbytes for snapshot in snapshots.values() for a in snapshot.arrays)
    _expect(nbytes == checkpoint.nbytes, f"{node}: its snapshots weigh {nbytes}")
    return nbytes


def _check_digests(space: Space) -> None:
    """Hash the tokens of every path again and compare with what the states carry."""
    stack: list[tuple[Node, PrefixHasher]] = [
        (node, PrefixHasher()) for node in space.tree.root.children.values()
    ]
    while stack:
        node, before = stack.pop()
        after = before.copy()
        marks = {s.block.origin: s.block.digest for g in node.spans for s in g}
        for origin in sorted(o for o in marks if node.start <= o < node.end):
            _feed(after, node, origin)
            _expect(after.digest() == marks[origin], f"{node}: rows of another prompt")
        _feed(after, node, node.end)
        if node.checkpoint is not None:
            _expect(after.digest() == node.checkpoint.digest, f"{node}: another prompt's state")
        stack.extend((child, after) for child in node.children.values())


def _feed(hasher: PrefixHasher, node: Node, upto: int) -> None:
    tokens = np.frombuffer(node.label, dtype="<i4")
    hasher.update(tokens[hasher.position - node.start : upto - node.start])
