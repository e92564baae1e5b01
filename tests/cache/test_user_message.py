"""The checkpoint behind the user's last message outlives the tool loop behind it: with thoughts that
the template strips at the next question, that is where the question starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from keepwarm.bench.trace.ours import SmallHybrid
from keepwarm.bench.trace.sizes import Sizes, sizes_named
from keepwarm.cache.placement import Placement, Stop, StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.stores import checkpoints

ASKED = 3_000  # tokens up to the end of the user's message
CALL_LEN, RESULT_LEN = 100, 1_900
NUM_STEPS = 50
LARGE = sizes_named("qwen3.5-35b-a3b")
# Of a snapshot: as many rows as in that model, or few.
SNAPSHOTS = {"dear": LARGE, "cheap": replace(LARGE, snapshot_bytes=100 * LARGE.row_bytes)}


def loop(num_steps: int, *, first: int = 1, users: BoundaryKind = BoundaryKind.USER) -> Prompt:
    """A question, and so many calls with their results."""
    marks = [(1_000, BoundaryKind.SYSTEM), (ASKED, users)]
    end = ASKED
    for _ in range(num_steps):
        marks += [(end + CALL_LEN, BoundaryKind.MESSAGE)]
        end += CALL_LEN + RESULT_LEN
        marks += [(end, BoundaryKind.MESSAGE)]
    tokens = [first + i % 1_000 for i in range(end)]
    return Prompt([*tokens, 5_001, 5_002], [Boundary(*mark) for mark in marks])


def next_question(first: int = 1) -> Prompt:
    """Its loop was written without its thoughts: nothing of it is the same."""
    asked = [first + i % 1_000 for i in range(ASKED)]
    return Prompt([*asked, *range(6_000, 6_400)], [Boundary(1_000, BoundaryKind.SYSTEM)])


def cache_of(sizes: Sizes, budget_rows: int = 10**6) -> tuple[PrefixCache, SmallHybrid]:
    model = SmallHybrid(sizes, 1, 120_000)
    budget_bytes = model.units(budget_rows * sizes.row_bytes)
    return PrefixCache(model.caches, budget_bytes=budget_bytes), model


def work(cache: PrefixCache, model: SmallHybrid, num_steps: int, **how: object) -> None:
    """One request for each step of a loop."""
    for step in range(num_steps + 1):
        serve(cache, model, loop(step, **how))  # type: ignore[arg-type]


def serve(cache: PrefixCache, model: SmallHybrid, prompt: Prompt) -> None:
    match = cache.match(prompt)
    with cache.pin(match) as pin:
        live = cache.restore(match)
        for stop in cache.stops(match, start=live.position):
            model.read(live, prompt, stop.position)
            if stop.kind is not StopKind.END:
                cache.insert(prompt, live, kind=stop.kind, pin=pin)


@pytest.mark.parametrize("sizes", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_next_question_starts_behind_the_last_one_after_100_000_tokens_of_tools(
    sizes: Sizes,
) -> None:
    cache, model = cache_of(sizes)
    work(cache, model, NUM_STEPS)
    assert len(loop(NUM_STEPS)) > 100_000
    assert cache.match(next_question()).cached_len == ASKED
    # And when others went on meanwhile, so that the loop rests.
    serve(cache, model, loop(1, first=2))
    serve(cache, model, loop(2, first=2))
    assert cache.match(next_question()).cached_len == ASKED
    # The loop is thinned as before.
    assert len(checkpoints(cache)) < 50
    cache.check()


def test_a_message_that_holds_results_is_no_such_place() -> None:
    cache, model = cache_of(SNAPSHOTS["cheap"])
    work(cache, model, NUM_STEPS, users=BoundaryKind.MESSAGE)
    assert cache.match(next_question()).cached_len < ASKED


def test_the_loops_own_checkpoints_go_first_when_room_is_short() -> None:
    sizes = SNAPSHOTS["cheap"]
    cache, model = cache_of(sizes)
    work(cache, model, 20)
    before = len(checkpoints(cache))
    for _ in range(before):
        held = cache.ledger.held_bytes
        own = [at for at in checkpoints(cache) if ASKED < at < len(loop(20)) - 2]
        if not own:
            break
        cache.evict_to(held - 1)
        assert ASKED in checkpoints(cache)
    assert not own
    cache.evict_to(0)
    assert not cache.ledger.held_bytes
    cache.check()


def test_only_the_newest_one_of_a_path_is_kept() -> None:
    users = [Stop(at, StopKind.USER) for at in range(1_000, 9_000, 100)]
    dropped = Placement().superfluous(users)
    assert users[-1] not in dropped
    assert Placement().superfluous([s for s in users if s not in dropped]) == []
    assert len(dropped) > 50


def kept(loop_len: int, spacing: int) -> Sequence[Stop]:
    path = [Stop(1_000, StopKind.SYSTEM), Stop(1_200, StopKind.USER)]
    path += [Stop(1_200 + loop_len // 2, StopKind.MESSAGE), Stop(1_200 + loop_len, StopKind.TAIL)]
    dropped = Placement(keep_recent=1).superfluous_at_rest(path, spacing)
    return [stop for stop in path if stop not in dropped]


def test_at_rest_it_stays_behind_a_loop_that_is_worth_a_snapshot() -> None:
    assert Stop(1_200, StopKind.USER) in kept(loop_len=5_000, spacing=4_096)
    assert Stop(1_200, StopKind.USER) not in kept(loop_len=3_000, spacing=4_096)
