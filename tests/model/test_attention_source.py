"""The source of the CUDA kernel, run on a CPU: its threads one by one, as a device would run them
side by side. It needs a C++ compiler; what it shows is that the kernel is right, not how fast."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keepwarm.model.attention_cuda import PAD, ROWS, THREADS, TILES
from keepwarm.model.attention_source import ATTEND, GATHER, SHARES

WARPS = Path(__file__).parent / "warps" / "warps.hpp"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
NAN_BITS = 0x7FC0

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux's fibres"
)
Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

# The arguments as mx.fast.cuda_kernel would give them, and the blocks one after the other.
DRIVER = """
#include "{warps}"
{shares}
static const BFloat16 *q, *k, *v;
static const float *scale, *sinks;
static const bool* mask;
static BFloat16* out;
static float *parts, *marks;
static int q_shape[4], k_shape[4], parts_shape[2], sinks_shape[1];
static long long q_strides[4], k_strides[4], v_strides[4], mask_strides[4];

constexpr int D = {depth};
constexpr bool IS_CAUSAL = {is_causal}, HAS_MASK = {has_mask}, HAS_SINKS = {has_sinks};
using InT = BFloat16;

static void kernel() {{
  constexpr int ROWS = {rows}, KEYS = {keys}, THREADS = {threads}, PAD = {pad};
  static_assert(THREADS == NUM_THREADS && 4 * KEYS * (D + PAD) <= sizeof shared / sizeof shared[0]);
  {attend}
}}

static void gather() {{
  {gather}
}}

