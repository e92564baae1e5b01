"""How much lies there, how much is written in a day, how long it lies there, and disks that fail."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from time import time
from typing import Any

import pytest

from keepwarm.cache.disk import root as rooted
from keepwarm.cache.disk import survey
from keepwarm.cache.disk.files import Files
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Prompt
from tests.cache.disk.folders import Weightless, crash, disk_at, flushed, tier_of
from tests.cache.disk.test_restart import cache_at
from tests.cache.toy import TOYS, messages, prefill
from tests.state.feeding import are_same, contents

TOY = TOYS["rows_snapshot"]


CAP = 20_000


def prompt(first: int) -> Prompt:
    return messages([first, *range(1, 40)], 9, 17, 30)


def with_disk(folder: Path, **settings: Any) -> PrefixCache:
    disk = disk_at(folder, model=Weightless(settings.pop("name", "toy")), **settings)
    return PrefixCache(TOY.make, budget_bytes=1 << 20, disk=disk)


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.*") if path.name != "about.json")


class Watching(Files):
    """Looks how much there is after everything that is done."""

    def __init__(self, folder: Path) -> None:
        self.most = 0
        self._folder = folder

    def write(self, fd: int, buffers: Sequence[memoryview]) -> None:
        super().write(fd, buffers)
        self.most = max(self.most, held(self._folder))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.most = max(self.most, held(self._folder))


def test_cap_holds_at_every_instant_and_the_oldest_goes(tmp_path: Path) -> None:
    files = Watching(tmp_path)
    cache = with_disk(tmp_path, max_bytes=CAP, files=files)
    tier_of(cache)
    for first in range(100, 112):
        prefill(cache, TOY, prompt(first))
        flushed(cache)
    stats = tier_of(cache).stats()
    assert stats.events["evicted_files"]
    assert CAP // 2 < files.most <= CAP
    assert stats.nbytes == held(tmp_path)
    crash(cache)
    again = with_disk(tmp_path, max_bytes=CAP)
    tier = tier_of(again)
    assert tier.load_now(prompt(100), again.peek(prompt(100))) is None
    assert tier.load_now(prompt(111), again.peek(prompt(111))) is not None
    crash(again)


def test_cap_spans_all_models(tmp_path: Path) -> None:
    for number, name in enumerate("abcdef"):
        files = Watching(tmp_path)
        cache = with_disk(tmp_path, max_bytes=CAP, files=files, name=name)
        tier_of(cache)
        for first in (100, 101, 102):
            prefill(cache, TOY, prompt(first))
            flushed(cache)
        assert tier_of(cache).stats().num_files
        assert files.most <= CAP
        crash(cache)
        folders = [path for path in tmp_path.iterdir() if path.is_dir()]
        assert len(folders) == number + 1


def test_full_file_system_shrinks_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = with_disk(tmp_path, max_bytes=10**9)
    tier_of(cache)
    prefill(cache, TOY, prompt(1))
    flushed(cache)
    before = held(tmp_path)
    real = rooted.shutil.disk_usage(tmp_path)
    almost_full = type(real)(10**12, 10**12, 10**9)
    monkeypatch.setattr(rooted.shutil, "disk_usage", lambda _: almost_full)
    prefill(cache, TOY, prompt(2))
    flushed(cache)
    assert held(tmp_path) <= before
    assert tier_of(cache).stats().events["no_room_on_disk"]
    crash(cache)


def test_limit_of_a_day_holds_over_restarts_and_clocks_that_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = ["2026-01-02"]
    monkeypatch.setattr(rooted, "strftime", lambda *_: days[-1])
    limit = 40_000
    total = 0
    for first in range(12):
        cache = with_disk(tmp_path, day_bytes=limit)
        tier_of(cache)
        prefill(cache, TOY, prompt(first))
        tier_of(cache).flush(0.2)
        total += tier_of(cache).stats().written_bytes
        counted = json.loads((tmp_path / "written.json").read_text())["bytes"]
        assert total <= counted <= limit
        crash(cache)
        if first == 6:
            days.append("2025-12-31")
    assert 10_000 < total <= limit
    days.append("2026-01-03")
    cache = with_disk(tmp_path, day_bytes=limit)
    tier_of(cache)
    prefill(cache, TOY, prompt(99))
    assert flushed(cache).stats().written_bytes
    crash(cache)


def test_damaged_count_of_the_day_means_no_more_today(tmp_path: Path) -> None:
    tmp_path.joinpath("written.json").write_text("{")
    cache = with_disk(tmp_path)
    tier_of(cache)
    prefill(cache, TOY, prompt(1))
    tier_of(cache).flush(0.2)
    assert tier_of(cache).stats().events["day_limit"]
    assert not held(tmp_path)
    crash(cache)


def test_what_was_not_used_for_too_long_goes(tmp_path: Path) -> None:
    cache = with_disk(tmp_path)
    tier_of(cache)
    for first in (1, 2):
        prefill(cache, TOY, prompt(first))
        flushed(cache)
    crash(cache)
    names = {path for path in tmp_path.glob("*/*.*") if path.suffix in (".rows", ".state")}
    used = with_disk(tmp_path)
    tier_of(used).load_now(prompt(2), used.peek(prompt(2)))
    flushed(used)
    crash(used)
    newest = max(path.stat().st_mtime for path in names)
    old = {path for path in names if path.stat().st_mtime < newest}
    assert old
    for path in old:
        os.utime(path, (1, 1))
    again = with_disk(tmp_path, max_days=1.0)
    flushed(again)
    assert tier_of(again).stats().events["expired_files"] == len(old)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in names - old)
    crash(again)


def test_second_owner_runs_without_and_says_so(tmp_path: Path) -> None:
    one = cache_at(tmp_path, TOY)
    other = PrefixCache(TOY.make, disk=disk_at(tmp_path, model=Weightless()))
    assert other.disk is not None
    assert not other.disk.wait_open(10)
    assert "another process uses" in str(other.disk.off_because)
    live = prefill(other, TOY, prompt(1))
    assert are_same(contents(live.caches), contents(TOY.cold(prompt(1).tokens)))
    crash(other)
    crash(one)
    again = cache_at(tmp_path, TOY)
    crash(again)


# Disks that fail


class Failing(Files):
    """A disk that fails at one kind of operation, once it is told to."""

    def __init__(self, act: str, number: int) -> None:
        self.error: int | None = None
        for name in ("create", "write", "sync", "rename", "settle", "open", "read"):
            setattr(self, name, self._watched(getattr(self, name), name == act, number))

    def _watched(self, act: Callable[..., Any], fails: bool, number: int) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if fails and self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            return act(*args)

        return run


@pytest.mark.parametrize("act", ["create", "write", "sync", "rename", "settle"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_disk_that_fails_to_write_turns_the_tier_off(act: str, number: int, tmp_path: Path) -> None:
    files = Failing(act, number)
    cache = with_disk(tmp_path, files=files)
    tier = tier_of(cache)
    files.error = number
    prefill(cache, TOY, prompt(1))
    tier.flush(5)
    assert tier.off_because == os.strerror(number)
    assert tier.stats().events["turned_off"] == 1
    live = prefill(cache, TOY, prompt(1))
    assert are_same(contents(live.caches), contents(TOY.cold(prompt(1).tokens)))
    assert cache.ledger.staged_bytes == 0
    cache.check()
    crash(cache)
    again = with_disk(tmp_path)
    tier_of(again)
    assert not list(tmp_path.glob("*/*.tmp.*"))
    crash(again)


@pytest.mark.parametrize("act", ["open", "read"])
def test_disk_that_fails_to_read_turns_the_tier_off(act: str, tmp_path: Path) -> None:
    first = with_disk(tmp_path)
    tier_of(first)
    prefill(first, TOY, prompt(1))
    flushed(first)
    crash(first)
    files = Failing(act, errno.EIO)
    cache = with_disk(tmp_path, files=files)
    tier = tier_of(cache)
    files.error = errno.EIO
    load = tier.load_now(prompt(1), cache.peek(prompt(1)))
    assert load is not None
    assert not load.position
    assert tier.off_because == os.strerror(errno.EIO)
    assert cache.ledger.staged_bytes == 0
    crash(cache)


class Hanging(Files):
    """A disk that does not come back from a write."""

    def __init__(self) -> None:
        self.ends = Event()

    def write(self, fd: int, buffers: Sequence[memoryview]) -> None:
        if len(buffers) > 1:
            self.ends.wait(30)
        super().write(fd, buffers)


def test_disk_that_hangs_turns_the_tier_off_and_holds_nobody_up(tmp_path: Path) -> None:
    files = Hanging()
    cache = with_disk(tmp_path, files=files, hang_s=0.1)
    tier = tier_of(cache)
    live = prefill(cache, TOY, prompt(1))
    tier.wait_until(lambda: tier.off_because is not None, 5)
    assert "has not answered" in str(tier.off_because)
    assert are_same(contents(live.caches), contents(TOY.cold(prompt(1).tokens)))
    assert prefill(cache, TOY, prompt(2)).position == 40
    files.ends.set()
    crash(cache)
    assert cache.ledger.staged_bytes == 0


def test_folder_that_vanishes_turns_the_tier_off(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    cache = with_disk(folder)
    tier = tier_of(cache)
    folder.rename(tmp_path / "elsewhere")
    prefill(cache, TOY, prompt(1))
    tier.flush(5)
    assert tier.off_because is not None
    assert cache.ledger.staged_bytes == 0
    crash(cache)


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    cache = with_disk(tmp_path / "file")
    assert cache.disk is not None
    assert not cache.disk.wait_open(10)
    assert cache.disk.off_because
    assert prefill(cache, TOY, prompt(1)).position == 40
    crash(cache)


def test_folders_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    cache = with_disk(tmp_path / "disk")
    tier_of(cache)
    prefill(cache, TOY, prompt(1))
    flushed(cache)
    for path in (tmp_path / "disk").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (tmp_path / "disk").stat().st_mode & 0o777 == 0o700
    crash(cache)


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    """Whatever a user's folder holds besides is not ours to count, to lock or to delete."""
    photo = tmp_path / "photos" / "wedding.jpg"
    photo.parent.mkdir()
    photo.write_bytes(b"x" * 1000)
    os.utime(photo, (0, 0))
    mode = tmp_path.stat().st_mode
    root = rooted.Root(tmp_path, tmp_path / "none", Files(), max_bytes=10, day_bytes=0)
    assert root.others() == []
    assert root.others_bytes() == 0
    survey.clear(tmp_path, None)
    survey.prune(tmp_path, max_bytes=0, before=time())
    assert [path.name for path in photo.parent.iterdir()] == ["wedding.jpg"]
    assert tmp_path.stat().st_mode == mode


