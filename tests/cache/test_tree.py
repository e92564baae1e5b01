"""The radix tree against a naive twin that knows every prefix by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from keepwarm.cache.tree import (
    Block,
    Checkpoint,
    Node,
    Span,
    Tree,
    common_len,
    join_spans,
    split_spans,
    subtree,
)

WIDTH = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def keys_of(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(WIDTH, "little") for token in tokens)


def tokens_of(node: Node) -> tuple[int, ...]:
    """All tokens from the root down to the end of this node."""
    label = b"".join(step.label for step in node.path())
    return tuple(
        int.from_bytes(label[i : i + WIDTH], "little") for i in range(0, len(label), WIDTH)
    )


class TreeMachine(RuleBasedStateMachine):
    """Random inserts, walks, splits, joins and removals; the twin maps each prefix to its row."""

    sequences: Bundle[list[int]] = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree(WIDTH, num_groups=1)
        self.rows: dict[tuple[int, ...], Block] = {}  # by prefix: where its last row is stored
        self.marks: dict[tuple[int, ...], Checkpoint] = {}

    @rule(target=sequences, tokens=TOKENS)
    def think_of(self, tokens: list[int]) -> list[int]:
        return tokens

    @rule(target=sequences, tokens=sequences, more=TOKENS, at=st.integers(1, 12))
    def think_of_a_branch(self, tokens: list[int], more: list[int], at: int) -> list[int]:
        return tokens[:at] + more

    @rule(tokens=sequences, is_marked=st.booleans())
    def insert(self, tokens: list[int], is_marked: bool) -> None:
        keys = keys_of(tokens)
        walk = self.tree.walk(keys)
        node = walk.path[-1] if walk.path else self.tree.root
        if walk.is_inside:
            node = self.tree.split(node, walk.matched)
        if node.end < len(tokens):
            node = self.tree.append(node, keys[node.end * WIDTH :])
            self._store_rows(node)
        if is_marked:
            node.checkpoint = Checkpoint(node.end, b"", "message", {}, 0, 0.0)
            self.marks[tuple(tokens)] = node.checkpoint

    def _store_rows(self, node: Node) -> None:
        block = Block(node.start, node.end, {}, 0, b"")
        block.num_spans = 1
        node.spans[0].append(Span(block, node.start, node.end))
        tokens = tokens_of(node)
        for end in range(node.start + 1, node.end + 1):
            assert tokens[:end] not in self.rows
            self.rows[tokens[:end]] = block

    @rule(tokens=sequences, more=st.lists(st.integers(0, 2), max_size=5))
    def walk(self, tokens: list[int], more: list[int]) -> None:
        tokens = tokens + more
        before = self._picture()
        walk = self.tree.walk(keys_of(tokens))
        assert self._picture() == before
        known = [
            end for end in range(len(tokens) + 1) if not end or tuple(tokens[:end]) in self.rows
        ]
        assert walk.matched == known[-1]
        assert known == list(range(walk.matched + 1))
        ends = [node.end for node in walk.path]
        assert all(end <= walk.matched for end in ends[:-1])
        assert walk.is_inside == bool(ends and ends[-1] > walk.matched)
        if walk.path:
            assert walk.path[-1].path() == walk.path
            assert tokens_of(walk.path[-1])[: walk.matched] == tuple(tokens[: walk.matched])

    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        long = [node for node in self.tree.nodes() if node.end - node.start > 1]
        if long:
            node = data.draw(st.sampled_from(long))
            kept = (node.checkpoint, node.end, list(node.children.values()))
            upper = self.tree.split(node, data.draw(st.integers(node.start + 1, node.end - 1)))
            assert (node.checkpoint, node.end, list(node.children.values())) == kept
            assert (upper.checkpoint, upper.pins) == (None, 0)
            assert list(upper.children.values()) == [node]

    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        lone = [
            node
            for upper in self.tree.nodes()
            for node in upper.children.values()
            if len(upper.children) == 1 and upper.checkpoint is None
        ]
        if lone:
            node = data.draw(st.sampled_from(lone))
            self.tree.join(node)
            assert node.path()[-1] is node

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        leaves = [node for node in self.tree.nodes() if not node.children]
        if leaves:
            node = data.draw(st.sampled_from(leaves))
            tokens = tokens_of(node)
            self.tree.remove(node)
            for span in node.spans[0]:
                span.block.num_spans -= 1
            for end in range(node.start + 1, node.end + 1):
                del self.rows[tokens[:end]]
                self.marks.pop(tokens[:end], None)

    def _picture(self) -> Any:
        return [
            (id(node), node.label, node.start, [(id(s.block), s.lo, s.hi) for s in node.spans[0]])
            for node in self.tree.nodes()
        ]

    @invariant()
    def every_row_is_where_the_twin_says(self) -> None:
        found: dict[tuple[int, ...], Block] = {}
        uses: dict[Block, int] = {}
        for node in self.tree.nodes():
            tokens, at = tokens_of(node), node.start
            for span in node.spans[0]:
                assert span.lo == at < span.hi
                at = span.hi
                uses[span.block] = uses.get(span.block, 0) + 1
                found.update({tokens[: p + 1]: span.block for p in range(span.lo, span.hi)})
            assert at == node.end
        assert found == self.rows
        assert all(block.num_spans == count for block, count in uses.items())

    @invariant()
    def every_checkpoint_is_where_the_twin_says(self) -> None:
        nodes = [node for node in self.tree.nodes() if node.checkpoint is not None]
        assert {tokens_of(node): node.checkpoint for node in nodes} == self.marks

    @invariant()
    def every_link_holds_and_parents_come_first(self) -> None:
        seen = {id(self.tree.root)}
        for node in self.tree.nodes():
            parent = node.parent
            assert parent is not None
            assert id(parent) in seen
            assert id(node) not in seen
            seen.add(id(node))
            assert node.label
            assert parent.end == node.start
            assert parent.children[node.label[:WIDTH]] is node


def test_tree_agrees_with_its_twin() -> None:
    run_state_machine_as_test(TreeMachine)


@pytest.mark.stress
def test_tree_agrees_with_its_twin_for_long() -> None:
    run_state_machine_as_test(TreeMachine)


@given(
    a=st.lists(st.integers(0, 1), max_size=20),
    b=st.lists(st.integers(0, 1), max_size=20),
    width=st.sampled_from([1, 4, 8]),
)
def test_common_len_is_that_of_the_longest_common_prefix(
    a: list[int], b: list[int], width: int
) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    packed = [b"".join(token.to_bytes(width, "big") for token in tokens) for tokens in (a, b)]
    assert common_len(*packed, width) == expected * width


def test_key_is_compared_whole_not_byte_by_byte() -> None:
    """Tokens 1 and 257 share their lowest byte."""
    tree = Tree(WIDTH, 0)
    tree.append(tree.root, keys_of([5, 1]))
    walk = tree.walk(keys_of([5, 257]))
    assert (walk.matched, walk.is_inside) == (1, True)


@given(cuts=st.lists(st.integers(1, 29), unique=True).map(sorted), position=st.integers(0, 30))
def test_spans_split_anywhere_join_to_what_they_were(cuts: list[int], position: int) -> None:
    edges = [0, *cuts, 30]
    spans = []
    for lo, hi in pairwise(edges):
        block = Block(lo, hi, {}, 0, b"")
        block.num_spans = 1
        spans.append(Span(block, lo, hi))
    before, after = split_spans(spans, position)
    assert all(span.hi <= position for span in before)
    assert all(span.lo >= position for span in after)
    assert join_spans(before, after) == spans
    assert all(span.block.num_spans == 1 for span in spans)


def test_two_neighbouring_blocks_are_not_joined_to_one() -> None:
    above, below = Block(0, 4, {}, 0, b""), Block(4, 8, {}, 0, b"")
    assert len(join_spans([Span(above, 0, 4)], [Span(below, 4, 8)])) == 2


def test_split_leaves_pin_and_checkpoint_with_the_lower_half() -> None:
    tree = Tree(WIDTH, 0)
    node = tree.append(tree.root, keys_of([1, 2, 3, 4]))
    node.holds, node.checkpoint = [3], Checkpoint(4, b"", "message", {}, 0, 0.0)
    node.last_used, node.hits = 7.0, 3
    upper = tree.split(node, 2)
    assert (node.pins, node.start, node.end, node.checkpoint is not None) == (1, 2, 4, True)
    assert (upper.pins, upper.start, upper.end, upper.checkpoint) == (0, 0, 2, None)
    assert (upper.last_used, upper.hits) == (7.0, 3)


def chain(num_nodes: int, num_tokens: int) -> Tree:
    """One path of nodes of that many tokens each, every one with rows and a checkpoint."""
    tree = Tree(WIDTH, num_groups=1)
    node = tree.root
    for _ in range(num_nodes):
        keys = keys_of(list(range(node.end, node.end + num_tokens)))
        node = tree.append(node, keys)
        block = Block(node.start, node.end, {}, 0, bytes(16))
        node.spans[0].append(Span(block, node.start, node.end))
        node.checkpoint = Checkpoint(node.end, bytes(16), "message", {}, 0, 0.0)
    return tree


def parts_of(tree: Tree) -> Iterator[Any]:
    """Every object that the tree keeps for its book-keeping, each once."""
    for node in subtree(tree.root):
        yield from (node, node.label, node.children, *node.children, node.spans, *node.spans)
        yield from (node.start, node.last_used)
        for spans in node.spans:
            for span in spans:
                block = span.block
                yield from (span, block, block.digest, block.arrays, span.lo, span.hi)
        if node.checkpoint is not None:
            kept = node.checkpoint
            yield from (kept, kept.digest, kept.snapshots, kept.position, kept.created)


@pytest.mark.parametrize(("num_nodes", "num_tokens"), [(1, 100_000), (200, 500)])
def test_bookkeeping_takes_less_than_16_bytes_a_token(num_nodes: int, num_tokens: int) -> None:
    """A trie of one dict for each token takes 220."""
    parts = {id(part): part for part in parts_of(chain(num_nodes, num_tokens))}
    assert sum(map(sys.getsizeof, parts.values())) < 16 * num_nodes * num_tokens


class CountedBytes(bytes):
    """Bytes that count how many of them are looked at."""

    num_read = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if isinstance(part, int):
            return part
        CountedBytes.num_read += len(part)
        return CountedBytes(part)


@pytest.mark.parametrize("parted_at", [1, 250, 50_000, 99_999, 100_000])
@pytest.mark.parametrize(("num_nodes", "num_tokens"), [(1, 100_000), (200, 500)])
def test_walk_looks_at_each_key_a_few_times_at_most(
    num_nodes: int, num_tokens: int, parted_at: int
) -> None:
    """A search that is quadratic in what follows the parting took 24 s for 99,000 tokens."""
    tree = chain(num_nodes, num_tokens)
    tokens = [*range(parted_at), *(10**6 + i for i in range(100_000 - parted_at))]
    keys = CountedBytes(keys_of(tokens))
    CountedBytes.num_read = 0
    assert tree.walk(keys).matched == parted_at
    assert CountedBytes.num_read < 4 * len(keys)
