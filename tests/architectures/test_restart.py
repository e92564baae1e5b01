"""After a restart with a disk tier, exact mode gives bit for bit the logits of a run without any
cache, from every checkpoint that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.store import PrefixCache
from keepwarm.model.caches import cache_maker
from tests.cache.disk.folders import crash, disk_at, flushed, tier_of

from .drive import PLACEMENT, bits, greedy, prompt_of, random_tokens, read, read_cold
from .zoo import ARCHITECTURES, Architecture

# Rows, windows, recurrent states beside rows, windows that are cut in chunks, shared experts.
FAST = ("llama", "gemma3_text", "qwen3_5", "nemotron_h", "gpt_oss", "llama4")
CASES = [
    pytest.param(
        architecture,
        dtype,
        id=f"{name}-{str(dtype).split('.')[-1]}",
        marks=() if name in FAST and dtype == mx.bfloat16 else pytest.mark.slow,
    )
    for name, architecture in ARCHITECTURES.items()
    for dtype in (mx.float32, mx.bfloat16)
]


def cache_at(folder: Path, model: Any, kv_bits: int | None = None) -> PrefixCache:
    cache = PrefixCache(
        cache_maker(model, kv_bits, 32), exact=True, placement=PLACEMENT, budget_bytes=1 << 28,
        disk=disk_at(folder),
    )  # fmt: skip
    tier_of(cache)
    return cache


PROMPT = prompt_of(
    [random_tokens(n, s) for s, n in enumerate((24, 9, 30, 61, 20))], random_tokens(1, 99)
)


def restarts(
    architecture: Architecture, dtype: mx.Dtype, folder: Path, kv_bits: int | None = None
) -> None:
    model = architecture.build(dtype)
    first = cache_at(folder, model, kv_bits)
    cold = read(model, first, PROMPT)
    if kv_bits is None:
        bare = read_cold(model, PROMPT, PLACEMENT.exact_stops(PROMPT, 0))
        assert bits(bare.logits) == bits(cold.logits)
    tokens, end = greedy(model, cold, 8)
    written = flushed(first).stats().num_files
    assert written
    crash(first)

    model = architecture.build(dtype)  # loaded anew: gemma3n clips some weights as it runs
    again = cache_at(folder, model, kv_bits)
    assert tier_of(again).stats().num_files == written
    load = tier_of(again).load_now(PROMPT, again.peek(PROMPT))
    assert load is not None
    hot = read(model, again, PROMPT)
    assert hot.cached_len == load.position == cold.stored_at[-1]
    assert bits(hot.logits) == bits(cold.logits)
    assert (hot_run := greedy(model, hot, 8))[0] == tokens
    assert bits(hot_run[1]) == bits(end)
    assert not tier_of(again).stats().written_bytes
    crash(again)


@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_logits_after_a_restart_are_those_of_a_cold_run(
    architecture: Architecture, dtype: mx.Dtype, tmp_path: Path
) -> None:
    restarts(architecture, dtype, tmp_path)


def test_quantized_rows_come_back_as_they_were(tmp_path: Path) -> None:
    restarts(ARCHITECTURES["llama"], mx.bfloat16, tmp_path, kv_bits=8)


def test_model_that_does_not_say_what_it_is_is_not_stored(tmp_path: Path) -> None:
    model = ARCHITECTURES["llama"].build(mx.float32)
    del model.args
    cache = PrefixCache(model, disk=tmp_path / "disk")
    assert cache.disk is not None
    assert "does not say what it was made with" in str(cache.disk.off_because)
    assert not (tmp_path / "disk").exists()
