"""Attention on CUDA is what MLX makes of it, and is taken where it is sooner done."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm.model import attention, attention_cuda, speedups
from keepwarm.model.attention import FEW_QUERIES, MANY_KEYS, MAX_PAIRS, Way, chosen
from keepwarm.model.speedups import Where

attend = attention.scaled_dot_product_attention
plain = attention._mlx_attention

TOLERANCES = {mx.bfloat16: 0.02, mx.float16: 0.003}


def arrays(
    num_queries: int,
    num_keys: int,
    depth: int = 128,
    dtype: Any = mx.bfloat16,
    heads: tuple[int, int, int] = (1, 4, 2),
) -> tuple[mx.array, mx.array, mx.array]:
    """Keys and values lie in larger buffers, as those of a cache do. `heads`: batch, heads, key heads."""
    mx.random.seed(num_queries)
    batch, num_heads, num_key_heads = heads
    q = mx.random.normal((batch, num_heads, num_queries, depth)).astype(dtype)
    shape = (batch, num_key_heads, num_keys + 100, depth)
    k, v = (mx.random.normal(shape).astype(dtype) for _ in range(2))
    return q, k[:, :, :num_keys], v[:, :, :num_keys]


def exactly(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """In float32, by what attention means."""
    q, k, v = (array.astype(mx.float32) for array in (q, k, v))
    k, v = (mx.repeat(array, q.shape[1] // k.shape[1], axis=1) for array in (k, v))
    scores = scale * (q @ k.swapaxes(-1, -2))
    num_queries, num_keys = scores.shape[-2:]
    if isinstance(mask, str):
        mask = mx.arange(num_keys - num_queries, num_keys)[:, None] >= mx.arange(num_keys)
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    if sinks is not None:
        beside = mx.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = mx.concatenate([scores, beside], axis=-1)
    return mx.softmax(scores, axis=-1)[..., :num_keys] @ v


def window(num_queries: int, num_keys: int, width: int) -> mx.array:
    """The last `width` keys up to each query's own."""
    queries = mx.arange(num_keys - num_queries, num_keys)[:, None]
    keys = mx.arange(num_keys)
    return (keys <= queries) & (keys > queries - width)


def distance(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max())


@pytest.fixture
def _kernel() -> None:
    if not attention_cuda.can_run(*arrays(2, 2)):
        pytest.skip("a kernel for CUDA")


