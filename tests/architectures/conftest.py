"""Settings for the tests that run models."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True, scope="package")
def _without_compile() -> Iterator[None]:
    """On the CPU `mx.compile` starts a C++ compiler for every new shape: minutes in all."""
    if mx.default_device() != mx.cpu:
        yield
        return
    mx.disable_compile()
    yield
    mx.enable_compile()
