"""Recurrent layers (Mamba, DeltaNet, RWKV, short convolution): one state, whole or nothing."""

from __future__ import annotations

from mlx_lm.models.cache import ArraysCache

from keepwarm.state.opaque import WholeState


class RecurrentState(WholeState):
    """`ArraysCache` of any size; entries may be None, and stay None."""

    def __init__(self, size: int) -> None:
        super().__init__(lambda: ArraysCache(size))
        self.size = size
