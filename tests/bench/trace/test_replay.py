"""Tiny traces through the real caches: what is found can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from keepwarm.bench.trace.bound import Bounds
from keepwarm.bench.trace.marconi import Marconi, is_marconi, scaled
from keepwarm.bench.trace.ours import BlockCost, Replay
from keepwarm.bench.trace.sizes import MODELS, Sizes
from keepwarm.bench.trace.stream import Request, Trace
from keepwarm.bench.trace.tally import Tally
from keepwarm.bench.trace.theirs import PeerReplay
from keepwarm.cache.policy import Candidate
from tests.bench.trace.small import BLOCK_LEN, BLOCKY, UNIT, request, trace

PLENTY = 10**9


def replayed(stream: Trace, budget_bytes: int = PLENTY, policy: str = "worth") -> Tally:
    replay = Replay(stream, BLOCKY, budget_bytes, policy)
    tally = replay.run(lambda: None)
    replay.cache.check()
    return tally


def blocks(tally: Tally) -> float:
    return tally.cached_tokens / BLOCK_LEN


def test_prompt_that_goes_on_is_read_from_where_the_last_one_ended() -> None:
    tally = replayed(trace([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], block_len=BLOCK_LEN))
    assert blocks(tally) == 3 + 4
    assert tally.hit_rate == 7 * BLOCK_LEN / (12 * BLOCK_LEN + 3)
    assert tally.saved_s == 7 * BLOCK_LEN  # a second a token


def test_same_prompt_again_leaves_one_token_to_read() -> None:
    ids = np.array([1, 2], dtype=np.int32)
    same = Request(0.0, 2 * BLOCK_LEN, ids)  # nothing follows its last block
    tally = replayed(Trace("same", BLOCK_LEN, [same, same]))
    assert tally.cached_tokens == 2 * BLOCK_LEN - 1


def test_system_part_is_found_by_whoever_has_the_same() -> None:
    def asked(*ids: int) -> Request:
        return Request(0.0, len(ids) * BLOCK_LEN, np.array(ids, dtype=np.int32), 3)

    # The stops of a cold prompt: the system part, then its end, 3 more blocks away at most.
    tally = replayed(Trace("t", BLOCK_LEN, [asked(1, 2, 3, 4, 5), asked(1, 2, 3, 6, 7)]))
    assert blocks(tally) == 3
    assert dict(tally.earned) == {"system": 3 * BLOCK_LEN}


def test_snapshot_that_does_not_fit_is_not_found() -> None:
    """Three rows and a snapshot take 13 blocks' worth, and cutting rows later some more."""
    prompts = trace([1, 2, 3], [1, 2, 3], block_len=BLOCK_LEN)
    assert blocks(replayed(prompts, 12 * BLOCK_LEN)) == 0
    assert blocks(replayed(prompts, 17 * BLOCK_LEN)) == 3


def test_replay_tells_whether_more_room_could_change_anything() -> None:
    prompts = trace([1, 2], [3, 4], [5, 6], [1, 2], block_len=BLOCK_LEN)
    assert replayed(prompts).is_all_held
    assert not replayed(prompts, 28 * BLOCK_LEN).is_all_held  # room for two
    assert not replayed(prompts, 5 * BLOCK_LEN).is_all_held  # for none


def test_first_in_goes_first_however_often_it_was_used() -> None:
    """Room for two of three prompts: the first is used again before the third comes."""
    prompts = trace([1, 2], [3, 4], [1, 2], [5, 6], [1, 2], block_len=BLOCK_LEN)
    budget_bytes = 28 * BLOCK_LEN
    assert blocks(replayed(prompts, budget_bytes, "lru")) == 2 + 2
    assert blocks(replayed(prompts, budget_bytes, "fifo")) == 2


def test_oracle_keeps_what_will_be_used_whoever_came_last() -> None:
    """Three prompts in turn and room for two: who was there last comes back last."""
    rounds = [[1, 2], [3, 4], [5, 6]] * 4
    prompts, budget_bytes = trace(*rounds, block_len=BLOCK_LEN), 28 * BLOCK_LEN
    assert blocks(replayed(prompts, budget_bytes, "lru")) == 0
    # Of the nine that come again at least every second one is there still.
    assert blocks(replayed(prompts, budget_bytes, "oracle")) >= 2 * 4
    bound = Bounds(prompts, BLOCKY).at(budget_bytes)
    assert blocks(replayed(prompts, budget_bytes, "oracle")) <= bound.cached_tokens / BLOCK_LEN


