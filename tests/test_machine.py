"""How much memory there is: what the machine has left, and what a container may take."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from keepwarm import machine
from keepwarm.machine import bound_spare_buffers, free_bytes, return_spare_buffers, rooms
from keepwarm.model.loader import prepared
from tests.architectures.zoo import ARCHITECTURES

UNLIMITED_V1 = "9223372036854771712"  # what the kernel says where there is no limit


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def group(folder: str, limit: str, used: int, read: int = 0) -> dict[str, str]:
    stat = f"anon {used - read}\nactive_file 7\ninactive_file {read}\n"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": stat,
    }


def test_machine_has_left_what_linux_says(tmp_path: Path) -> None:
    meminfo = "MemTotal:  24000 kB\nMemFree:  100 kB\nMemAvailable:   9000 kB\nBuffers: 1 kB\n"
    assert rooms(write(tmp_path, {"proc/meminfo": meminfo})) == [9000 * 1024]


def test_container_has_left_its_limit_less_what_it_uses(tmp_path: Path) -> None:
    """As a container sees itself: the outermost group. What was read from files goes if need be."""
    files = {"proc/self/cgroup": "0::/\n", **group("sys/fs/cgroup", "8000", 3000, 1000)}
    assert rooms(write(tmp_path, files)) == [6000]


def test_groups_around_this_one_count(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        **group("sys/fs/cgroup/outer/inner", "max", 100),
        **group("sys/fs/cgroup/outer", "5000", 1000),
    }
    assert rooms(write(tmp_path, files)) == [4000]


def test_group_that_uses_more_than_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a\n", **group("sys/fs/cgroup/a", "100", 150)}
    assert rooms(write(tmp_path, files)) == [0]


def test_the_first_kind_of_groups_counts_too(tmp_path: Path) -> None:
    """In a container of that kind the name is the one outside, and its files are outermost."""
    top = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n",
        f"{top}/memory.limit_in_bytes": "9000\n",
        f"{top}/memory.usage_in_bytes": "5000\n",
        f"{top}/memory.stat": "cache 1\ninactive_file 1\ntotal_inactive_file 2000\n",
    }
    assert rooms(write(tmp_path, files)) == [6000]
    write(tmp_path, {f"{top}/memory.limit_in_bytes": UNLIMITED_V1})
    assert rooms(tmp_path)[0] > 10**18


def test_nothing_is_told_where_there_is_no_linux(tmp_path: Path) -> None:
    assert rooms(tmp_path) == []


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has memory of its own")
def test_free_memory_is_a_share_of_the_smallest_room(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = free_bytes()
    monkeypatch.setattr(machine, "rooms", list)
    assert whole <= free_bytes()
    monkeypatch.setattr(machine, "rooms", lambda: [10**20, 1000])
    assert free_bytes() == 900
    monkeypatch.setattr(machine, "rooms", lambda: [0])
    assert free_bytes() == 1


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="on a GPU 16 bits are fast")
def test_weights_are_not_widened_in_a_container_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "rooms", lambda: [1000])
    model = prepared(ARCHITECTURES["llama"].build(mx.bfloat16))
    assert {array.dtype for _, array in tree_flatten(model.parameters())} == {mx.bfloat16}


def test_spare_buffers_are_bounded_and_never_beyond_what_was_asked_for() -> None:
    before = mx.set_cache_limit(1 << 40)
    try:
        assert bound_spare_buffers(80 << 30) == 10 << 30
        assert bound_spare_buffers(1 << 20) == 1 << 30
        assert bound_spare_buffers(80 << 30) == 1 << 30
        mx.set_cache_limit(5)
        assert bound_spare_buffers(80 << 30) == 5
        assert mx.set_cache_limit(before) == 5
    finally:
        mx.set_cache_limit(before)


@pytest.mark.parametrize("is_cuda", [False, True])
def test_spare_buffers_are_given_back_on_cuda_when_they_are_many(
    is_cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: is_cuda)
    monkeypatch.setattr(mx, "gpu", mx.default_device().type)
    mx.clear_cache()
    before = mx.set_cache_limit(1 << 40)
    try:
        mx.eval(mx.zeros(1 << 20) + 1)
        kept = mx.get_cache_memory()
        assert kept >= 4 << 20
        return_spare_buffers(1 << 20)
        assert mx.get_cache_memory() == (kept if is_cuda else 0)
        mx.eval(mx.zeros(80 << 20) + 1)  # more than a quarter of 1 GB
        return_spare_buffers(1 << 20)
        assert mx.get_cache_memory() == 0
    finally:
        mx.set_cache_limit(before)
