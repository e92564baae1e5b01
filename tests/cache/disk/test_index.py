"""The tree of files against a list of them, after any sequence of operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.disk.format import FileKind, Header, digest_of
from keepwarm.cache.disk.index import File, Index

WIDTH = 4


def keys_of(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(WIDTH, "little") for token in tokens)


@dataclass
class Twin:
    """All files that were ever written, and what those that are left give: looked up one by one."""

    has_rows: bool
    needs_state: bool
    paths: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)

    def header(self, kind: FileKind, path: bytes, lo: int, parent: str | None) -> Header:
        hi = len(path) // WIDTH
        header = Header(
            kind, "model", "space", lo, hi, digest_of(path[: lo * WIDTH]), digest_of(path),
            parent, "message", 0.0, WIDTH, (), path[lo * WIDTH :],
        )  # fmt: skip
        self.paths[header.name], self.headers[header.name] = path, header
        return header

    def rows_len(self, keys: bytes, names: set[str]) -> int:
        """How far the files of rows reach along a path."""
        at, grows = 0, True
        while grows:
            grows = False
            for name in names:
                header, path = self.headers[name], self.paths[name]
                lo = header.lo * WIDTH
                if header.kind is FileKind.ROWS and header.lo <= at and path[:lo] == keys[:lo]:
                    shared = next(
                        (i for i in range(0, min(len(path), len(keys)), WIDTH)
                         if path[i : i + WIDTH] != keys[i : i + WIDTH]),
                        min(len(path), len(keys)),
                    )  # fmt: skip
                    if shared // WIDTH > at:
                        at, grows = shared // WIDTH, True
        return at

    def position(self, keys: bytes, limit: int, names: set[str]) -> int:
        reach = self.rows_len(keys, names) if self.has_rows else len(keys) // WIDTH
        if not self.needs_state:
            return min(reach, limit)
        return max(
            (
                header.hi
                for name in names
                if (header := self.headers[name]).kind is FileKind.STATE
                and header.hi <= min(limit, reach)
                and self.paths[name] == keys[: header.hi * WIDTH]
            ),
            default=0,
        )


def write(index: Index, twin: Twin, tokens: list[int], piece: int, with_state: bool) -> None:
    """As the tier does: the rows that are missing, piece by piece, and a state."""
    keys, parent = keys_of(tokens), None
    if twin.has_rows:
        lo = index.rows_len(keys)
        parent = index.parent_of(keys, lo)
        for start in range(lo, len(tokens), piece):
            path = keys[: min(start + piece, len(tokens)) * WIDTH]
            header = twin.header(FileKind.ROWS, path, start, parent)
            parent = header.name
            assert index.add(File(header, 10, 0.0), path)
    if with_state and twin.needs_state and index.durable_len(keys) < len(tokens):
        lo = len(tokens) if twin.has_rows else 0
        header = twin.header(FileKind.STATE, keys, lo, parent)
        assert index.add(File(header, 10, 0.0), keys)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), TOKENS, st.integers(1, 5), st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 50)),
        st.tuples(st.just("evict"), st.integers(0, 50)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)
SHAPES = {"rows": (True, False), "rows and state": (True, True), "state": (False, True)}


@pytest.mark.parametrize(("has_rows", "needs_state"), SHAPES.values(), ids=SHAPES)
@given(acts=ACTS, asked=st.lists(TOKENS, min_size=1, max_size=4))
def test_index_gives_what_its_files_give(
    has_rows: bool, needs_state: bool, acts: list[tuple], asked: list[list[int]]
) -> None:
    index = Index(WIDTH, has_rows=has_rows, needs_state=needs_state)
    twin = Twin(has_rows, needs_state)
    written: list[list[int]] = []
    for act in acts:
        names = sorted(index.files)
        if act[0] == "write":
            write(index, twin, *act[1:])
            written.append(act[1])
        elif act[0] == "drop" and names:
            name = names[act[1] % len(names)]
            assert name in [file.name for file in index.drop_file(name)]
        elif act[0] == "evict" and (leaves := index.leaves()):
            index.drop_leaf(leaves[act[1] % len(leaves)])
        elif act[0] == "restart":
            left = set(index.files)
            found = [File(twin.headers[name], 10, 0.0) for name in left]
            index, lost = Index.build(found, WIDTH, has_rows=has_rows, needs_state=needs_state)
            # Nothing is lost but what followed a file that is gone.
            assert {file.name for file in lost} | set(index.files) == left
        index.check()
        for tokens in [*asked, *written[-3:]]:
            keys, limit = keys_of(tokens), max(1, len(tokens) - 1)
            found_at = index.find(keys, limit, 0)
            position = found_at.position if found_at is not None else 0
            assert position == twin.position(keys, limit, set(index.files))


def test_file_whose_path_is_not_what_it_says_has_no_place() -> None:
    twin = Twin(has_rows=True, needs_state=False)
    whole = keys_of([1, 2, 3, 4])
    first = twin.header(FileKind.ROWS, whole[:8], 0, None)
    second = twin.header(FileKind.ROWS, whole, 2, first.name)
    other = twin.header(FileKind.ROWS, keys_of([1, 9]), 0, None)
    moved = twin.header(FileKind.ROWS, keys_of([1, 9, 3, 4]), 2, first.name)
    assert other.name != first.name
    files = [File(header, 1, 0.0) for header in (first, second, moved)]
    index, lost = Index.build(files, WIDTH, has_rows=True, needs_state=False)
    assert set(index.files) == {first.name, second.name}
    assert [file.name for file in lost] == [moved.name]
