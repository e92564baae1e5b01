"""How much memory the cache may take when nobody says."""

from __future__ import annotations

from keepwarm.machine import free_bytes

# Of the memory that is not taken when the cache is made: weights are usually loaded by then.
SHARE = 0.4


def default_budget_bytes() -> int:
    """A share of the free memory: what Metal, CUDA, the machine or its container has."""
    return int(SHARE * free_bytes())
