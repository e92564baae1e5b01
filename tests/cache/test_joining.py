"""Which blocks are stored anew as one, and that nothing but their number changes."""

from __future__ import annotations

import pytest

from keepwarm.cache import evict, insert, joining
from keepwarm.cache.blocks import pieces_of, shrink
from keepwarm.cache.joining import MAX_LEN, NUM_JOINED, joinable
from keepwarm.cache.live import Live
from keepwarm.cache.placement import StopKind
from keepwarm.cache.space import spans_of
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Block, Span
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.stores import ROW_BYTES, cache_for
from tests.cache.toy import TOYS, store_at
from tests.state.feeding import are_same, contents
from tests.state.memory import active_bytes, is_about

TOKENS = list(range(96))
ENDS = range(6, 97, 6)  # two times NUM_JOINED


def path(*lengths: int) -> list[Span]:
    """Blocks of these lengths, end to end, each used by one edge."""
    spans, at = [], 0
    for num_rows in lengths:
        block = Block(at, at + num_rows, {}, 0, b"")
        block.num_spans = 1
        spans.append(Span(block, block.lo, block.hi))
        at = block.hi
    return spans


def starts(spans: list[Span], num_rows: int) -> list[int]:
    end = spans[-1].hi
    return [block.lo for block in joinable(spans, end, end + num_rows)]


def test_blocks_of_one_size_are_joined_once_there_are_enough() -> None:
    assert starts(path(*[2048] * (NUM_JOINED - 2)), 2048) == []
    assert starts(path(*[2048] * (NUM_JOINED - 1)), 2048) == list(range(0, 7 * 2048, 2048))
    assert starts(path(*[20, 64] * NUM_JOINED, 20), 64)


def test_larger_blocks_are_left_alone() -> None:
    before = path(16384, *[2048] * (NUM_JOINED - 1))
    assert starts(before, 2048) == list(range(16384, 16384 + 7 * 2048, 2048))
    assert starts(path(*[2048] * NUM_JOINED), 20) == []


def test_joined_block_is_joined_again_with_its_like() -> None:
    assert starts(path(*[512] * (NUM_JOINED - 1), *[64] * (NUM_JOINED - 1)), 64)[0] == 0


def test_no_block_grows_without_bounds() -> None:
    spans = path(64)
    longest, num_copied = 0, 0
    for _ in range(2000):
        end = spans[-1].hi
        old = joinable(spans, end, end + 64)
        kept = spans[: len(spans) - len(old)]
        lo = old[0].lo if old else end
        block = Block(lo, end + 64, {}, 0, b"")
        block.num_spans = 1
        spans = [*kept, Span(block, lo, end + 64)]
        longest, num_copied = max(longest, block.hi - lo), num_copied + block.hi - lo
    assert longest <= MAX_LEN
    assert len(spans) <= 2001 * 64 // MAX_LEN + 3 * NUM_JOINED
    assert num_copied < 5 * 2001 * 64  # each row a few times, however long it gets


def test_block_that_another_path_uses_too_ends_the_search() -> None:
    spans = path(*[6] * (2 * NUM_JOINED))
    spans[4].block.num_spans = 2
    assert len(starts(spans, 6)) == NUM_JOINED - 1
    spans[-NUM_JOINED + 1].block.num_spans = 2
    assert starts(spans, 6) == []


# In a cache


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_LEN", 0)


def num_blocks(cache: PrefixCache) -> int:
    nodes = list(cache._spaces[""].tree.nodes())
    return len({span.block for node in nodes for span in node.spans[0]})


def filled(name: str, **settings: object) -> PrefixCache:
    cache = cache_for(name, **settings)
    store_at(cache, TOYS[name], TOKENS, list(ENDS))
    cache.check()
    return cache


@pytest.mark.parametrize("name", ["rows", "quantized", "rows_window", "rows_snapshot", "nested"])
def test_joined_rows_are_restored_as_they_were(name: str) -> None:
    cache = filled(name)
    assert num_blocks(cache) == 2
    for end in (6, 30, 60, 90):
        prompt = Prompt([*TOKENS[:end], *range(100, 107)])
        live = cache.restore(cache.match(prompt))
        assert live.position == end
        cuts = [cut for cut in ENDS if cut < end]
        assert are_same(contents(live.caches), contents(TOYS[name].cold(TOKENS[:end], cuts)))