def test_conversation_larger_than_the_folder_is_not_written_for_ever(tmp_path: Path) -> None:
    long = messages(range(1, 400), *range(50, 399, 50))
    whole = with_disk(tmp_path / "whole", buffer_bytes=4000)
    tier_of(whole)
    prefill(whole, TOY, long)
    nbytes = flushed(whole).stats().nbytes
    crash(whole)
    small = with_disk(tmp_path / "small", buffer_bytes=4000, max_bytes=int(0.6 * nbytes))
    tier_of(small)
    prefill(small, TOY, long)
    assert 0 < flushed(small).stats().written_bytes < nbytes
    crash(small)


def test_prompt_that_is_read_while_the_folder_is_opened_is_written(tmp_path: Path) -> None:
    cache = with_disk(tmp_path)
    assert cache.disk is not None
    assert cache.disk.is_opening
    prefill(cache, TOY, prompt(1))
    assert flushed(cache).stats().written_bytes > 0
    crash(cache)


def test_cache_closed_while_it_opens_stays_off(tmp_path: Path) -> None:
    cache = PrefixCache(TOY.make, budget_bytes=1 << 20, disk=disk_at(tmp_path, model=Weightless()))
    cache.close()
    assert cache.disk is not None
    assert not cache.disk._shelf.is_on
    prefill(cache, TOY, messages(range(1, 20), 9))
