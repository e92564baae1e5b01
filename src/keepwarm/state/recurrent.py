"""Recurrent layers (Mamba, DeltaNet, RWKV, short convolution): one state, whole or nothing."""

from __future__ import annotations

from typing import Any

from keepwarm.state.attention import check_single
from keepwarm.state.base import Snapshot
from keepwarm.state.opaque import WholeState


class RecurrentState(WholeState):
    """`ArraysCache` of any size; entries may be None, and stay None."""

    def __init__(self, size: int) -> None:
        self.size = size

    def measure(self, cache: Any) -> int:
        check_single([entry for entry in cache.cache if entry is not None])
        return super().measure(cache)

    def snapshot(self, cache: Any) -> Snapshot:
        check_single([entry for entry in cache.cache if entry is not None])
        return super().snapshot(cache)
