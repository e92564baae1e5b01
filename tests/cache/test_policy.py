"""What goes first: measured worth, and the orders it is compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import LRUPromptCache

from keepwarm.cache.placement import StopKind
from keepwarm.cache.policy import (
    POLICIES,
    Candidate,
    FirstInFirstOut,
    LeastRecentlyUsed,
    MeasuredCost,
    TypePriority,
    Worth,
    policy_named,
)
from keepwarm.errors import BadInput

FACTORS = st.integers(2, 50)
SPANS = st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 4096)), min_size=2, max_size=40)


def candidate(
    handle: int,
    *,
    nbytes: int = 1000,
    position: int = 1000,
    fallback: int = 0,
    kind: StopKind | None = StopKind.MESSAGE,
    created: float = 0.0,
    last_used: float = 0.0,
    hits: int = 0,
    chance: float = 1.0,
) -> Candidate:
    return Candidate(handle, nbytes, position, fallback, kind, created, last_used, hits, chance)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.integers(),
        nbytes=st.integers(0, 10**6),
        position=st.integers(0, 1000),
        created=st.floats(0, 100),
        last_used=st.floats(0, 100),
        hits=st.integers(0, 50),
        chance=st.floats(0, 10),
        kind=st.none() | st.sampled_from(StopKind),
    ),
    max_size=20,
)


def handles(ranked: list[Candidate]) -> list[int]:
    return [c.handle for c in ranked]


@given(
    per_token=st.floats(1e-6, 1e-2),
    per_pair=st.floats(0, 1e-6),
    num_chunks=st.integers(2, 30),
)
def test_measured_cost_recovers_a_linear_and_a_quadratic_part(
    per_token: float, per_pair: float, num_chunks: int
) -> None:
    def truth(start: int, end: int) -> float:
        return per_token * (end - start) + per_pair * (end**2 - start**2) / 2

    cost = MeasuredCost()
    for chunk in range(num_chunks):
        cost.observe(chunk * 2048, (chunk + 1) * 2048, truth(chunk * 2048, (chunk + 1) * 2048))
    for start, end in [(0, 512), (0, 20_000), (10_000, 12_048), (99_000, 100_000)]:
        assert cost.prefill_s(start, end) == pytest.approx(truth(start, end), rel=1e-3)


@given(spans=SPANS, seconds=st.lists(st.floats(-1, 100), min_size=40, max_size=40))
def test_measured_cost_never_predicts_a_gain(
    spans: list[tuple[int, int]], seconds: list[float]
) -> None:
    cost = MeasuredCost()
    for (start, length), took in zip(spans, seconds):
        cost.observe(start, start + length, took)
        for ahead in (0, 1000, 100_000):
            assert cost.prefill_s(ahead, ahead + 500) >= 0
            assert cost.prefill_s(ahead, ahead + 1000) >= cost.prefill_s(ahead, ahead + 500)
            assert cost.prefill_s(ahead, ahead) == 0


def test_measured_cost_guesses_before_it_has_measured() -> None:
    assert MeasuredCost().prefill_s(0, 1000) > MeasuredCost().prefill_s(0, 10) > 0


def test_measured_cost_follows_a_machine_that_gets_slower() -> None:
    cost = MeasuredCost()
    for seconds in [1.0] * 50 + [3.0] * 300:
        cost.observe(0, 1000, seconds)
    assert cost.prefill_s(0, 1000) == pytest.approx(3.0, rel=0.05)


def test_measured_cost_ignores_what_cannot_be() -> None:
    cost = MeasuredCost()
    cost.observe(10, 10, 1.0)
    cost.observe(10, 5, 1.0)
    cost.observe(0, 10, 0.0)
    assert cost.prefill_s(0, 10) == MeasuredCost().prefill_s(0, 10)


@given(candidates=CANDIDATES)
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_ranks_each_candidate_once(name: str, candidates: list[Candidate]) -> None:
    policy = policy_named(name, MeasuredCost())
    ranked = policy.order(candidates, 200.0)
    assert sorted(map(id, ranked)) == sorted(map(id, candidates))


def test_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="'mru'"):
        policy_named("mru", MeasuredCost())


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (candidate(0, nbytes=2000), candidate(1, nbytes=1000)),
        (candidate(0, position=500), candidate(1, position=1000)),
        (candidate(0, fallback=900), candidate(1, fallback=0)),
        (candidate(0, last_used=10.0), candidate(1, last_used=90.0)),
        (candidate(0, chance=0.1, last_used=90.0), candidate(1, chance=0.3)),
        (candidate(0, position=500, fallback=500, nbytes=1), candidate(1, nbytes=10**9)),
    ],
    ids=[
        "heavier",
        "shallower",
        "nearer to another",
        "longer ago",
        "less often used",
        "saves nothing",
    ],
)
def test_worth_lets_go_first_of_what_is(less: Candidate, more: Candidate) -> None:
    assert handles(Worth(MeasuredCost()).order([more, less], 100.0)) == [0, 1]


@given(
    seconds=st.integers(1, 100), nbytes=st.integers(1, 10**9), chance=st.floats(1e-6, 1), by=FACTORS
)
def test_worth_is_chance_times_seconds_over_bytes(
    seconds: int, nbytes: int, chance: float, by: int
) -> None:
    """As many times the seconds are as good as as many times the chance, or a part of the bytes."""
    plain = candidate(0, position=1000 * seconds, nbytes=nbytes, chance=chance)
    for better, worse in (
        (replace(plain, position=1000 * seconds * by), {"chance": chance / (by + 1)}),
        (replace(plain, chance=chance * by), {"nbytes": nbytes * (by + 1)}),
        (replace(plain, position=1000 * seconds * by), {"nbytes": nbytes * (by + 1)}),
    ):
        worth = Worth(MeasuredCost())
        assert worth.order([better, plain], 100.0) == [plain, better]
        worse_than_plain = replace(better, **worse)
        assert worth.order([plain, worse_than_plain], 100.0) == [worse_than_plain, plain]


@given(candidates=CANDIDATES)
def test_least_recently_used_goes_first_and_of_one_path_the_deepest(
    candidates: list[Candidate],
) -> None:
    ranked = LeastRecentlyUsed().order(candidates, 200.0)
    assert ranked == sorted(candidates, key=lambda c: (c.last_used, -c.position))


@given(candidates=CANDIDATES)
def test_first_in_first_out_looks_at_nothing_but_age(candidates: list[Candidate]) -> None:
    ranked = FirstInFirstOut().order(candidates, 200.0)
    assert ranked == sorted(candidates, key=lambda c: (c.created, -c.position))


def test_entry_hit_fifty_times_is_next_for_fifo_only() -> None:
    """The trap: FIFO where LRU was meant."""
    old = candidate(0, created=0.0, last_used=99.0, hits=50, chance=0.5)
    new = candidate(1, created=50.0, last_used=50.0, chance=0.1)
    assert handles(FirstInFirstOut().order([old, new], 100.0)) == [0, 1]
    assert handles(LeastRecentlyUsed().order([old, new], 100.0)) == [1, 0]
    assert handles(Worth(MeasuredCost()).order([old, new], 100.0)) == [1, 0]


KIND_OF = {"assistant": StopKind.REPLY, "user": StopKind.TAIL, "system": StopKind.SYSTEM}


@given(types=st.lists(st.sampled_from(sorted(KIND_OF)), max_size=40))
def test_type_priority_is_the_order_of_mlx_lm(types: list[str]) -> None:
    theirs = LRUPromptCache.CacheOrder()
    for i, name in enumerate(types):
        theirs.push("model", i, name)
    ours = [candidate(i, created=float(i), kind=KIND_OF[name]) for i, name in enumerate(types)]
    expected = [theirs.pop()[1] for _ in types]
    assert handles(TypePriority().order(ours[::-1], 0.0)) == expected