def test_restore_takes_a_joined_block_in_one_piece() -> None:
    cache = filled("rows")
    path = next(n for n in cache._spaces[""].tree.nodes() if n.end == len(TOKENS)).path()
    pieces = pieces_of(spans_of(path, 0), 0, [(0, len(TOKENS))])
    assert [keys.shape[-2] for keys, _ in pieces] == [48, 48]


def test_chat_whose_thoughts_are_stripped_lies_in_few_blocks() -> None:
    """Every turn parts from the reply before it, behind the header that both begin with."""
    cache, toy = cache_for("rows"), TOYS["rows"]
    past: list[int] = []
    for turn in range(12 * NUM_JOINED):
        asked = [*past, 1, 2, 3, 100 + turn]
        header, thought, answer = [7, 8, 9], [200 + turn, 201, 202, 203], [300 + turn, 301, 302]
        opened = len(asked) + len(header)
        prompt = Prompt(
            [*asked, *header, *thought, *answer], [Boundary(opened, BoundaryKind.GENERATION)]
        )
        live = Live(toy.make())
        for end in (len(asked), len(prompt)):
            toy.read(live, prompt, end)
            assert cache.insert(prompt, live, kind=StopKind.MESSAGE).is_stored
        past = [*asked, *header, *answer]
    cache.check()
    live = cache.restore(cache.match(Prompt([*past, 1])))
    path = next(n for n in cache._spaces[""].tree.nodes() if n.end == len(asked)).path()
    assert len(pieces_of(spans_of(path, 0), 0, [(0, len(asked))])) <= 3 * NUM_JOINED
    cold = toy.cold(past[: live.position], [])
    assert are_same(contents(live.caches), contents(cold))


def test_joining_stores_no_row_twice() -> None:
    before = active_bytes()
    cache = filled("rows")
    assert cache.ledger.rows_bytes == len(TOKENS) * 2 * ROW_BYTES
    assert is_about(active_bytes() - before, cache.ledger.held_bytes, 8)


def test_without_joining_there_are_as_many_blocks_as_inserts(one_by_one: None) -> None:
    assert num_blocks(filled("rows")) == len(ENDS)


def test_nothing_is_evicted_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert, "_MAX_SCRATCH", 1)
    row_bytes = 2 * ROW_BYTES
    # Room for all the rows and for cutting a block, but not for NUM_JOINED blocks twice.
    cache = filled("rows", budget_bytes=(len(TOKENS) + 12) * row_bytes)
    assert num_blocks(cache) > 2
    assert cache.ledger.rows_bytes == len(TOKENS) * row_bytes


def test_room_to_cut_the_largest_block_is_kept_free() -> None:
    cache = filled("rows")
    free_bytes = cache.ledger.free_bytes
    assert cache._evictor.fits(free_bytes - 48 * ROW_BYTES)
    assert not cache._evictor.fits(free_bytes - 47 * ROW_BYTES)


def test_large_blocks_are_not_made_where_cutting_one_would_take_much_of_the_budget() -> None:
    # Room for everything many times over, and a joined leaf of 48 rows above a 64th of it.
    budget_bytes = 47 * ROW_BYTES * 64
    assert num_blocks(filled("rows", budget_bytes=budget_bytes)) == len(ENDS)
    assert num_blocks(filled("rows", budget_bytes=budget_bytes + 64 * ROW_BYTES)) == 2


def test_tip_of_a_joined_block_can_go_alone() -> None:
    cache = filled("rows")
    cache.evict_to(cache.ledger.held_bytes - 1)
    cache.check()
    assert cache.peek(Prompt([*TOKENS, 99])).cached_len == len(TOKENS) - 6
    assert cache.ledger.rows_bytes == (len(TOKENS) - 6) * 2 * ROW_BYTES


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_what_goes_together_is_cut_off_a_joined_block_at_once(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of many edges would else be copied for each of them."""
    cut: list[tuple[int, int]] = []

    def counted(block: Block, lo: int, hi: int) -> int:
        cut.append((lo, hi))
        return shrink(block, lo, hi)

    cache = filled("rows")
    monkeypatch.setattr(evict, "shrink", counted)
    cache.evict_to(int(share * cache.ledger.held_bytes))
    cache.check()
    assert len(cut) == (1 if share else 0)
    assert (cache.ledger.held_bytes == 0) is (share == 0)
