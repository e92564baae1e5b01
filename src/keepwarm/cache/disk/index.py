"""The second tree: files in place of arrays. Made from the headers of the files, so that nothing
else has to be true. No mlx; the thread that made it, then the one that owns the RAM tree.

For layouts with rows of full attention every edge is covered by files of rows, and a checkpoint is
a file of state. For others a file of state brings all keys of its path, and nothing else is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from keepwarm.cache.disk.format import FileKind, Header
from keepwarm.cache.placement import Placement, Stop, StopKind
from keepwarm.cache.tree import Block, Checkpoint, Node, Span, Tree, Walk, subtree


@dataclass(slots=True, eq=False)
class File:
    """A file that was written or found; its header is kept without the keys, which are in the
    tree."""

    header: Header
    nbytes: int  # header and payload
    used: float  # wall clock

    @property
    def name(self) -> str:
        return self.header.name


@dataclass(frozen=True, slots=True)
class Use:
    """A file that is to be read, of which the positions before `hi` lie on the path; behind that a
    file of rows may belong to another prompt."""

    file: File
    hi: int


@dataclass(frozen=True, slots=True)
class Found:
    """A position that files lead to, and those that are to be read for it, in order."""

    position: int
    uses: tuple[Use, ...]
    stop: str  # the kind of the checkpoint there; empty where there is none

    @property
    def nbytes(self) -> int:
        return sum(use.file.nbytes for use in self.uses)

    @property
    def names(self) -> set[str]:
        return {use.file.name for use in self.uses}


class Index:
    """The files of one namespace."""

    def __init__(self, width: int, *, has_rows: bool, needs_state: bool) -> None:
        """`needs_state`: a position between checkpoints cannot be restored."""
        self.tree = Tree(width, int(has_rows))
        self.files: dict[str, File] = {}
        self._has_rows = has_rows
        self._needs_state = needs_state
        self._blocks: dict[str, Block] = {}
        self._states: dict[str, Node] = {}

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files.values())

    # Finding. Changes nothing.

    def find(self, keys: bytes, limit: int, num_rows: int) -> Found | None:
        """The deepest position at or before `limit`, with the files for it; those of the first
        `num_rows` rows are there already."""
        walk = self.tree.walk(keys)
        if not self._needs_state:
            position = min(limit, walk.matched)
            path = walk.until(position)
            state: list[Use] = []
            at_end = path and path[-1].end == position and path[-1].checkpoint
            stop = at_end.kind if at_end else ""
        else:
            found = self.deepest_state(walk, limit)
            if found is None or found.checkpoint is None:
                return None
            position, path = found.end, found.path()
            state, stop = [Use(found.checkpoint.snapshots, position)], found.checkpoint.kind
        if not position:
            return None
        ends: dict[Block, int] = {}
        for span in (span for node in path for span in _spans(node)):
            if num_rows < span.hi and span.lo < position:
                ends[span.block] = min(span.hi, position)
        rows = [Use(block.arrays, hi) for block, hi in ends.items()]
        return Found(position, (*rows, *state), stop)

    def deepest_state(self, walk: Walk, limit: int) -> Node | None:
        """The last node on the way with a state that can be restored."""
        for node in reversed(walk.path):
            if node.checkpoint is not None and node.end <= min(limit, walk.matched):
                return node
        return None

    def durable_len(self, keys: bytes) -> int:
        """How far a restart would find a prompt with these keys."""
        found = self.find(keys, len(keys) // self.tree.width, 0)
        return found.position if found is not None else 0

    def rows_len(self, keys: bytes) -> int:
        """How many rows of that path there are."""
        return self.tree.walk(keys).matched if self._has_rows else 0

    def parent_of(self, keys: bytes, position: int) -> str | None:
        """The file that holds the row before `position`."""
        if not position or not self._has_rows:
            return None
        path = self.tree.walk(keys).until(position)
        spans = [span for span in path[-1].spans[0] if span.lo < position]
        file: File = spans[-1].block.arrays
        return file.name

    # Adding

    def add(self, file: File, path_keys: bytes) -> bool:
        """`path_keys` are all up to the file's end. False, and nothing changed, when it has no
        place: what it follows is not there, or what it holds is. Mutates."""
        header = file.header
        walk = self.tree.walk(path_keys)
        if header.kind is FileKind.ROWS:
            if not self._has_rows or walk.matched != header.lo:
                return False
            node = walk.path[-1] if walk.path else self.tree.root
            keys = path_keys[header.lo * self.tree.width :]
            return self._append_rows(node, file, keys) is not None
        if self._has_rows and walk.matched != header.hi:
            return False
        node = walk.path[-1] if walk.path else self.tree.root
        if walk.is_inside:
            node = self.tree.split(node, walk.matched)
        if walk.matched < header.hi:
            node = self.tree.append(node, path_keys[walk.matched * self.tree.width :])
        return self._set_state(node, file)

    def _append_rows(self, node: Node, file: File, keys: bytes) -> Node | None:
        """A leaf below the place `file.header.lo` on the edge of `node`; None where something is
        already. Mutates."""
        header = file.header
        if not keys:
            return None
        if node.end > header.lo:
            at = (header.lo - node.start) * node.width
            if node.label[at : at + node.width] == keys[: node.width]:
                return None
            node = self.tree.split(node, header.lo)
        if keys[: node.width] in node.children:
            return None
        block = Block(header.lo, header.hi, file, file.nbytes, b"")
        block.num_spans = 1
        leaf = self.tree.append(node, keys)
        leaf.spans[0].append(Span(block, header.lo, header.hi))
        leaf.last_used = file.used
        self._blocks[file.name] = block
        self.files[file.name] = _without_keys(file)
        block.arrays = self.files[file.name]
        if header.stop and not self._needs_state:
            leaf.checkpoint = Checkpoint(header.hi, b"", header.stop, None, 0, file.used)
        return leaf

    def _set_state(self, node: Node, file: File) -> bool:
        if node.is_root or node.checkpoint is not None:
            return False
        header, kept = file.header, _without_keys(file)
        node.checkpoint = Checkpoint(header.hi, b"", header.stop, kept, file.nbytes, file.used)
        node.last_used = max(node.last_used, file.used)
        self.files[file.name] = kept
        self._states[file.name] = node
        return True

    @classmethod
    def build(
        cls, files: Iterable[File], width: int, *, has_rows: bool, needs_state: bool
    ) -> tuple[Index, list[File]]:
        """The index of these files, whose headers have their keys, and those that have no place in
        it."""
        index = cls(width, has_rows=has_rows, needs_state=needs_state)
        placed: dict[str, _Placed] = {}
        lost: list[File] = []
        for file in sorted(files, key=lambda f: (f.header.kind, f.header.lo, f.header.hi)):
            if not index._place(file, placed):
                lost.append(file)
        return index, lost

    def _place(self, file: File, placed: dict[str, _Placed]) -> bool:
        header = file.header
        if header.width != self.tree.width:
            return False
        if header.parent is None:
            if header.lo or (self._has_rows and header.kind is FileKind.STATE):
                return False
            before, node = hashlib.blake2b(digest_size=16), self.tree.root
        else:
            above = placed.get(header.parent)
            if above is None or not above.lo < header.lo <= above.hi:
                return False
            before = above.before.copy()
            before.update(above.keys[: (header.lo - above.lo) * header.width])
            node = self._edge_at(above, header.lo)
        after = before.copy()
        after.update(header.keys)
        if before.hexdigest() != header.before or after.hexdigest() != header.after:
            return False
        if header.kind is FileKind.STATE:
            return self._place_state(node, file)
        leaf = self._append_rows(node, file, header.keys)
        if leaf is None:
            return False
        placed[file.name] = _Placed(header.lo, header.hi, header.keys, before, leaf)
        return True

    def _edge_at(self, above: _Placed, position: int) -> Node:
        """The edge that holds the key before `position`. Splits made since leave the lower half in
        place."""
        node = above.leaf
        while node.start >= position and node.parent is not None:
            node = node.parent
        return node

    def _place_state(self, node: Node, file: File) -> bool:
        if not self._has_rows:
            return self.add(file, file.header.keys)
        if node.end > file.header.hi:
            node = self.tree.split(node, file.header.hi)
        return node.end == file.header.hi and self._set_state(node, file)

    # Dropping. Each returns what is to be deleted, in that order.

    def drop_file(self, name: str) -> list[File]:
        """It cannot be used, and so neither can what hangs on it. Mutates."""
        if name not in self.files:
            return []
        if name in self._states:
            node = self._states[name]
            return [*self._drop_state(node), *self._prune(node)]
        block = self._blocks[name]
        tops = [n for n in self.tree.nodes() if any(s.block is block for s in _spans(n))]
        top = min(tops, key=lambda node: node.start)
        above = top.parent
        dropped: list[File] = []
        for node in reversed(list(subtree(top))):
            dropped += self._take_off(node)
        return dropped + (self._prune(above) if above is not None else [])

    def drop_leaf(self, leaf: Node) -> list[File]:
        """Mutates."""
        above, dropped = leaf.parent, self._take_off(leaf)
        return dropped + (self._prune(above) if above is not None else [])

    def drop_superseded(self, tip: Node, placement: Placement) -> list[File]:
        """There is a new state at `tip`: those before it that are not worth their place. Mutates."""
        marked = {node.end: node for node in tip.path() if node.checkpoint is not None}
        rows_bytes = sum(
            span.block.bytes_of(span.hi - span.lo) for node in tip.path() for span in _spans(node)
        )
        if not self._needs_state or tip.checkpoint is None:
            return []
        stops = [Stop(position, _standing(node)) for position, node in marked.items()]
        most = 2 * placement.prefill_step
        state_bytes = tip.checkpoint.nbytes
        spacing = min(most, state_bytes * tip.end // rows_bytes) if rows_bytes else 0
        dropped: list[File] = []
        for stop in placement.superfluous_at_rest(stops, spacing):
            dropped += self._drop_state(marked[stop.position])
        return dropped

    def leaves(self) -> list[Node]:
        """What could go, the one used last at the end."""
        found = [node for node in self.tree.nodes() if not node.children]
        return sorted(found, key=lambda node: node.last_used)

    def use(self, keys: bytes, position: int, now: float) -> list[str]:
        """It was read: the files of its path count as used. Mutates."""
        names = []
        for node in self.tree.walk(keys).until(position):
            node.last_used = max(node.last_used, now)
            files = [span.block.arrays for span in _spans(node)]
            if node.checkpoint is not None and node.checkpoint.snapshots is not None:
                files.append(node.checkpoint.snapshots)
            for file in files:
                file.used = max(file.used, now)
                names.append(file.name)
        return list(dict.fromkeys(names))

    def _drop_state(self, node: Node) -> list[File]:
        checkpoint, node.checkpoint = node.checkpoint, None
        if checkpoint is None or checkpoint.snapshots is None:
            return []
        file: File = checkpoint.snapshots
        del self._states[file.name]
        return [self.files.pop(file.name)]

    def _take_off(self, leaf: Node) -> list[File]:
        dropped = self._drop_state(leaf)
        self.tree.remove(leaf)
        for span in _spans(leaf):
            span.block.num_spans -= 1
            if not span.block.num_spans:
                file: File = span.block.arrays
                del self._blocks[file.name]
                dropped.append(self.files.pop(file.name))
        leaf.let_go()
        return dropped

    def _prune(self, node: Node) -> list[File]:
        """Drop what nothing leads to any more, from `node` upwards."""
        dropped: list[File] = []
        while node.parent is not None and not node.children and node.checkpoint is None:
            if not self._needs_state and any(_spans(node)):
                break
            above = node.parent
            dropped += self._take_off(node)
            node = above
        return dropped

    def check(self) -> None:
        """Raises AssertionError when something does not hold."""
        blocks: dict[Block, int] = {}
        for node in self.tree.nodes():
            at = node.start
            for span in _spans(node):
                assert span.lo == at, node
                at = span.hi
                blocks[span.block] = blocks.get(span.block, 0) + 1
            assert not self._has_rows or at == node.end, node
        assert all(block.num_spans == count for block, count in blocks.items())
        names = {block.arrays.name for block in blocks} | set(self._states)
        assert names == set(self.files)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A file of rows while the index is built."""

    lo: int
    hi: int
    keys: bytes
    before: hashlib.blake2b  # fed with all keys before `lo`
    leaf: Node


def _without_keys(file: File) -> File:
    return File(replace(file.header, keys=b""), file.nbytes, file.used)


def _spans(node: Node) -> list[Span]:
    return [span for spans in node.spans for span in spans]


def _standing(node: Node) -> StopKind:
    """The kind of a checkpoint; where several paths part it counts as a branch."""
    assert node.checkpoint is not None
    if len(node.children) > 1:
        return StopKind.BRANCH
    return StopKind(node.checkpoint.kind)


def pieces(lo: int, hi: int, ends: Sequence[int], max_len: int) -> list[tuple[int, int]]:
    """`lo ... hi - 1` in pieces of at most `max_len`, cut at each of `ends` that lies within."""
    cuts = [lo, *sorted(end for end in ends if lo < end < hi), hi]
    found: list[tuple[int, int]] = []
    for start, end in pairwise(cuts):
        found += [(at, min(at + max_len, end)) for at in range(start, end, max_len)]
    return found
