"""How much memory the cache may take when nobody says."""

from __future__ import annotations

import os

import mlx.core as mx

# Of the memory that is not taken when the cache is made: weights are usually loaded by then.
_SHARE = 0.4


def default_budget_bytes() -> int:
    """A share of the device's free memory: what Metal, CUDA or the machine has."""
    info = mx.device_info()
    total = int(info.get("memory_size") or info.get("total_memory") or _machine_bytes())
    return int(_SHARE * max(0, total - mx.get_active_memory()))


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