def test_oracle_lets_go_of_a_place_that_all_who_come_back_pass_by() -> None:
    """Room for two snapshots: the one within the first conversation is of no use while its end is
    held, and must not push out another conversation's."""
    prompts = [[1, 2], [1, 2, 3], [9, 8], [7, 6], [1, 2, 3, 5], [9, 8], [7, 6]]
    tally = replayed(trace(*prompts, block_len=BLOCK_LEN), 34 * BLOCK_LEN, "oracle")
    assert blocks(tally) == 2 + 3 + 2


def test_oracle_stores_no_place_that_all_who_come_pass_by() -> None:
    """Nor one within a conversation whose end is held already."""
    prompts = [[1, 2, 4], [7, 6], [1, 2], [9, 8], [1, 2, 4], [7, 6]]
    tally = replayed(trace(*prompts, block_len=BLOCK_LEN), 28 * BLOCK_LEN, "oracle")
    assert blocks(tally) == 3 + 2


def test_peer_entries_share_nothing() -> None:
    """The same conversation takes an entry a turn: 13 + 14 bytes, where rows stored once would
    take 4 + 2 x 10."""
    replay = PeerReplay(trace([1, 2, 3], [1, 2, 3, 4], [1, 2, 3]), UNIT, 27)
    tally = replay.run(lambda: None)
    assert tally.peak_bytes == 27
    assert tally.cached_tokens == 3 + 3
    small = PeerReplay(trace([1, 2, 3], [1, 2, 3, 4], [1, 2, 3]), UNIT, 26)
    assert small.run(lambda: None).cached_tokens == 3  # the older entry had to go


def test_peer_stores_the_end_of_the_system_part_once() -> None:
    ids = [np.array(ids, dtype=np.int32) for ids in ([1, 2, 3], [1, 2, 4], [1, 2, 5])]
    stream = Trace("t", 1, [Request(float(i), 4, blocks, 2) for i, blocks in enumerate(ids)])
    replay = PeerReplay(stream, UNIT, PLENTY)
    assert replay.run(lambda: None).cached_tokens == 2 + 2
    assert len(replay.cache) == 1 + 3


def candidate(position: int, nbytes: int, last_used: float) -> Candidate:
    return Candidate(None, nbytes, position, 0, None, 0.0, last_used, 0)


def test_marconi_weighs_recency_against_computation_saved() -> None:
    cost = BlockCost(UNIT, 1)
    recent, efficient = candidate(1, 10, 9.0), candidate(100, 10, 0.0)
    both = [recent, efficient]
    assert Marconi(cost, 0.5).order(both, 10.0) == [efficient, recent]
    assert Marconi(cost, 2.0).order(both, 10.0) == [recent, efficient]


def test_values_are_scaled_between_least_and_greatest() -> None:
    assert scaled([2.0, 4.0, 3.0]) == [0.0, 1.0, 0.5]
    assert scaled([5.0]) == [1.0]
    assert scaled([]) == []
    assert [is_marconi(n) for n in ("marconi", "marconi:0.5", "marconi:", "lru")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_attention_makes_later_tokens_dearer() -> None:
    sizes = Sizes("s", 1, 1, token_flops=10.0, depth_flops=2.0, flops_per_s=1.0)
    assert sizes.prefill_s(0, 4) == 4 * 10 + 4 * 2 * 2
    assert sizes.prefill_s(4, 8) == 4 * 10 + 4 * 2 * 6
    assert BlockCost(sizes, 4).prefill_s(1, 2) == sizes.prefill_s(4, 8)


@pytest.mark.parametrize(
    ("name", "row_kb", "snapshot_mb"), [("qwen3.5-35b-a3b", 20, 63), ("nemotron-h-30b", 6, 49)]
)
def test_sizes_are_those_of_the_models(name: str, row_kb: int, snapshot_mb: int) -> None:
    assert MODELS[name].row_bytes // 1024 == row_kb
    assert round(MODELS[name].snapshot_bytes / 1e6) == snapshot_mb


def test_prompt_shorter_than_a_block_counts_and_finds_nothing() -> None:
    short = Request(0.0, 5, np.array([], dtype=np.int32))
    tally = replayed(Trace("t", BLOCK_LEN, [short, short, request([1], block_len=BLOCK_LEN)]))
    assert (tally.prompt_tokens, tally.cached_tokens) == (10 + BLOCK_LEN + 1, 0)
