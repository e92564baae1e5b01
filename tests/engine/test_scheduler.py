"""The scheduler: who is read next, and who waits for whom. No model, no mlx."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.engine.scheduler import Job, Scheduler
from keepwarm.prompt.boundaries import shared_len

SYSTEM = list(range(100, 150))


def job(tokens: list[int], arrived: float, stops: list[int] | None = None, **settings: Any) -> Job:
    array = np.array(tokens, dtype=np.int32)
    return Job(array, settings.pop("namespace", ""), arrived, stops=stops or [], **settings)


def with_jobs(*jobs: Job, can_cut: bool = False, may_add_stops: bool = True) -> Scheduler:
    scheduler = Scheduler(can_cut=can_cut, may_add_stops=may_add_stops)
    for each in jobs:
        scheduler.add(each)
    return scheduler


def ready_of(*jobs: Job) -> list[Job]:
    scheduler = with_jobs(*jobs)
    return scheduler.ready(scheduler.window)


@given(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2), min_size=1))
def test_shared_len_is_the_common_beginning(a: list[int], b: list[int]) -> None:
    n = shared_len(np.array(a), np.array(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_second_waits_for_the_checkpoint_that_the_first_will_make() -> None:
    first, second = job([*SYSTEM, 1, 2, 3], 0, [50]), job([*SYSTEM, 4, 5, 6], 1, [50])
    scheduler = with_jobs(first, second)
    assert scheduler.ready(scheduler.window) == [first]
    assert second.waits_for == 50
    first.is_started, first.position = True, 50
    assert scheduler.ready(scheduler.window) == [second]
    assert second.waits_for is None


def test_nobody_waits_for_less_than_it_has() -> None:
    first, second = job([*SYSTEM, 1, 2, 3], 0, [50]), job([*SYSTEM, 4, 5, 6], 1, position=50)
    assert ready_of(first, second) == [first, second]


def test_nobody_waits_for_another_namespace() -> None:
    first = job([*SYSTEM, 1], 0, [50], namespace="a")
    second = job([*SYSTEM, 2], 1, [50], namespace="b")
    assert ready_of(first, second) == [first, second]


def test_rows_that_can_be_cut_are_waited_for_up_to_where_prompts_part() -> None:
    first, second = job([*SYSTEM, 1, 2, 3, 4], 0, [20, 53]), job([*SYSTEM, 1, 2, 9], 1)
    scheduler = with_jobs(first, second, can_cut=True)
    first.is_started, first.position = True, 20
    assert scheduler.ready(scheduler.window) == []
    assert second.waits_for == 52
    first.position = 53
    assert scheduler.ready(scheduler.window) == [second]


def test_prompt_that_is_the_beginning_of_another_leaves_a_token_to_read() -> None:
    first, second = job([*SYSTEM, 1, 2], 0, [50, 52]), job([*SYSTEM, 1, 2], 1)
    scheduler = with_jobs(first, second, can_cut=True)
    scheduler.ready(scheduler.window)
    assert second.waits_for == 51


def test_extra_stop_where_waiting_prompts_part_when_it_saves_enough() -> None:
    header = [7, 8, 9]
    first = job([*SYSTEM, *header, 1, 1, 1], 0, [50])
    others = [job([*SYSTEM, *header, 2 + i, 1], 1 + i, [50]) for i in range(3)]
    assert with_jobs(first, *others).partings(first) == [53]
    assert with_jobs(first, *others[:2]).partings(first) == []  # 6 tokens are not worth a pass
    assert with_jobs(first, *others, may_add_stops=False).partings(first) == []


def test_rows_that_can_be_cut_need_no_extra_stop_where_the_next_is_near() -> None:
    other = job([*SYSTEM, 2], 1)
    near, far = job([*SYSTEM, *[1] * 3000], 0, [400]), job([*SYSTEM, *[1] * 3000], 0, [2048])
    assert with_jobs(near, other, can_cut=True).partings(near) == []
    assert with_jobs(far, other, can_cut=True).partings(far) == [50]


def test_nobody_waits_for_one_that_there_is_no_room_for() -> None:
    first, second = job([*SYSTEM, 1, 2, 3], 0, [50]), job([*SYSTEM, 4, 5, 6], 1, [50])
    scheduler = with_jobs(first, second)
    assert scheduler.ready([second]) == [second]


def test_nobody_waits_for_a_few_tokens() -> None:
    first, second = job([1, 2, 3, *SYSTEM], 0, [3, 53]), job([1, 2, 3, 9, 9], 1, [3])
    assert ready_of(first, second) == [first, second]


def test_shortest_rest_first_and_every_fourth_time_the_oldest() -> None:
    long, short = job([1] * 500, 0, is_started=True), job([2] * 50, 1)
    scheduler = with_jobs(long, short)
    picked = [scheduler.pick(scheduler.ready(scheduler.window)) for _ in range(8)]
    assert [p is long for p in picked] == [False, False, False, True] * 2


def test_nothing_to_do_is_none() -> None:
    scheduler = with_jobs()
    assert scheduler.pick(scheduler.ready(scheduler.window)) is None


def test_preempted_job_is_queued_by_its_first_arrival() -> None:
    a, b, c = job([1, 2], 0), job([3, 4], 1), job([5, 6], 2)
    scheduler = with_jobs(a, c)
    scheduler.add(b)
    assert scheduler.window == [a, b, c]


@st.composite
def bursts(draw: st.DrawFn) -> list[list[int]]:
    return draw(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=12), max_size=6))


@given(bursts(), st.booleans(), st.booleans())
def test_somebody_is_always_ready_and_all_are_read(
    prompts: list[list[int]], can_cut: bool, may_add: bool
) -> None:
    jobs = [job(tokens, i, list(range(3, len(tokens), 3))) for i, tokens in enumerate(prompts)]
    scheduler = with_jobs(*jobs, can_cut=can_cut, may_add_stops=may_add)
    for _ in range(1000):
        picked = scheduler.pick(scheduler.ready(scheduler.window))
        if picked is None:
            break
        picked.is_started = True
        ahead = sorted({*picked.stops, *scheduler.partings(picked), len(picked.tokens)})
        picked.position = next(stop for stop in ahead if stop > picked.position)
        if picked.position == len(picked.tokens):
            scheduler.remove(picked)
    assert len(scheduler) == 0