LENGTHS = [
    (1, 1),
    (1, 20_011),
    (2, 2),
    (5, 2085),
    (31, 300),
    (33, 97),
    (64, 64),
    (200, 2085),
    (8, 20_011),
    (700, 700),
]


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("mask", ["causal", None], ids=["causal", "all"])
@pytest.mark.parametrize("depth", sorted(attention_cuda.TILES))
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_kernel_attends(dtype: Any, depth: int, mask: str | None) -> None:
    for num_queries, num_keys in LENGTHS:
        for heads in ((1, 4, 2), (3, 6, 1), (2, 2, 2)):
            q, k, v = arrays(num_queries, num_keys, depth, dtype, heads)
            for scale in (depth**-0.5, 2.0):  # with the latter 16 bits for a score would be too few
                ours = attention_cuda.run(q, k, v, scale, mask)
                assert ours.dtype == dtype
                expected = exactly(q, k, v, scale, mask)
                case = (num_queries, num_keys, heads, scale)
                assert distance(ours, expected) < TOLERANCES[dtype], case


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("depth", sorted(attention_cuda.TILES))
@pytest.mark.parametrize("num_queries", [1, 2, 31, 200, 1000])
def test_where_the_keys_lie_changes_no_bit(num_queries: int, depth: int) -> None:
    """A warm run has larger buffers than a cold one, and its keys lie further apart in memory."""
    q, k, v = arrays(num_queries, 2085, depth)
    expected = attention_cuda.run(q, mx.contiguous(k), mx.contiguous(v), 0.1, "causal")
    for capacity in (2304, 4096):
        wide = [mx.full((1, 2, capacity, depth), mx.nan, mx.bfloat16) for _ in range(2)]
        wide[0][:, :, :2085], wide[1][:, :, :2085] = k, v
        mx.eval(wide)
        seen = [array[:, :, :2085] for array in wide]
        assert mx.array_equal(attention_cuda.run(q, *seen, 0.1, "causal"), expected)
    # Nor does another order in memory: heads behind tokens, numbers of a head apart.
    q = mx.contiguous(q.swapaxes(1, 2)).swapaxes(1, 2)
    k, v = (mx.contiguous(array.swapaxes(2, 3)).swapaxes(2, 3) for array in (k, v))
    assert mx.array_equal(attention_cuda.run(q, k, v, 0.1, "causal"), expected)


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("depth", sorted(attention_cuda.TILES))
def test_a_mask_hides_and_a_sink_takes_a_share(depth: int, has_sinks: bool) -> None:
    """Windows, and sequences of a batch that begin at different places."""
    for num_queries, num_keys in ((1, 300), (1, 2085), (31, 300), (200, 2085), (700, 700)):
        for heads in ((1, 4, 2), (3, 6, 1)):
            q, k, v = arrays(num_queries, num_keys, depth, heads=heads)
            sinks = 3 * mx.random.normal((heads[1],)) if has_sinks else None
            begins = mx.array([0, 7, 250])[: heads[0], None, None, None]
            padded = window(num_queries, num_keys, num_keys) & (mx.arange(num_keys) >= begins)
            for mask in (window(num_queries, num_keys, 64), padded, "causal"):
                sees = mx.any(mask, axis=-1, keepdims=True) if mask is padded else mx.array(True)
                ours = attention_cuda.run(q, k, v, 0.1, mask, sinks)
                expected = mx.where(sees, exactly(q, k, v, 0.1, mask, sinks), 0)
                assert distance(ours, expected) < TOLERANCES[mx.bfloat16]


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("heads", [(1, 16, 8), (1, 32, 2), (1, 8, 1)], ids=str)
@pytest.mark.parametrize("depth", sorted(attention_cuda.TILES))
@pytest.mark.parametrize("num_keys", [200, 300, 2000, 9000, MANY_KEYS])
def test_a_single_query_has_the_same_bits_in_any_buffer(
    num_keys: int, depth: int, heads: tuple[int, int, int]
) -> None:
    """MLX has a kernel of its own for buffers of a multiple of 256 tokens."""
    q, k, v = arrays(1, num_keys, depth, heads=heads)
    sinks = mx.random.normal((heads[1],)).astype(mx.bfloat16)  # MLX takes no wider ones
    step = attention.SOME_KEYS
    full = num_keys // step * step + step
    for more in ({}, {"sinks": sinks}):
        found = []
        for capacity in (num_keys, num_keys + 8, full, full + step, 3 * full, full + 8):
            shape = (1, heads[2], capacity, depth)
            room = [mx.zeros(shape, mx.bfloat16) for _ in range(2)]
            room[0][:, :, :num_keys], room[1][:, :, :num_keys] = k, v
            mx.eval(room)
            seen = [buffer[:, :, :num_keys] for buffer in room]
            found.append(attend(q, *seen, scale=0.1, mask=None, **more))
            mx.eval(found)
        assert all(mx.array_equal(one, found[0]) for one in found)
        assert distance(found[0], exactly(q, k, v, 0.1, **more)) < TOLERANCES[mx.bfloat16]


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("depth", [128, 256])
def test_the_first_key_weighs_as_much_behind_many(depth: int) -> None:
    """What is rescaled a thousand times would drift."""
    q, k, v = arrays(1024, 60_000, depth, mx.float16, heads=(1, 2, 1))
    q, k, v = mx.ones_like(q), mx.zeros_like(k), mx.zeros_like(v)
    # Two keys far apart weigh the same, and all others nothing; their values are opposite.
    for place, value in ((0, 1), (58_000, -1)):
        k[:, :, place], v[:, :, place] = 1, value
    for scale in (2.77, 2.31, 1.93):
        ours = attention_cuda.run(q, k, v, scale, "causal")
        assert distance(ours, mx.zeros_like(ours)) < 1e-3


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernel")
def test_what_is_not_the_kernels_is_left_to_mlx() -> None:
    q, k, v = arrays(8, 300)
    assert not attention_cuda.can_run(q, k.astype(mx.float16), v)
    assert not attention_cuda.can_run(*(a.astype(mx.float32) for a in (q, k, v)))
    assert not attention_cuda.can_run(*arrays(8, 300, depth=80))
    assert not attention_cuda.can_run(*arrays(8, 7))  # the first query would see nothing
    assert not attention_cuda.can_run(q, k, v[..., :64])
    assert not attention_cuda.can_run(q[:0], k[:0], v[:0])
    assert not attention_cuda.can_run(q, k, v, mx.zeros((8, 300)))  # what is added to scores
    assert not attention_cuda.can_run(q, k, v, mx.ones((8, 299), dtype=mx.bool_))
    assert not attention_cuda.can_run(q, k, v, None, mx.zeros(3))
    scale = mx.array(0.2)
    expected = plain(q, k, v, scale=scale, mask="causal")
    assert mx.array_equal(attend(q, k, v, scale=scale, mask="causal"), expected)


