"""Stop without a word, start again: warm, and with the very states that were there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.placement import Placement
from keepwarm.cache.store import PrefixCache
from tests.cache.disk.folders import Weightless, crash, disk_at, flushed, tier_of
from tests.cache.toy import TOYS, UNTHINNED, Toy, messages, prefill
from tests.state.feeding import are_same, contents

STORED = [name for name in TOYS if name != "opaque"]


def cache_at(folder: Path, toy: Toy, **settings: Any) -> PrefixCache:
    model = settings.pop("model", None) or Weightless()
    disk: Disk = settings.pop("disk", None) or disk_at(folder, model=model)
    chosen: dict[str, Any] = {"budget_bytes": 1 << 20, "placement": UNTHINNED, **settings}
    cache = PrefixCache(toy.make, disk=disk, **chosen)
    tier_of(cache)
    return cache


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("name", STORED)
def test_restart_gives_the_states_of_a_cold_run(name: str, exact: bool, tmp_path: Path) -> None:
    toy, prompt = TOYS[name], messages(list(range(1, 41)), 9, 17, 30)
    first = cache_at(tmp_path, toy, exact=exact)
    prefill(first, toy, prompt)
    assert flushed(first).stats().num_files
    crash(first)

    again = cache_at(tmp_path, toy, exact=exact)
    assert again.peek(prompt).cached_len == 0
    load = tier_of(again).load_now(prompt, again.peek(prompt))
    assert load is not None
    match = again.match(prompt)
    assert match.cached_len == load.position == first.peek(prompt).cached_len >= 30
    live = again.restore(match)
    stops = [s.position for s in again.placement.exact_schedule(prompt)] if exact else []
    cold = toy.cold(prompt.tokens[: match.cached_len], stops)
    assert are_same(contents(live.caches), contents(cold))
    again.check()
    crash(again)


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("name", STORED)
def test_prompts_that_part_within_a_file_come_back_each_as_it_was(
    name: str, exact: bool, tmp_path: Path
) -> None:
    toy = TOYS[name]
    # Files of 20 and more rows: what the others have begins within the first one's.
    settings: dict[str, Any] = {"exact": exact, "placement": Placement(min_span=4, prefill_step=40)}
    asked = [
        messages([*range(1, 18), *range(first, first + 35)], 8, 26, 45) for first in (100, 200, 300)
    ]
    first = cache_at(tmp_path, toy, **settings)
    for prompt in asked:
        prefill(first, toy, prompt)
        flushed(first)
    crash(first)
    for order in (asked, asked[::-1]):
        again = cache_at(tmp_path, toy, **settings)
        for prompt in order:
            tier_of(again).load_now(prompt, again.peek(prompt))
            match = again.match(prompt)
            assert match.cached_len >= 45
            live = again.restore(match)
            stops = [s.position for s in again.placement.exact_schedule(prompt)] if exact else []
            cold = toy.cold(prompt.tokens[: match.cached_len], stops)
            assert are_same(contents(live.caches), contents(cold))
        again.check()
        assert not any("bad" in kind for kind in tier_of(again).stats().events)
        crash(again)
