"""What one namespace can restore, and which window rows it still needs, against brute force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import ChunkedKVCache, KVCache, RotatingKVCache

from keepwarm.cache.blocks import held
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Block, Checkpoint, Node, Span, Walk
from keepwarm.state.registry import Layout

LAYOUTS = st.sampled_from(
    [
        [KVCache()],
        [RotatingKVCache(4)],
        [RotatingKVCache(6, keep=2), KVCache()],
        [RotatingKVCache(3), RotatingKVCache(7, keep=1), ChunkedKVCache(5)],
    ]
).map(Layout.of)


def keys_of(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def add(space: Space, tokens: list[int]) -> Node:
    """The node at the end of `tokens`, with nothing in it."""
    walk = space.tree.walk(keys_of(tokens))
    node = walk.path[-1] if walk.path else space.tree.root
    if walk.is_inside:
        node = space.tree.split(node, walk.matched)
    if node.end < len(tokens):
        node = space.tree.append(node, keys_of(tokens[node.end :]))
    return node


@given(
    layout=LAYOUTS,
    holes=st.lists(st.integers(0, 19), max_size=4),
    limit=st.integers(0, 22),
    matched=st.integers(0, 20),
)
def test_deepest_cut_is_the_last_position_with_all_its_rows(
    layout: Layout, holes: list[int], limit: int, matched: int
) -> None:
    space = Space.empty("", layout, exact=False)
    node = add(space, [0] * 20)
    for index, group in enumerate(layout.groups):
        lost = {(hole * (index + 3)) % 20 for hole in holes} if group.is_window else set()
        for at in sorted(set(range(20)) - lost):
            node.spans[index].append(Span(Block(at, at + 1, {}, 0, b""), at, at + 1))
    rows = [held(spans_of([node], index)) for index in range(len(layout.groups))]
    expected = max(
        position
        for position in range(min(limit, matched) + 1)
        if all(g.state.can_restore(position, rows[i]) for i, g in enumerate(layout.groups))
    )
    assert space.deepest_cut(Walk([node], matched), limit) == expected


@given(
    layout=LAYOUTS,
    paths=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=14), st.booleans()),
        min_size=1,
        max_size=8,
    ),
)
def test_needed_rows_are_those_that_a_checkpoint_at_or_below_takes(
    layout: Layout, paths: list[tuple[list[int], bool]]
) -> None:
    space = Space.empty("", layout, exact=False)
    for tokens, is_checkpoint in paths:
        node = add(space, tokens)
        if is_checkpoint:
            node.checkpoint = Checkpoint(node.end, b"", "message", {}, 0, 0.0)
    for node in space.tree.nodes():
        for index in space.window_groups:
            state = layout.groups[index].state
            wanted = {
                row
                for below in space.tree.nodes()
                if below.checkpoint is not None and node in below.path()
                for lo, hi in state.needs(below.end)
                for row in range(lo, hi)
                if node.start <= row < node.end
            }
            edge = [(node.start, node.end)]
            found = {r for lo, hi in space.needed_rows(node, index, edge) for r in range(lo, hi)}
            assert found == wanted


def test_deepest_checkpoint_lies_within_the_walk_and_the_limit() -> None:
    space = Space.empty("", Layout.of([KVCache()]), exact=False)
    first, second = add(space, [0] * 4), add(space, [0] * 9)
    for node in (first, second):
        node.checkpoint = Checkpoint(node.end, b"", "message", {}, 0, 0.0)
    path = [first, second]
    assert space.deepest_checkpoint(Walk(path, 9), 20) is second
    assert space.deepest_checkpoint(Walk(path, 9), 8) is first
    assert space.deepest_checkpoint(Walk(path, 8), 20) is first
    assert space.deepest_checkpoint(Walk(path, 9), 3) is None