def test_elsewhere_all_is_left_to_mlx() -> None:
    if attention_cuda.can_run(*arrays(2, 2)):
        pytest.skip("for devices without the kernel")
    q, k, v = arrays(8, 300, dtype=mx.float32)
    for more in ({}, {"mask": "causal"}, {"mask": mx.ones((8, 300), dtype=mx.bool_)}):
        assert mx.array_equal(attend(q, k, v, scale=0.2, **more), plain(q, k, v, scale=0.2, **more))


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "depth", "way"),
    [
        (1, 200, 128, Way.MLX),  # which has a kernel for that
        (1, 2000, 128, Way.BESIDE),  # and for this, too
        (1, 100_000, 128, Way.OURS),
        (1, 2000, 256, Way.OURS),
        (2, 100_000, 128, Way.OURS),
        (FEW_QUERIES, 1_000_000, 128, Way.OURS),
        (1000, 20_000, 128, Way.OURS),
        (2010, 2010, 128, Way.OURS),  # a prompt of any length
        (2048, 20_480, 128, Way.OURS),
        (2048, 40_960, 128, Way.MLX),
        (1000, MAX_PAIRS // 16_000 + 1, 128, Way.MLX),
        (2048, 2_048_000, 256, Way.OURS),  # MLX has none for that
    ],
)
def test_whose_kernel_is_sooner_done(num_queries: int, num_keys: int, depth: int, way: Way) -> None:
    assert chosen((1, 16, num_queries, depth), (1, 8, num_keys, depth)) is way


def test_a_single_query_that_mlx_has_no_kernel_for_is_ours() -> None:
    q_shape, k_shape = (1, 16, 1, 128), (1, 8, 2000, 128)
    assert chosen(q_shape, k_shape, has_mask=True) is Way.OURS
    assert chosen(q_shape, k_shape, has_sinks=True) is Way.OURS
    assert chosen(q_shape, (1, 1, 2000, 128)) is Way.OURS
    assert chosen((6, 16, 1, 128), (6, 8, 2000, 128)) is Way.OURS


def test_key_heads_as_sequences_change_nothing() -> None:
    q, k, v = arrays(1, 300, dtype=mx.float32, heads=(1, 6, 2))
    assert distance(attention.beside(q, k, v, 0.1), exactly(q, k, v, 0.1)) < 1e-5


def test_the_keys_are_cut_where_blocks_would_be_few() -> None:
    assert attention_cuda._num_parts(8, 100_000) == 32
    assert attention_cuda._num_parts(8, 1000) == 2
    assert attention_cuda._num_parts(8, 100) == 1
    assert attention_cuda._num_parts(1000, 100_000) == 1


def test_what_is_for_cuda_only_is_not_installed_elsewhere() -> None:
    entries = [entry for entry in speedups.REPLACEMENTS if entry.where is Where.CUDA]
    assert [entry.ours for entry in entries] == [
        "attention:scaled_dot_product_attention", "short_conv:conv1d"
    ]  # fmt: skip
    for entry in entries:
        assert entry.is_wanted() == (mx.default_device() == mx.gpu and not mx.metal.is_available())
    assert entries[0].function() is attend
