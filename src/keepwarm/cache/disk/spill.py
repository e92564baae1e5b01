"""What of the RAM tree is to be written, as files of which nothing is missing yet. The thread that
owns the arrays; of these only views go on from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import mlx.core as mx

from keepwarm.cache.disk.format import SUM_BYTES, ArraySpec, FileKind, Header, Part, digest_of
from keepwarm.cache.disk.index import Index, pieces
from keepwarm.cache.disk.store import Put, Slice
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Node
from keepwarm.errors import CacheFault
from keepwarm.state.registry import Group, Layout


@dataclass(frozen=True, slots=True)
class Where:
    """What all files of one namespace have in common."""

    identity: str
    space: str  # the namespace, hashed


@dataclass(slots=True)
class Draft:
    """A file to be written, and the arrays that its views are of."""

    put: Put
    nbytes: int  # of its arrays
    path_keys: bytes  # up to its end
    held: list[mx.array]

    @property
    def file_bytes(self) -> int:
        """What the file takes at most."""
        header = self.put.header
        sums = self.nbytes // SUM_BYTES + 1
        return self.nbytes + len(header.keys) + 16 * sums + 1024 + 256 * (1 + len(header.specs))


def full_group(layout: Layout) -> Group | None:
    """The leaves that keep every row."""
    first = layout.groups[0] if layout.groups else None
    return first if first is not None and not first.is_window else None


def keys_to(node: Node) -> bytes:
    return b"".join(step.label for step in node.path())


class Spill:
    """One path of a RAM tree, up to `node`, as files."""

    def __init__(self, space: Space, node: Node, where: Where, max_len: int) -> None:
        """No file has more than `max_len` rows."""
        self._space = space
        self._node = node
        self._where = where
        self._max_len = max_len
        self._path = node.path()
        self._keys = keys_to(node)
        self._group = full_group(space.layout)

    def drafts(self, index: Index) -> Iterator[Draft]:
        """The files that `index` lacks, in the order in which they have to be written. Raises
        CacheFault for a state that no file can hold."""
        parent = None
        if self._group is not None:
            lo = index.rows_len(self._keys)
            parent = index.parent_of(self._keys, lo)
            ends = [node.end for node in self._path]
            for piece in pieces(lo, self._node.end, ends, self._max_len):
                draft = self._rows(*piece, parent)
                parent = draft.put.header.name
                yield draft
        needs_state = not self._space.can_cut or bool(self._space.window_groups)
        has_state = index.durable_len(self._keys) == self._node.end
        if needs_state and not has_state and self._node.checkpoint is not None:
            yield self._state(parent)

    def _header(
        self, kind: FileKind, lo: int, hi: int, parent: str | None, parts: list[Part], stop: str
    ) -> Header:
        width = self._space.tree.width
        start, end = lo * width, hi * width
        return Header(
            kind, self._where.identity, self._where.space, lo, hi,
            digest_of(memoryview(self._keys)[:start]), digest_of(memoryview(self._keys)[:end]),
            parent, stop, time(), width, tuple(parts), self._keys[start:end],
        )  # fmt: skip

    def _draft(self, header: Header, arrays: Sequence[_Cut]) -> Draft:
        put = Put(header, tuple(tuple(_slice_of(*piece) for piece in array) for array in arrays))
        held = [piece[0] for array in arrays for piece in array]
        upto = self._keys[: header.hi * header.width]
        return Draft(put, header.payload_bytes, upto, held)

    def _rows(self, lo: int, hi: int, parent: str | None) -> Draft:
        assert self._group is not None
        parts, arrays = self._cut(0, self._group, lo, hi)
        at_end = [n.checkpoint.kind for n in self._path if n.end == hi and n.checkpoint is not None]
        stop = str(at_end[0]) if at_end else ""
        return self._draft(self._header(FileKind.ROWS, lo, hi, parent, parts, stop), arrays)

    def _state(self, parent: str | None) -> Draft:
        layout, checkpoint = self._space.layout, self._node.checkpoint
        assert checkpoint is not None
        position = checkpoint.position
        parts: list[Part] = []
        arrays: list[_Cut] = []
        for index in self._space.window_groups:
            group = layout.groups[index]
            for lo, hi in group.state.needs(position):
                more, cut = self._cut(index, group, lo, hi)
                parts += more
                arrays += cut
        for leaf in layout.whole:
            plain, found = layout.snapshot_state(leaf).packed(checkpoint.snapshots[leaf])
            specs = tuple(_spec(array, array.shape) for array in found)
            parts.append(Part(leaf, position, position, specs, plain))
            arrays += [[(array, None, None)] for array in found]
        lo = position if self._group is not None else 0
        header = self._header(FileKind.STATE, lo, position, parent, parts, str(checkpoint.kind))
        return self._draft(header, arrays)

    def _cut(self, index: int, group: Group, lo: int, hi: int) -> tuple[list[Part], list[_Cut]]:
        """The rows `lo ... hi - 1` of one group: what they are, and where they lie."""
        runs = list(_runs(self._path, index, lo, hi))
        parts: list[Part] = []
        cuts: list[_Cut] = []
        for leaf in group.leaves:
            if leaf not in runs[0][0].arrays:
                continue  # the model never fills it
            first = runs[0][0].arrays[leaf]
            specs = tuple(_spec(a, (*a.shape[:-2], hi - lo, a.shape[-1])) for a in first)
            parts.append(Part(leaf, lo, hi, specs))
            cuts += [
                [(block.arrays[leaf][i], at - block.lo, to - block.lo) for block, at, to in runs]
                for i in range(len(first))
            ]
        return parts, cuts


# The pieces of one array: an array of which the rows from ... to are taken; None for all of it.
_Cut = list[tuple[mx.array, int | None, int | None]]


def _runs(path: Sequence[Node], group: int, lo: int, hi: int) -> Iterator[tuple[Block, int, int]]:
    """The rows `lo ... hi - 1`, block by block. Raises CacheFault where one is missing."""
    at = lo
    for span in spans_of(path, group):
        if span.hi <= at or span.lo >= hi:
            continue
        if span.lo > at:
            break
        end = min(span.hi, hi)
        yield span.block, at, end
        at = end
    if at < hi:
        raise CacheFault(f"rows {at}..{hi} are not there to be written")


def _spec(array: mx.array, shape: Sequence[int]) -> ArraySpec:
    return ArraySpec(str(array.dtype).rpartition(".")[2], tuple(shape))


def _slice_of(array: mx.array, lo: int | None, hi: int | None) -> Slice:
    view = bytes_of(array)
    return Slice(view, tuple(array.shape), array.itemsize, lo, hi)


def bytes_of(array: mx.array) -> memoryview:
    """A view of an evaluated array that lies in one piece."""
    if not array.nbytes:
        return memoryview(b"")
    view: Any = memoryview(array)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise CacheFault("an array that is stored does not lie in one piece")
    return memoryview(view.cast("B"))
