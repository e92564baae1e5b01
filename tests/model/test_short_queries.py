"""Attention of a few queries over many keys is what MLX makes of it, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm.model import short_queries, speedups
from keepwarm.model.short_queries import MAX_QUERIES, MAX_SCORES, can_attend
from keepwarm.model.speedups import Where

attend = short_queries.scaled_dot_product_attention
plain = short_queries._mlx_attention


def arrays(
    num_queries: int, num_keys: int = 2085, depth: int = 64, dtype: Any = mx.float32
) -> tuple[mx.array, mx.array, mx.array]:
    """Four heads, two of keys, which lie in larger buffers as those of a cache do."""
    mx.random.seed(num_queries)
    shapes = ((4, num_queries), (2, num_keys + 100), (2, num_keys + 100))
    q, k, v = (mx.random.normal((1, *shape, depth)).astype(dtype) for shape in shapes)
    return q, k[:, :, :num_keys], v[:, :, :num_keys]


def distance(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max())


@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(2, 2085), (8, 20), (9, 9), (70, 2048)])
def test_queries_agree_with_mlx(num_queries: int, num_keys: int, mask: str | None) -> None:
    q, k, v = arrays(num_queries, num_keys)
    assert can_attend(q, k, v, mask)
    expected = plain(q, k, v, scale=0.2, mask=mask)
    assert distance(attend(q, k, v, scale=0.2, mask=mask), expected) < 1e-5


def test_sinks_agree_with_mlx() -> None:
    q, k, v = arrays(8)
    args: dict[str, Any] = {"scale": 0.2, "mask": "causal", "sinks": mx.array([3.0, 9.0, 0.0, 6.0])}
    assert distance(attend(q, k, v, **args), plain(q, k, v, **args)) < 1e-5


def test_bfloat16_agrees_with_mlx_to_its_last_bits() -> None:
    q, k, v = arrays(8, dtype=mx.bfloat16)
    ours = attend(q, k, v, scale=0.2, mask="causal")
    assert ours.dtype == mx.bfloat16
    assert distance(ours, plain(q, k, v, scale=0.2, mask="causal")) < 0.01


def test_large_scores_are_not_rounded_to_16_bits() -> None:
    q, k, v = arrays(8, dtype=mx.bfloat16)
    wide = [array.astype(mx.float32) for array in (q, k, v)]
    expected = plain(*wide, scale=2.0, mask="causal")
    assert distance(attend(q, k, v, scale=2.0, mask="causal"), expected) < 0.02


@pytest.mark.parametrize(
    "case",
    [
        {"num_queries": 1}, {"num_queries": MAX_QUERIES + 1},
        {"num_queries": 512, "num_keys": MAX_SCORES // (4 * 512) + 1}, {"num_queries": 8, "depth": 256},
    ],
    ids=str,
)  # fmt: skip
def test_all_else_is_left_to_mlx(case: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(q: mx.array, *args: Any, **more: Any) -> mx.array:
        calls.append(q.shape[2])
        return plain(q, *args, **more)

    monkeypatch.setattr(short_queries, "_mlx_attention", counted)
    q, k, v = arrays(**case)
    attend(q, k, v, scale=0.2, mask="causal")
    assert calls == [case["num_queries"]]


def test_array_masks_are_left_to_mlx() -> None:
    q, k, v = arrays(8)
    assert not can_attend(q, k, v, mx.ones((8, k.shape[2]), dtype=mx.bool_))


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(
    ("num_queries", "num_keys"), [(2, 2), (5, 2085), (8, 20_011), (31, 300), (200, 2085)]
)
def test_the_kernel_weighs_as_plain_operations_do(
    num_queries: int, num_keys: int, mask: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not short_queries._has_kernel():
        pytest.skip("a kernel for CUDA")
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.bfloat16, 4e-3)):
        q, _, _ = arrays(num_queries, num_keys, 128, dtype)
        scores = mx.random.normal((1, 2, 2 * num_queries, num_keys)) * 30
        more: dict[str, Any] = {"is_causal": mask is not None}
        ours = short_queries._softmax(scores, q, 0.3, dtype, **more)
        with monkeypatch.context() as patch:
            patch.setattr(short_queries, "_has_kernel", lambda: False)
            expected = short_queries._softmax(scores, q, 0.3, dtype, **more)
        assert ours.dtype == expected.dtype == dtype
        assert distance(ours, expected) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("num_queries", [2, 5, 31, 200, MAX_QUERIES])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bfloat16", "float32"])
def test_the_room_behind_the_keys_changes_no_bit(num_queries: int, dtype: Any) -> None:
    """A warm run has larger buffers than a cold one, and its keys lie further apart in memory."""
    q, k, v = arrays(num_queries, 2085, 128, dtype)
    expected = attend(q, mx.contiguous(k), mx.contiguous(v), scale=0.1, mask="causal")
    for capacity in (2304, 4096):
        wide_k, wide_v = (mx.zeros((1, 2, capacity, 128), dtype=dtype) for _ in range(2))
        wide_k[:, :, :2085], wide_v[:, :, :2085] = k, v
        mx.eval(wide_k, wide_v)
        ours = attend(q, wide_k[:, :, :2085], wide_v[:, :, :2085], scale=0.1, mask="causal")
        assert mx.array_equal(ours, expected)


def test_what_is_for_cuda_only_is_not_installed_elsewhere() -> None:
    entries = [entry for entry in speedups.REPLACEMENTS if entry.where is Where.CUDA]
    assert [entry.ours for entry in entries] == [
        "short_queries:scaled_dot_product_attention", "short_conv:conv1d"
    ]  # fmt: skip
    for entry in entries:
        assert entry.is_wanted() == (mx.default_device() == mx.gpu and not mx.metal.is_available())
    assert entries[0].function() is attend
