"""The promise of docs/disk.md, in its words."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from keepwarm.cache.placement import StopKind
from keepwarm.cache.policy import MeasuredCost
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.cache.disk.folders import Weightless, crash, disk_at, flushed, tier_of
from tests.cache.toy import TOYS, UNTHINNED, messages, prefill

TOY = TOYS["rows_snapshot"]


class Steady(MeasuredCost):
    """A second for each token."""

    def prefill_s(self, start: int, end: int) -> float:
        return float(end - start)


def cache_at(folder: Path, **settings: Any) -> PrefixCache:
    cache = PrefixCache(
        TOY.make, budget_bytes=1 << 20, placement=UNTHINNED, cost=Steady(),
        disk=disk_at(folder, model=Weightless(), **settings),
    )  # fmt: skip
    tier_of(cache)
    return cache


def durable_len(cache: PrefixCache, prompt: Prompt) -> int:
    """As far as a restart would find it."""
    index = tier_of(cache)._shelf.index_for("")
    return index.durable_len(cache.keys_of(prompt))


def test_idle_conversation_is_acknowledged_in_time_and_not_before(tmp_path: Path) -> None:
    cache, prompt = cache_at(tmp_path, idle_s=0.4), messages(range(1, 41), 9, 17, 30)
    prefill(cache, TOY, prompt)
    began, tier = monotonic(), tier_of(cache)
    tier.wait_until(lambda: monotonic() - began > 0.25, 1)
    assert durable_len(cache, prompt) == 0
    assert tier.wait_until(lambda: durable_len(cache, prompt) >= 30, 5)
    crash(cache)


def test_prompt_is_written_though_its_reply_was_dropped(tmp_path: Path) -> None:
    """As where a template strips thoughts: the reply is stored, and dropped a moment later."""
    cache = cache_at(tmp_path, idle_s=60)
    prompt, told = messages(range(1, 31), 9, 29), messages(range(1, 41), 9, 29)
    prefill(cache, TOY, prompt)
    cache.insert(told, prefill(cache, TOY, told), kind=StopKind.REPLY)
    cache.discard(told, 30)
    flushed(cache)
    assert durable_len(cache, told) >= 29
    crash(cache)


def test_conversation_that_goes_on_is_not_written_at_each_of_its_turns(tmp_path: Path) -> None:
    cache = cache_at(tmp_path, idle_s=60)
    for length in range(20, 60, 4):
        prefill(cache, TOY, messages(range(1, length), length - 3))
        tier_of(cache).step()
    stats = flushed(cache).stats()
    assert stats.written_bytes == stats.nbytes
    assert len(list(tmp_path.glob("*/*.state"))) == 1
    crash(cache)


def test_system_part_is_acknowledged_when_it_is_used_a_second_time(tmp_path: Path) -> None:
    cache, system = cache_at(tmp_path, idle_s=60), Boundary(20, BoundaryKind.SYSTEM)
    one = Prompt([*range(1, 21), *range(30, 50)], [system])
    other = Prompt([*range(1, 21), *range(60, 80)], [system])
    prefill(cache, TOY, one)
    tier = tier_of(cache)
    tier.wait_until(lambda: False, 0.2)
    assert durable_len(cache, other) == 0
    prefill(cache, TOY, other)
    assert tier.wait_until(lambda: durable_len(cache, other) == 20, 5)
    crash(cache)


@pytest.mark.parametrize("name", ["rows", "rows_snapshot", "rows_window"])
def test_crash_costs_an_idle_conversation_no_more_than_is_said(name: str, tmp_path: Path) -> None:
    toy = TOYS[name]
    cache = PrefixCache(
        toy.make, budget_bytes=1 << 20, placement=UNTHINNED, cost=Steady(),
        disk=disk_at(tmp_path, model=Weightless(), min_spared_s=10.0),
    )  # fmt: skip
    tier_of(cache)
    for length in (25, 31, 36, 44, 47, 60):
        prompt = messages(range(1, length), length - 2)
        prefill(cache, toy, prompt)
        flushed(cache)
        there = cache.peek(prompt).cached_len
        assert there - 10 < durable_len(cache, prompt) <= there + 1
    # Five turns, and no file for what spares less.
    assert len({path.name for path in tmp_path.glob("*/*.state")}) <= 4
    crash(cache)
