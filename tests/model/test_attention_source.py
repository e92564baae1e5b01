"""The source of the CUDA kernel, run on a CPU: its threads one by one, as a device would run them
side by side. It needs a C++ compiler; what it shows is that the kernel is right, not how fast."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keepwarm.model import attention_cuda
from keepwarm.model.attention_cuda import PAD, ROWS, THREADS, TILES

WARPS = Path(__file__).parent / "warps" / "warps.hpp"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
NAN_BITS = 0x7FC0

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux's fibres"
)
Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]

# The arguments as mx.fast.cuda_kernel would give them, and the blocks one after the other.
DRIVER = """
#include "{warps}"
static const BFloat16 *q, *k, *v;
static const float* scale;
static BFloat16* out;
static float *parts, *marks;
static int q_shape[4], k_shape[4];
static long long q_strides[4], k_strides[4], v_strides[4];

static void kernel() {{
  using InT = BFloat16;
  constexpr int D = {depth}, ROWS = {rows}, KEYS = {keys}, THREADS = {threads}, PAD = {pad};
  constexpr bool IS_CAUSAL = {is_causal};
  static_assert(THREADS == NUM_THREADS && 4 * KEYS * (D + PAD) <= sizeof shared / sizeof shared[0]);
  {source}
}}

extern "C" int run(
    void** arrays, const long long* strides, const int* shapes, float scale_, const int* grid) {{
  q = static_cast<BFloat16*>(arrays[0]), k = static_cast<BFloat16*>(arrays[1]);
  v = static_cast<BFloat16*>(arrays[2]), out = static_cast<BFloat16*>(arrays[3]);
  parts = static_cast<float*>(arrays[4]), marks = static_cast<float*>(arrays[5]);
  scale = &scale_;
  memcpy(q_strides, strides, 32), memcpy(k_strides, strides + 4, 32);
  memcpy(v_strides, strides + 8, 32);
  memcpy(q_shape, shapes, 16), memcpy(k_shape, shapes + 4, 16);
  gridDim = {{grid[0], grid[1], grid[2]}};
  num_unaligned = 0;
  for (int z = 0; z < grid[2]; ++z)
    for (int y = 0; y < grid[1]; ++y)
      for (int x = 0; x < grid[0]; ++x) {{
        blockIdx = {{x, y, z}};
        run_block();
      }}
  return num_unaligned;
}}
"""


@pytest.fixture(
    scope="module", params=[(d, c) for d in sorted(TILES) for c in (True, False)], ids=str
)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    depth, is_causal = request.param
    return Kernel(tmp_path_factory.mktemp("kernel"), depth, is_causal)


class Kernel:
    """Of one size of heads."""

    def __init__(self, folder: Path, depth: int, is_causal: bool) -> None:
        self.depth = depth
        self.is_causal = is_causal
        plain = "extern __shared__ __align__(16) Short shared[];"
        assert plain in attention_cuda._SOURCE
        text = DRIVER.format(
            warps=WARPS, depth=depth, rows=ROWS, keys=TILES[depth], threads=THREADS, pad=PAD,
            is_causal=str(is_causal).lower(), source=attention_cuda._SOURCE.replace(plain, ""),
        )  # fmt: skip
        (folder / "kernel.cpp").write_text(text)
        flags = ["-O1", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
        files = ["-o", str(folder / "kernel.so"), str(folder / "kernel.cpp")]
        subprocess.run([str(COMPILER), *flags, *files], check=True)
        self._run = ctypes.CDLL(str(folder / "kernel.so")).run

    def __call__(self, q: Bits, k: Bits, v: Bits, scale: float, num_parts: int) -> Floats:
        """(B, heads, T, D), as `attention_cuda.run` would give it."""
        batch, num_heads, num_queries, depth = q.shape
        num_key_heads = k.shape[1]
        num_rows = batch * num_heads * num_queries
        out = np.full((num_rows, depth), NAN_BITS, np.uint16)
        parts = np.full((num_parts, num_rows, depth), np.nan, np.float32)
        marks = np.full((num_parts, num_rows, 2), np.nan, np.float32)
        num_tiles = -(-num_heads // num_key_heads * num_queries // ROWS)
        strides = [stride // 2 for array in (q, k, v) for stride in array.strides]
        num_unaligned = self._run(
            (ctypes.c_void_p * 6)(*(_address(a) for a in (q, k, v, out, parts, marks))),
            (ctypes.c_longlong * 12)(*strides),
            (ctypes.c_int * 8)(*q.shape, *k.shape),
            ctypes.c_float(scale),
            (ctypes.c_int * 3)(num_tiles, batch * num_key_heads, num_parts),
        )
        assert num_unaligned == 0
        found = widened(out) if num_parts == 1 else _gathered(parts, marks)
        return found.reshape(batch, num_queries, num_heads, depth).swapaxes(1, 2)


def _address(array: Bits | Floats) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _gathered(parts: Floats, marks: Floats) -> Floats:
    most, whole = marks[..., 0], marks[..., 1]
    fade = np.exp2(most - most.max(axis=0))
    found: Floats = (fade[..., None] * parts).sum(axis=0) / (fade * whole).sum(axis=0)[:, None]
    return found


def rounded(array: Any) -> Bits:
    wide = np.asarray(array, np.float32).view(np.uint32)
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def exactly(q: Bits, k: Bits, v: Bits, scale: float, *, is_causal: bool) -> Any:
    wide_q, wide_k, wide_v = (widened(array).astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = scale * (wide_q @ np.repeat(wide_k, group, axis=1).swapaxes(-1, -2))
    num_queries, num_keys = scores.shape[-2:]
    if is_causal:
        places = np.arange(num_keys - num_queries, num_keys)[:, None] >= np.arange(num_keys)
        scores = np.where(places, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ np.repeat(wide_v, group, axis=1)


# (batch, heads, key heads, queries, keys)
CASES = [
    (1, 4, 2, 1, 150), (2, 2, 2, 31, 100), (1, 6, 2, 33, 97), (1, 1, 1, 60, 130), (1, 4, 1, 2, 2)
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_source_attends(kernel: Kernel, case: tuple[int, ...]) -> None:
    batch, num_heads, num_key_heads, num_queries, num_keys = case
    rng = np.random.default_rng(num_keys)
    q = rounded(rng.normal(size=(batch, num_heads, num_queries, kernel.depth)))
    shape = (batch, num_key_heads, num_keys, kernel.depth)
    # In larger buffers, whose rest is no number.
    room = [np.full((*shape[:2], num_keys + 60, kernel.depth), NAN_BITS, np.uint16) for _ in "kv"]
    for buffer in room:
        buffer[:, :, :num_keys] = rounded(rng.normal(size=shape))
    k, v = (buffer[:, :, :num_keys] for buffer in room)
    for scale in (kernel.depth**-0.5, 2.0):
        expected = exactly(q, k, v, scale, is_causal=kernel.is_causal)
        whole = kernel(q, k, v, scale, 1)
        assert np.abs(whole - expected).max() < 0.02
        assert np.abs(kernel(q, k, v, scale, 2) - expected).max() < 0.02
    # Where they lie, and in which order, changes nothing.
    turned = [np.ascontiguousarray(array.swapaxes(2, 3)).swapaxes(2, 3) for array in (k, v)]
    assert np.array_equal(kernel(q, *turned, 2.0, 1), whole)
