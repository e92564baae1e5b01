"""`keepwarm cache`: real files, real commands, beside a cache that is in use and without."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from keepwarm.cache.disk.settings import default_folder
from keepwarm.cache.store import PrefixCache
from keepwarm.cli.main import main
from tests.cache.disk.folders import Weightless, crash, disk_at, flushed, tier_of
from tests.cache.toy import TOYS, messages, prefill


def filled(root: Path, name: str, firsts: tuple[int, ...] = (1, 2)) -> PrefixCache:
    """A cache in use, with some prompts on the disk."""
    toy = TOYS["rows_snapshot"]
    cache = PrefixCache(toy.make, disk=disk_at(root, model=Weightless(name), name=name))
    tier_of(cache)
    for first in firsts:
        prefill(cache, toy, messages([first, *range(10, 60)], 20, 40))
        flushed(cache)
    return cache


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "other"):
        crash(filled(tmp_path, name))
    return tmp_path


def said(capsys: Any, root: Path, *argv: str, status: int = 0) -> str:
    act, *rest = argv
    assert main(["cache", act, "--disk-cache", str(root), *rest]) == status
    return str(capsys.readouterr().out)


def files(root: Path) -> list[Path]:
    return [path for path in root.glob("*/*") if path.suffix in (".rows", ".state")]


def test_ls_lists_models_with_sizes_and_who_is_served(capsys: Any, root: Path) -> None:
    cache = filled(root, "one", ())
    shown = said(capsys, root, "ls")
    crash(cache)
    assert "one" in shown
    assert "other" in shown
    assert shown.count("served") == 1
    assert str(root) in shown
    assert "no prompts are kept" in said(capsys, root / "none", "ls")


def test_show_lists_prompts(capsys: Any, root: Path) -> None:
    shown = said(capsys, root, "show", "one")
    assert shown.count("tail") == 2
    assert "weights" in shown
    assert main(["cache", "show", "--disk-cache", str(root), "none"]) == 2
    assert "no model" in capsys.readouterr().err


def test_verify_reads_every_byte(capsys: Any, root: Path) -> None:
    assert "every file holds" in said(capsys, root, "verify")
    path = files(root)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    shown = said(capsys, root, "verify", status=1)
    assert path.name in shown
    assert "1 files do not hold" in shown


def test_prune_deletes_the_oldest_first(capsys: Any, root: Path) -> None:
    every = files(root)
    for path in every[:3]:
        os.utime(path, (1, 1))
    assert "3 files deleted" in said(capsys, root, "prune", "--days", "1")
    assert files(root) == [path for path in every if path.exists()]
    said(capsys, root, "prune", "--max-bytes", "3kB")
    assert sum(path.stat().st_size for path in files(root)) <= 3000
    assert main(["cache", "prune", "--disk-cache", str(root)]) == 2


def test_clear_asks_first_and_leaves_served_models_alone(
    capsys: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "nothing was deleted" in said(capsys, root, "clear", status=1)
    before = files(root)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    said(capsys, root, "clear", "other")
    left = files(root)
    assert 0 < len(left) < len(before)
    cache = filled(root, "one", ())
    assert "keep their files" in said(capsys, root, "clear", "--yes")
    assert files(root) == left
    crash(cache)
    said(capsys, root, "clear", "--yes")
    assert not files(root)
    assert not [path for path in root.iterdir() if path.is_dir()]


def test_pruned_folder_is_served_on(capsys: Any, root: Path) -> None:
    said(capsys, root, "prune", "--max-bytes", "3kB")
    cache = filled(root, "one", (3,))
    assert tier_of(cache).stats().num_files
    crash(cache)
    assert "every file holds" in said(capsys, root, "verify")


def test_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "keepwarm" / "prompts"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_folder().parts[-4:] == ("Library", "Caches", "keepwarm", "prompts")
