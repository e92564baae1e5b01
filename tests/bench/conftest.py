"""Servers that the tests of the benchmarks share: to start one takes longer than to ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keepwarm.bench import duel

MODEL = "qwen3_5-small"


@pytest.fixture(scope="session")
def servers() -> Iterator[duel.Servers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_DISABLE_COMPILE", "1")  # else mlx starts a compiler for every shape
        with duel.Servers(MODEL) as found:
            yield found
