"""Kill the process at any instant, or cut the power: what was acknowledged is found, nothing is
wrong, and the next start is never refused."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keepwarm.cache.disk.files import Files
from keepwarm.cache.disk.format import PREFIX_LEN, check_payload, decode, rest_len
from tests.cache.disk.folders import crash, flushed, tier_of
from tests.cache.disk.recording import Left, Op, Recording, crashes
from tests.cache.disk.victim import NAMES, cache_of, prompts, talk
from tests.cache.toy import TOYS, prefill
from tests.state.feeding import are_same, contents

# Children are made of a process that has imported all and computed nothing.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.cache.disk.victim"])


def survivors_are_right(folder: Path, name: str, seed: int, acknowledged: set[str]) -> int:
    """Start again, and compare all that comes from disk with a cold run. How many prompts were
    warm."""
    cache, toy = cache_of(folder, name), TOYS[name]
    tier = tier_of(cache)
    found = {n for index in tier._shelf.indexes.values() for n in index.files}
    assert acknowledged <= found
    num_warm = 0
    for prompt in prompts(seed):
        tier.load_now(prompt, cache.peek(prompt))
        match = cache.match(prompt)
        if match.cached_len:
            live = cache.restore(match)
            assert live.position == match.cached_len
            cold = toy.cold(prompt.tokens[: match.cached_len])
            assert are_same(contents(live.caches), contents(cold))
            num_warm += 1
        cache.clear()
    counts = tier.stats().events
    assert not any(kind.startswith("bad_") for kind in counts), counts
    crash(cache)
    return num_warm


# Kills


def killed(folder: Path, seed: int, number: int = 0, after: bool = False) -> tuple[str, set[str]]:
    """A process that was killed, at the operation `number` or somewhen: which toy it had, and what
    it knew to be safe."""
    name = NAMES[seed % len(NAMES)]
    log = folder / "log"
    child = _FORKS.Process(target=talk, args=(str(folder), name, seed, number, after))
    child.start()
    try:
        _wait_for(lambda: (log.exists() and "started" in log.read_text()) or not child.is_alive())
        if number:
            _wait_for(lambda: "done" in log.read_text() or not child.is_alive())
        else:
            # Every run has something that is safe, and most have something on its way.
            _wait_for(lambda: "safe" in log.read_text() or not child.is_alive())
            time.sleep(random.Random(seed).uniform(0, 0.2))
    finally:
        assert child.pid is not None
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.join(30)
    safe: set[str] = set()
    for line in log.read_text().splitlines():
        word, _, file = line.partition(" ")
        if word == "safe":
            safe.add(file)
        elif word == "gone":
            safe.discard(file)
    return name, safe


def _wait_for(is_so: object) -> None:
    until = time.monotonic() + 60
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.002)


def kill_and_look(folder: Path, seed: int, number: int = 0, after: bool = False) -> bool:
    """Whether anything had been acknowledged."""
    folder.mkdir()
    name, safe = killed(folder, seed, number, after)
    num_warm = survivors_are_right(folder / "disk", name, seed, safe)
    assert num_warm or not safe or name in ("rows_snapshot", "window_snapshot", "nested")
    shutil.rmtree(folder)
    return bool(safe)


def test_kill_at_any_instant(tmp_path: Path) -> None:
    assert all(kill_and_look(tmp_path / str(seed), seed) for seed in range(6))


def test_kill_at_any_step_of_a_write(tmp_path: Path) -> None:
    found = [
        kill_and_look(tmp_path / str(number), number, number, number % 2 == 0)
        for number in (7, 12, 18, 25, 37, 51)
    ]
    assert any(found)


@pytest.mark.crash
@pytest.mark.parametrize("batch", range(10))
def test_two_hundred_kills_at_any_instant(batch: int, tmp_path: Path) -> None:
    seeds = range(100 + 20 * batch, 120 + 20 * batch)
    found = [kill_and_look(tmp_path / str(seed), seed) for seed in seeds]
    assert all(found)


@pytest.mark.crash
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_every_step_of_a_write(after: bool, tmp_path: Path) -> None:
    found = [
        kill_and_look(tmp_path / str(number), number, number, after) for number in range(1, 71)
    ]
    assert sum(found) > 15


# Power cuts


def recorded(folder: Path, name: str, seed: int, files: Recording) -> list[Op]:
    """All operations of some conversations; each round is acknowledged before the next."""
    cache = cache_of(folder, name, files)
    tier_of(cache)
    for prompt in prompts(seed):
        prefill(cache, TOYS[name], prompt)
        flushed(cache)
    crash(cache)
    return list(files.ops)


def torn_worlds(
    folder: Path, name: str, seed: int, every: int, files: Recording | None = None
) -> Iterator[tuple[Left, Path]]:
    """Each thing that a power cut can leave, on the disk."""
    ops = recorded(folder, name, seed, files or Recording())
    (model,) = [path for path in folder.iterdir() if path.is_dir()]
    for left in crashes(ops, every):
        for path in [*folder.iterdir(), *model.iterdir()]:
            if path.is_file() and path.name != "lock":
                path.unlink()
        for path, data in left.files.items():
            path.write_bytes(data)
        yield left, model


def whole_files(model: Path) -> set[str]:
    """The names of the files that hold, every byte read."""
    found = set()
    for path in model.iterdir():
        if path.suffix in (".rows", ".state"):
            data = path.read_bytes()
            try:
                header, sums = decode(data, len(data))
                end = PREFIX_LEN + rest_len(data)
                check_payload([memoryview(data)[end:]], sums)
            except Exception:
                continue
            assert header.name == path.name
            found.add(path.name)
    return found


def no_power_cut_loses_what_was_acknowledged(folder: Path, name: str, seed: int, every: int) -> int:
    """How many worlds were looked at."""
    count = most = 0
    for count, (left, model) in enumerate(torn_worlds(folder, name, seed, every), 1):
        assert left.acknowledged <= whole_files(model), left.story
        most = max(most, len(left.acknowledged))
        if count % 40 == 1:
            survivors_are_right(folder, name, seed, set(left.acknowledged))
    assert most > 5
    return count


def test_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert no_power_cut_loses_what_was_acknowledged(tmp_path, "rows_snapshot", 3, 17) > 30


@pytest.mark.crash
@pytest.mark.parametrize("name", NAMES)
def test_power_cut_at_every_operation(name: str, tmp_path: Path) -> None:
    assert no_power_cut_loses_what_was_acknowledged(tmp_path, name, 5, 1) > 300


class Careless(Recording):
    """Forgets one thing that makes files last."""

    def __init__(self, forgotten: str) -> None:
        super().__init__()
        self._forgotten = forgotten

    def sync(self, fd: int) -> None:
        if self._forgotten != "sync":
            super().sync(fd)

    def settle(self, folder: Path) -> None:
        if self._forgotten != "settle":
            super().settle(folder)
        else:
            Files.settle(self, folder)
            self.ops.append(Op("settle", folder.parent))  # the wrong one


@pytest.mark.parametrize("forgotten", ["sync", "settle"])
def test_sync_that_is_forgotten_would_be_noticed(forgotten: str, tmp_path: Path) -> None:
    files = Careless(forgotten)
    worlds = torn_worlds(tmp_path, "rows", 3, 17, files)
    assert any(not left.acknowledged <= whole_files(model) for left, model in worlds)
