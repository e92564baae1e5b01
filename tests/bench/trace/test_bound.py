"""The bound: what can be counted by hand, and that nobody passes it."""

from __future__ import annotations

from random import Random

import pytest

from keepwarm.bench.trace.bound import Bounds
from keepwarm.bench.trace.ours import Replay
from keepwarm.bench.trace.scenario import PEER, POLICIES
from keepwarm.bench.trace.theirs import PeerReplay
from tests.bench.trace.small import BLOCK_LEN, BLOCKY, UNIT, trace

PLENTY = 10**9


def test_with_room_for_all_only_new_blocks_are_read() -> None:
    found = Bounds(trace([1, 2, 3], [1, 2, 3, 4], [1, 2, 5], [9]), UNIT).at(PLENTY)
    assert found.cached_tokens == pytest.approx(3 + 2)
    assert found.saved_s == pytest.approx(5)


def test_room_for_all_is_the_most() -> None:
    bounds = Bounds(trace([1, 2, 3], [1, 2, 3, 4], [1, 2, 5], [9]), UNIT)
    assert (bounds.most().cached_tokens, bounds.most().saved_s) == (5, 5)
    assert Bounds(trace([1]), UNIT).most().cached_tokens == 0


def test_of_what_does_not_fit_whole_as_much_as_fits_is_served() -> None:
    """A snapshot takes ten."""
    prompts = trace([1, 2, 3], [1, 2, 3])
    assert Bounds(prompts, UNIT).at(10).cached_tokens == 0
    assert Bounds(prompts, UNIT).at(12).cached_tokens == pytest.approx(2)
    assert Bounds(prompts, UNIT).at(12).saved_s == pytest.approx(2)
    assert Bounds(prompts, UNIT).at(13).cached_tokens == pytest.approx(3)


def test_of_two_that_do_not_fit_together_only_one_is_served() -> None:
    """Both wait over the second gap, each needs all of the memory."""
    one, other = list(range(1, 41)), list(range(50, 90))
    found = Bounds(trace(one, other, one, other), UNIT).at(50)
    assert 40 <= found.cached_tokens <= 41


def test_nothing_comes_again() -> None:
    assert Bounds(trace([1], [2], [3]), UNIT).at(PLENTY).cached_tokens == 0


@pytest.mark.parametrize("seed", range(2))
def test_nobody_passes_the_bound(seed: int) -> None:
    """Conversations that grow, start anew and part, at budgets that hold a few of them."""
    random = Random(seed)
    chats: list[list[int]] = [[] for _ in range(4)]
    prompts, next_id = [], 1
    for _ in range(40):
        chat = random.choice(chats)
        if random.random() < 0.1:
            del chat[random.randrange(len(chat) + 1) :]
        num_new = random.randint(1, 6)
        chat += range(next_id, next_id + num_new)
        next_id += num_new
        prompts.append(list(chat))
    stream = trace(*prompts, block_len=BLOCK_LEN)
    for budget_bytes in (40 * BLOCK_LEN, 150 * BLOCK_LEN):
        bound = Bounds(stream, BLOCKY).at(budget_bytes)
        for policy in POLICIES:
            system = (
                PeerReplay(stream, BLOCKY, budget_bytes)
                if policy == PEER
                else Replay(stream, BLOCKY, budget_bytes, policy)
            )
            tally = system.run(lambda: None)
            assert tally.cached_tokens <= bound.cached_tokens * (1 + 1e-9), policy
            assert tally.saved_s <= bound.saved_s * (1 + 1e-9), policy
            assert 0 < tally.peak_bytes <= budget_bytes
