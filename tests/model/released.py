"""mlx-lm's own functions, whatever stands in their place, and how far ours are from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import mlx.core as mx

from keepwarm.model import speedups


def released(module: Any, name: str) -> Callable[..., Any]:
    """A function of one of mlx-lm's modules as it is released; `name` may be Class.method."""
    with speedups.mlx_lms_own():
        function: Callable[..., Any] = attrgetter(name)(module)
    return function


def distance(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference, as a part of the largest value."""
    assert ours.shape == theirs.shape
    ours, theirs = ours.astype(mx.float32), theirs.astype(mx.float32)
    assert mx.isfinite(ours).all().item()
    scale = mx.maximum(mx.abs(theirs).max(), 1e-6)
    return float((mx.abs(ours - theirs).max() / scale).item())


def assert_close(
    ours: Sequence[mx.array], theirs: Sequence[mx.array], within: float = 1e-5
) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        assert distance(mine, other) < within


def rates_of_forgetting(shape: tuple[int, ...], spread: float) -> mx.array:
    """Positive rates r for decays exp(-r): all about 0.05 without spread, from 1e-9 to 1e6 with 3."""
    return mx.exp(spread * 2 * mx.random.normal(shape) - 3)
