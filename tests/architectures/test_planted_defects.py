"""The suite is tested, too: defects like those that others shipped, planted one at a time.

Each row plants one and runs a proof of the suite, which has to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from keepwarm.cache import blocks, insert
from keepwarm.cache.live import Live
from keepwarm.cache.placement import Placement, Stop
from keepwarm.cache.store import PrefixCache
from keepwarm.cache.tree import Checkpoint
from keepwarm.errors import Corrupt
from keepwarm.prompt.boundaries import Prompt
from keepwarm.state import base, opaque
from keepwarm.state.attention import PlainKV
from keepwarm.state.base import Arrays, Interval, Rows
from keepwarm.state.window import RotatingKV

from .drive import PLACEMENT, prompt_of, random_tokens, read
from .test_exact import test_every_checkpoint_gives_the_bits_of_a_cold_run as prove_exact
from .zoo import ARCHITECTURES

Plant = Callable[[pytest.MonkeyPatch], None]


def exact_on(name: str) -> Callable[[], None]:
    return lambda: prove_exact(ARCHITECTURES[name], mx.float32)


def prove_none_stays_none() -> None:
    live = Live([ArraysCache(3)])
    live.caches[0][0] = mx.ones((1, 2))
    live.advance([1, 2, 3])
    cache = PrefixCache(lambda: [ArraysCache(3)], budget_bytes=1 << 20)
    prompt = Prompt([1, 2, 3, 4])
    assert cache.insert(prompt, live).is_stored
    restored = cache.restore(cache.match(prompt)).caches[0]
    assert [entry is None for entry in restored.cache] == [False, True, True]


def prove_ledger_is_what_is_held() -> None:
    model = ARCHITECTURES["qwen3_5"].build(mx.float32)
    cache = PrefixCache(model, placement=PLACEMENT, budget_bytes=1 << 28)
    mx.clear_cache()
    before = mx.get_active_memory()
    for turns in range(2, 9):
        spans = [random_tokens(24, 0), *(random_tokens(20, seed) for seed in range(1, turns))]
        read(model, cache, prompt_of(spans))
    mx.clear_cache()
    held = mx.get_active_memory() - before
    assert held < 1.1 * cache.ledger.held_bytes + (64 << 10)


def wrong_offset(patch: pytest.MonkeyPatch) -> None:
    rebuild = PlainKV.rebuild

    def shifted(self: PlainKV, position: int, rows: Sequence[Arrays], reserve: int) -> Any:
        cache = rebuild(self, position, rows, reserve)
        cache.offset -= 1
        return cache

    patch.setattr(PlainKV, "rebuild", shifted)


def wrong_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def misfiled(position: int, *rest: Any) -> Checkpoint:
        return Checkpoint(position - 1, *rest)

    patch.setattr(insert, "Checkpoint", misfiled)


def rows_one_too_early(patch: pytest.MonkeyPatch) -> None:
    cut = Rows.cut

    def early(self: Rows, lo: int, hi: int) -> Arrays:
        return cut(self, lo - 1, hi - 1) if lo else cut(self, lo, hi)

    patch.setattr(Rows, "cut", early)


def short_window(patch: pytest.MonkeyPatch) -> None:
    needs = RotatingKV.needs

    def one_row_less(self: RotatingKV, position: int) -> list[Interval]:
        return [(min(lo + 1, hi - 1), hi) if lo else (lo, hi) for lo, hi in needs(self, position)]

    patch.setattr(RotatingKV, "needs", one_row_less)


def shifted_window(patch: pytest.MonkeyPatch) -> None:
    rebuild = RotatingKV.rebuild

    def rotated(self: RotatingKV, position: int, rows: Sequence[Arrays], reserve: int) -> Any:
        cache = rebuild(self, position, rows, reserve)
        cache.keys = mx.roll(cache.keys, 1, axis=2)
        return cache

    patch.setattr(RotatingKV, "rebuild", rotated)


def lost_none(patch: pytest.MonkeyPatch) -> None:
    duplicate = opaque.duplicate

    def filled(value: Any, *rest: Any) -> Any:
        return mx.zeros((1, 2)) if value is None else duplicate(value, *rest)

    patch.setattr(opaque, "duplicate", filled)


def views_instead_of_copies(patch: pytest.MonkeyPatch) -> None:
    for module in (base, blocks, opaque):
        patch.setattr(module, "owned", lambda array: array)


def stale_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Snapshots of the stop before: what a key that runs ahead of its state amounts to."""
    taken: list[Any] = []
    snapshots = blocks.Capture.snapshots

    def previous(self: blocks.Capture) -> Any:
        taken.append(snapshots(self))
        return taken[-2] if len(taken) > 1 else taken[-1]

    patch.setattr(blocks.Capture, "snapshots", previous)


def other_chunks_after_a_hit(patch: pytest.MonkeyPatch) -> None:
    stops = Placement.exact_stops

    def to_the_end(self: Placement, prompt: Prompt, start: int) -> list[Stop]:
        return stops(self, prompt, start)[-1:] if start else stops(self, prompt, start)

    patch.setattr(Placement, "exact_stops", to_the_end)


CASES: list[tuple[Plant, Callable[[], None]]] = [
    (wrong_offset, exact_on("qwen3")),
    (wrong_checkpoint, exact_on("qwen3_5")),
    (rows_one_too_early, exact_on("qwen3")),
    (short_window, exact_on("gpt_oss")),
    (shifted_window, exact_on("gpt_oss")),
    (lost_none, prove_none_stays_none),
    (views_instead_of_copies, prove_ledger_is_what_is_held),
    (stale_snapshot, exact_on("mamba2")),
    (other_chunks_after_a_hit, exact_on("qwen3_5")),
]


@pytest.mark.parametrize(("plant", "prove"), CASES, ids=[plant.__name__ for plant, _ in CASES])
def test_planted_defect_is_caught(
    plant: Plant, prove: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    prove()
    plant(monkeypatch)
    # A window that is too short makes mlx-lm ask for an array of negative size.
    with pytest.raises((AssertionError, Corrupt, ValueError)):
        prove()
