"""Caches with a disk tier, and a start after a stop that nobody prepared for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.tier import Tier
from keepwarm.cache.store import PrefixCache


@dataclass
class Args:
    name: str = "toy"


class Weightless(nn.Module):
    """What a toy is known by."""

    def __init__(self, name: str = "toy", seed: int = 0) -> None:
        super().__init__()
        self.args = Args(name)
        self.weight = mx.arange(8) + seed


def disk_at(folder: Path, **settings: Any) -> Disk:
    """All is worth a file, at once."""
    return Disk(folder, **{"idle_s": 0.0, "min_spared_s": 0.0, **settings})


def tier_of(cache: PrefixCache) -> Tier:
    assert cache.disk is not None
    assert cache.disk.wait_open(), cache.disk.off_because
    return cache.disk


def flushed(cache: PrefixCache) -> Tier:
    """All that rests is acknowledged."""
    tier = tier_of(cache)
    assert tier.flush()
    assert tier.wait_until(lambda: not tier._reading.loads and tier._writing.is_done, 30)
    for index in tier._shelf.indexes.values():
        index.check()
    cache.check()
    return tier


def crash(cache: PrefixCache) -> None:
    """The process is gone: nothing more is written, and the lock is free."""
    assert cache.disk is not None
    cache.disk._shelf.close(10)
