"""`check()` finds every kind of defect: each one is planted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keepwarm.cache.placement import Placement
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Block, Checkpoint, Node, Span
from keepwarm.errors import Corrupt
from tests.cache.stores import cache_for, node_at
from tests.cache.toy import TOYS, messages, prefill, store_at

TOKENS = list(range(24))
NAME = "nested"  # rows, windows and snapshots


@pytest.fixture
def cache() -> PrefixCache:
    """Two conversations that part at 12, and one of another namespace."""
    cache = cache_for(NAME, placement=Placement(3, 30))
    store_at(cache, TOYS[NAME], TOKENS, [8, 18])
    store_at(cache, TOYS[NAME], [*TOKENS[:12], 99, 99], [14])
    store_at(cache, TOYS[NAME], TOKENS, [8], namespace="other")
    cache.check()
    return cache


def checkpoint_of(node: Node) -> Checkpoint:
    assert node.checkpoint is not None
    return node.checkpoint


def first_span(node: Node, group: int = 0) -> Span:
    return node.spans[group][0]


def first_block(node: Node, group: int = 0) -> Block:
    return first_span(node, group).block


def move_start(node: Node) -> None:
    node.start += 1


def empty_label(node: Node) -> None:
    node.label = b""


def file_elsewhere(node: Node) -> None:
    assert node.parent is not None
    node.parent.children[b"else"] = node.parent.children.pop(node.label[:4])


def pin_beyond_the_end(node: Node) -> None:
    node.holds.append(node.end + 1)


def misplace_rows(node: Node) -> None:
    span = first_span(node)
    node.spans[0][0] = Span(span.block, span.lo - 1, span.hi)


def lose_rows(node: Node) -> None:
    first_block(node).hi -= 1


def move_origin(node: Node) -> None:
    first_block(node).origin = first_block(node).lo + 1


def leave_a_gap(node: Node) -> None:
    span = first_span(node)
    node.spans[0][0] = Span(span.block, span.lo + 1, span.hi)


def move_checkpoint(node: Node) -> None:
    checkpoint_of(node).position -= 1


def lose_window(node: Node) -> None:
    node.spans[1].clear()


def lose_snapshot(node: Node) -> None:
    snapshots = checkpoint_of(node).snapshots
    del snapshots[next(iter(snapshots))]


def weigh_snapshots_wrong(node: Node) -> None:
    checkpoint_of(node).nbytes += 1


def use_block_once_more(node: Node) -> None:
    first_block(node).num_spans += 1


def weigh_block_wrong(node: Node) -> None:
    first_block(node).nbytes += 1


def lose_rows_of_a_leaf(node: Node) -> None:
    block = first_block(node)
    leaf, arrays = next(iter(block.arrays.items()))
    block.arrays[leaf] = tuple(array[..., 1:, :] for array in arrays)
    block.nbytes -= sum(array.nbytes // array.shape[-2] for array in arrays)


def forge_rows(node: Node) -> None:
    first_block(node).digest = bytes(16)


def forge_window_rows(node: Node) -> None:
    first_block(node, 1).digest = bytes(16)


def forge_checkpoint(node: Node) -> None:
    checkpoint_of(node).digest = bytes(16)


def change_a_token(node: Node) -> None:
    node.label = node.label[:4] + b"\x63\0\0\0" + node.label[8:]


DEFECTS: dict[Callable[[Node], None], str] = {
    move_start: "does not follow its parent",
    empty_label: "has no tokens",
    file_elsewhere: "is filed elsewhere",
    pin_beyond_the_end: "a pin beyond its end",
    misplace_rows: "rows out of place",
    lose_rows: "rows gone",
    move_origin: "a block before its origin",
    leave_a_gap: "full rows have a gap",
    move_checkpoint: "a checkpoint of 17",
    lose_window: "cannot be restored",
    lose_snapshot: "a snapshot is missing",
    weigh_snapshots_wrong: "its snapshots weigh",
    use_block_once_more: "spans use a block that says otherwise",
    weigh_block_wrong: "a block weighs something else",
    lose_rows_of_a_leaf: "a block of other rows than it says",
    forge_rows: "rows of another prompt",
    forge_window_rows: "rows of another prompt",
    forge_checkpoint: "another prompt's state",
    change_a_token: "of another prompt|another prompt's state",
}


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_planted_defect_is_found(cache: PrefixCache, plant: Callable[[Node], None]) -> None:
    plant(node_at(cache, 18))
    with pytest.raises(Corrupt, match=DEFECTS[plant]):
        cache.check()


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_planted_defect_is_found_in_any_namespace(
    cache: PrefixCache, plant: Callable[[Node], None]
) -> None:
    plant(node_at(cache, 8, "other"))
    with pytest.raises(Corrupt):
        cache.check()


@pytest.mark.parametrize("field", ["rows_bytes", "snapshot_bytes"])
@pytest.mark.parametrize("error", [1, -1])
def test_ledger_that_is_off_by_one_byte_is_found(
    cache: PrefixCache, field: str, error: int
) -> None:
    setattr(cache.ledger, field, getattr(cache.ledger, field) + error)
    with pytest.raises(Corrupt, match=r"bytes of (rows|snapshots)"):
        cache.check()


def test_budget_that_is_passed_is_found(cache: PrefixCache) -> None:
    cache.ledger.budget_bytes = cache.ledger.held_bytes - 1
    with pytest.raises(Corrupt, match="the budget is passed"):
        cache.check()


def test_rows_in_a_subtree_that_is_lost_are_missed(cache: PrefixCache) -> None:
    cache._spaces[""].tree.root.children.clear()
    with pytest.raises(Corrupt, match="not as in the ledger"):
        cache.check()


@pytest.mark.parametrize(
    "plant",
    [p for p in DEFECTS if "forge" not in p.__name__ and "token" not in p.__name__],
    ids=lambda plant: plant.__name__,
)
def test_planted_defect_is_found_in_exact_mode(plant: Callable[[Node], None]) -> None:
    """All but digests: the keys are hashed chunk by chunk, so the tokens are not in them."""
    cache = cache_for(NAME, exact=True, placement=Placement(3, 30))
    prefill(cache, TOYS[NAME], messages(TOKENS, 8, 18))
    cache.check()
    node = node_at(cache, 18)
    if plant is file_elsewhere:
        assert node.parent is not None
        node.parent.children[b"somewhat"] = node.parent.children.pop(node.label[:8])
    else:
        plant(node)
    with pytest.raises(Corrupt):
        cache.check()


def test_check_changes_nothing(cache: PrefixCache) -> None:
    before = cache.stats()
    cache.check()
    assert cache.stats() == before