extern "C" int run(
    void** arrays, const long long* strides, const int* shapes, float scale_, const int* grid) {{
  q = static_cast<BFloat16*>(arrays[0]), k = static_cast<BFloat16*>(arrays[1]);
  v = static_cast<BFloat16*>(arrays[2]), out = static_cast<BFloat16*>(arrays[3]);
  parts = static_cast<float*>(arrays[4]), marks = static_cast<float*>(arrays[5]);
  mask = static_cast<bool*>(arrays[6]), sinks = static_cast<float*>(arrays[7]);
  scale = &scale_;
  memcpy(q_strides, strides, 32), memcpy(k_strides, strides + 4, 32);
  memcpy(v_strides, strides + 8, 32), memcpy(mask_strides, strides + 12, 32);
  memcpy(q_shape, shapes, 16), memcpy(k_shape, shapes + 4, 16);
  gridDim = {{grid[0], grid[1], grid[2]}};
  num_unaligned = 0;
  for (int z = 0; z < grid[2]; ++z)
    for (int y = 0; y < grid[1]; ++y)
      for (int x = 0; x < grid[0]; ++x) {{
        blockIdx = {{x, y, z}};
        run_block();
      }}
  if (grid[2] == 1) return num_unaligned;
  parts_shape[0] = grid[2], parts_shape[1] = q_shape[0] * q_shape[1] * q_shape[2];
  sinks_shape[0] = q_shape[1];
  for (blockIdx.x = 0; blockIdx.x < parts_shape[1]; ++blockIdx.x)
    for (current = 0; current < D; ++current) gather();
  return num_unaligned;
}}
"""


@dataclass(frozen=True)
class Kind:
    """What a kernel is made for."""

    depth: int
    is_causal: bool = False
    has_mask: bool = False
    has_sinks: bool = False


KINDS = [
    *(Kind(depth, is_causal=is_causal) for depth in sorted(TILES) for is_causal in (True, False)),
    *(Kind(depth, has_mask=True) for depth in (64, 256)),
    Kind(128, has_mask=True, has_sinks=True),
    Kind(64, is_causal=True, has_sinks=True),
]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return Kernel(tmp_path_factory.mktemp("kernel"), request.param)


class Kernel:
    """Of one kind."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind = kind
        plain = "extern __shared__ __align__(16) Short shared[];"
        assert plain in ATTEND
        flags = {
            name: str(getattr(kind, name)).lower()
            for name in ("is_causal", "has_mask", "has_sinks")
        }
        text = DRIVER.format(
            warps=WARPS, depth=kind.depth, rows=ROWS, keys=TILES[kind.depth], threads=THREADS,
            pad=PAD, shares=SHARES, attend=ATTEND.replace(plain, ""), gather=GATHER, **flags,
        )  # fmt: skip
        (folder / "kernel.cpp").write_text(text)
        options = ["-O1", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
        files = ["-o", str(folder / "kernel.so"), str(folder / "kernel.cpp")]
        subprocess.run([str(COMPILER), *options, *files], check=True)
        self._run = ctypes.CDLL(str(folder / "kernel.so")).run

    def __call__(
        self, q: Bits, k: Bits, v: Bits, scale: float, mask: Flags, sinks: Floats, num_parts: int
    ) -> Floats:
        """(B, heads, T, D), as `attention_cuda.run` would give it."""
        batch, num_heads, num_queries, depth = q.shape
        num_key_heads = k.shape[1]
        num_rows = batch * num_heads * num_queries
        out = np.full((num_rows, depth), NAN_BITS, np.uint16)
        parts = np.full((num_parts, num_rows, depth), np.nan, np.float32)
        marks = np.full((num_parts, num_rows, 2), np.nan, np.float32)
        num_tiles = -(-num_heads // num_key_heads * num_queries // ROWS)
        strides = [at // a.itemsize for a in (q, k, v, mask) for at in a.strides]
        arrays = (q, k, v, out, parts, marks, mask, sinks)
        num_unaligned = self._run(
            (ctypes.c_void_p * 8)(*map(_address, arrays)),
            (ctypes.c_longlong * 16)(*strides),
            (ctypes.c_int * 8)(*q.shape, *k.shape),
            ctypes.c_float(scale),
            (ctypes.c_int * 3)(num_tiles, batch * num_key_heads, num_parts),
        )
        assert num_unaligned == 0
        return widened(out).reshape(batch, num_queries, num_heads, depth).swapaxes(1, 2)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def rounded(array: Any) -> Bits:
    wide = np.asarray(array, np.float32).view(np.uint32)
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def exactly(q: Bits, k: Bits, v: Bits, scale: float, seen: Flags, sinks: Floats | None) -> Any:
    wide_q, wide_k, wide_v = (widened(array).astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = scale * (wide_q @ np.repeat(wide_k, group, axis=1).swapaxes(-1, -2))
    weights = np.where(seen, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    whole = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        whole += np.exp(sinks[:, None, None] - scores.max(axis=-1, keepdims=True))
    return weights / np.maximum(whole, 1e-300) @ np.repeat(wide_v, group, axis=1)


def seen_by(kind: Kind, batch: int, num_queries: int, num_keys: int) -> Flags:
    """With a mask, the last 40 keys, from a place of its own on in each sequence: some queries see
    none."""
    keys, own = np.arange(num_keys), np.arange(num_keys - num_queries, num_keys)[:, None]
    if not kind.has_mask:
        return np.broadcast_to(
            keys <= own if kind.is_causal else keys >= 0, (batch, 1, num_queries, num_keys)
        )
    begins = np.arange(batch)[:, None, None, None] * (num_keys - num_queries // 2)
    return (keys <= own) & (keys > own - 40) & (keys >= begins)


# (batch, heads, key heads, queries, keys)
CASES = [
    (1, 4, 2, 1, 150), (2, 2, 2, 31, 100), (1, 6, 2, 33, 97), (1, 1, 1, 60, 130), (1, 4, 1, 2, 2)
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_source_attends(kernel: Kernel, case: tuple[int, ...]) -> None:
    batch, num_heads, num_key_heads, num_queries, num_keys = case
    depth = kernel.kind.depth
    rng = np.random.default_rng(num_keys)
    q = rounded(rng.normal(size=(batch, num_heads, num_queries, depth)))
    shape = (batch, num_key_heads, num_keys, depth)
    # In larger buffers, whose rest is no number.
    room = [np.full((*shape[:2], num_keys + 60, depth), NAN_BITS, np.uint16) for _ in "kv"]
    for buffer in room:
        buffer[:, :, :num_keys] = rounded(rng.normal(size=shape))
    k, v = (buffer[:, :, :num_keys] for buffer in room)
    seen = seen_by(kernel.kind, batch, num_queries, num_keys)
    mask = np.broadcast_to(seen, (batch, num_heads, num_queries, num_keys))
    sinks = rng.normal(size=num_heads).astype(np.float32) * 3
    for scale in (depth**-0.5, 2.0):
        expected = exactly(q, k, v, scale, seen, sinks if kernel.kind.has_sinks else None)
        whole = kernel(q, k, v, scale, mask, sinks, 1)
        assert np.abs(whole - expected).max() < 0.02
        assert np.abs(kernel(q, k, v, scale, mask, sinks, 2) - expected).max() < 0.02
    # Where they lie, and in which order, changes nothing.
    turned = [np.ascontiguousarray(array.swapaxes(2, 3)).swapaxes(2, 3) for array in (k, v)]
    assert np.array_equal(kernel(q, *turned, 2.0, mask, sinks, 1), whole)
