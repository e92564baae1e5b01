"""Attention on CUDA in one kernel for all lengths, which plans nothing.

A block has 64 rows of queries (the heads that share their keys beside each other) and walks over
the keys with the softmax running along, its products on tensor cores. Where that would be too few
blocks for the device, each takes a part of the keys, and what they leave is gathered. The bits
depend on the arguments alone, not on where the keys lie. Any thread that may use mlx.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import ceil
from typing import Any

import mlx.core as mx

LEAST_CAPABILITY = 8  # for copies on the way, and products of bfloat16
DTYPES = (mx.bfloat16, mx.float16)
ROWS = 64  # of queries in a block: 16 for each of its warps
THREADS = 2 * ROWS
# Sizes of heads, and how many keys are in shared memory at a time (twice: while these are used, the
# next are on their way). With more, heads of 256 would not have enough registers.
TILES = {64: 64, 96: 64, 128: 64, 256: 32}
PAD = 8  # numbers behind each key, so that eight of them lie in different banks
# So many blocks keep a large device busy; a part of the keys is to have a few tiles at least.
NUM_BLOCKS = 256
LEAST_PART = 256
MAX_GRID = 65_535  # blocks beside each other in all directions but the first

_HEADER = """
using Short = unsigned short;
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  __align__(4) T pair[2] = {static_cast<T>(low), static_cast<T>(high)};
  return *reinterpret_cast<unsigned*>(pair);
}

__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sums (16 rows x 8) += a (16 x 16) times b (16 x 8)
#define MULTIPLY(T, NAME) __device__ __forceinline__ void multiply( \
    float* sums, const unsigned* a, const unsigned* b, T) { \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
}
MULTIPLY(__nv_bfloat16, "bf16")
MULTIPLY(__half, "f16")
// Four matrices of 8 x 8; each lane says where one of their rows lies.
#define LOAD(FUNCTION, HOW) __device__ __forceinline__ void FUNCTION( \
    unsigned* to, const Short* row) { \
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row)); \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" HOW ".shared.b16 {%0, %1, %2, %3}, [%4];" \
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory"); \
}
LOAD(load_matrices, "")
LOAD(load_matrices_turned, ".trans")

// Eight numbers on their way into shared memory, or zeros.
__device__ __forceinline__ void send(Short* to, const void* from, bool is_real) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(at), "l"(from), "r"(is_real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
"""

_SOURCE = """
    constexpr int STRIDE = D + PAD;
    constexpr int STEPS = D / 16;  // of a product over a head
    constexpr float LOG2_E = 1.44269504f;
    extern __shared__ __align__(16) Short shared[];

    const int T = q_shape[2], S = k_shape[2];
    const int num_key_heads = k_shape[1], group = q_shape[1] / num_key_heads;
    const int b = blockIdx.y / num_key_heads, key_head = blockIdx.y % num_key_heads;
    const int num_rows = group * T, first_row = blockIdx.x * ROWS;
    const int num_tiles = (S + KEYS - 1) / KEYS;
    const int part_len = (num_tiles + gridDim.z - 1) / gridDim.z * KEYS;
    // Row r is query r / group of head r % group, so neighbours see as far.
    const int last_row = min(first_row + ROWS, num_rows) - 1;
    const int seen = IS_CAUSAL ? S - T + last_row / group + 1 : S;
    const int seen_by_all = IS_CAUSAL ? S - T + first_row / group + 1 : S;
    const int begin = blockIdx.z * part_len, end = min(begin + part_len, seen);

    const Short* keys = reinterpret_cast<const Short*>(k) + b * k_strides[0] + key_head * k_strides[1];
    const Short* values =
        reinterpret_cast<const Short*>(v) + b * v_strides[0] + key_head * v_strides[1];
    const bool is_aligned = k_strides[3] == 1 && v_strides[3] == 1 && k_strides[2] % 8 == 0 &&
        v_strides[2] % 8 == 0 && reinterpret_cast<unsigned long long>(keys) % 16 == 0 &&
        reinterpret_cast<unsigned long long>(values) % 16 == 0;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int quad = lane / 4, column = lane % 4 * 2;

    auto fetch = [&](int start, int buffer) {
      Short* to_keys = shared + buffer * 2 * KEYS * STRIDE;
      Short* to_values = to_keys + KEYS * STRIDE;
      for (int i = threadIdx.x; i < KEYS * D / 8; i += THREADS) {
        const int row = i / (D / 8), at = i % (D / 8) * 8, key = start + row;
        const bool is_real = key < S;
        const long long place = is_real ? key : 0;
        const Short* from_key = keys + place * k_strides[2] + at * k_strides[3];
        const Short* from_value = values + place * v_strides[2] + at * v_strides[3];
        if (is_aligned) {
          send(to_keys + row * STRIDE + at, from_key, is_real);
          send(to_values + row * STRIDE + at, from_value, is_real);
        } else {
          for (int e = 0; e < 8; ++e) {
            to_keys[row * STRIDE + at + e] = is_real ? from_key[e * k_strides[3]] : Short(0);
            to_values[row * STRIDE + at + e] = is_real ? from_value[e * v_strides[3]] : Short(0);
          }
        }
      }
    };

    // This lane has two rows of its warp's sixteen.
    const int rows[2] = {first_row + warp * 16 + quad, first_row + warp * 16 + quad + 8};
    const Short* queries = reinterpret_cast<const Short*>(q);
    unsigned a[STEPS][4];
    int limits[2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_real = rows[half] < num_rows;
      const int row = is_real ? rows[half] : 0;
      limits[half] = IS_CAUSAL ? S - T + row / group + 1 : S;
      const Short* mine = queries + b * q_strides[0] +
          (key_head * group + row % group) * q_strides[1] + (row / group) * q_strides[2];
      #pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        #pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int at = step * 16 + side * 8 + column;
          const unsigned low = is_real ? mine[at * q_strides[3]] : Short(0);
          const unsigned high = is_real ? mine[(at + 1) * q_strides[3]] : Short(0);
          a[step][2 * side + half] = low | high << 16;
        }
      }
    }

    const float factor = scale[0] * LOG2_E;
    float sums[D / 8][4], most[2] = {-INFINITY, -INFINITY}, whole[2] = {0.0f, 0.0f};
    #pragma unroll
    for (int i = 0; i < D / 8; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;

    int buffer = 0;
    if (begin < end) fetch(begin, 0);
    for (int start = begin; start < end; start += KEYS) {
      wait_for_all();
      __syncthreads();  // so have all others, and they are done with the other buffer
      if (start + KEYS < end) fetch(start + KEYS, buffer ^ 1);
      const Short* my_keys = shared + buffer * 2 * KEYS * STRIDE;
      const Short* my_values = my_keys + KEYS * STRIDE;

      float scores[KEYS / 8][4];
      #pragma unroll
      for (int i = 0; i < KEYS / 8; ++i) {
        scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.0f;
        #pragma unroll
        for (int step = 0; step < STEPS; step += 2) {
          unsigned both[4];
          load_matrices(both, my_keys + (8 * i + lane % 8) * STRIDE + 16 * step + lane / 8 * 8);
          multiply(scores[i], a[step], both, InT());
          multiply(scores[i], a[step + 1], both + 2, InT());
        }
      }

      if (start + KEYS > seen_by_all) {
        #pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
          #pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (start + 8 * i + column + e % 2 >= limits[e / 2]) scores[i][e] = -INFINITY;
          }
        }
      }
      #pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;
        #pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
          top = fmaxf(top, fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        const float next = fmaxf(most[half], top * factor);
        // Nothing seen yet: all weights are zero, not 0 / 0.
        const float against = next == -INFINITY ? 0.0f : next;
        // Exactly 1 where nothing larger came: else it would add up over thousands of tiles.
        const float fade = power_of_2(most[half] - against);
        most[half] = next;
        whole[half] *= fade;
        #pragma unroll
        for (int i = 0; i < D / 8; ++i) {
          sums[i][2 * half] *= fade;
          sums[i][2 * half + 1] *= fade;
        }
        #pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
          #pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[i][e] = power_of_2(scores[i][e] * factor - against);
            whole[half] += scores[i][e];
          }
        }
      }

      #pragma unroll
      for (int i = 0; i < KEYS / 16; ++i) {
        const float *left = scores[2 * i], *right = scores[2 * i + 1];
        const unsigned weights[4] = {pack<InT>(left[0], left[1]), pack<InT>(left[2], left[3]),
                                     pack<InT>(right[0], right[1]), pack<InT>(right[2], right[3])};
        #pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
          unsigned both[4];
          load_matrices_turned(
              both, my_values + (16 * i + lane % 16) * STRIDE + 8 * j + lane / 16 * 8);
          multiply(sums[j], weights, both, InT());
          multiply(sums[j + 1], weights, both + 2, InT());
        }
      }
      buffer ^= 1;
    }

    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      whole[half] += __shfl_xor_sync(0xffffffff, whole[half], 1);
      whole[half] += __shfl_xor_sync(0xffffffff, whole[half], 2);
      if (rows[half] >= num_rows) continue;
      const long long token = (long long)b * T + rows[half] / group;
      const long long row = token * q_shape[1] + key_head * group + rows[half] % group;
      if (gridDim.z == 1) {
        const float share = 1.0f / whole[half];
        #pragma unroll
        for (int i = 0; i < D / 8; ++i) {
          *reinterpret_cast<unsigned*>(out + row * D + 8 * i + column) =
              pack<InT>(sums[i][2 * half] * share, sums[i][2 * half + 1] * share);
        }
        continue;
      }
      const long long at = blockIdx.z * ((long long)q_shape[0] * q_shape[1] * T) + row;
      if (lane % 4 == 0) {
        marks[2 * at] = most[half];
        marks[2 * at + 1] = whole[half];
      }
      #pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        *reinterpret_cast<float2*>(parts + at * D + 8 * i + column) =
            make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
      }
    }
"""

# One row by the threads of a block, each a number of it.
_GATHER = """
    const int num_parts = parts_shape[0], num_rows = parts_shape[1];
    const long long row = blockIdx.x;
    float most = -INFINITY;
    for (int i = 0; i < num_parts; ++i) {
      most = fmaxf(most, marks[2 * (i * (long long)num_rows + row)]);
    }
    float whole = 0.0f, sum = 0.0f;
    for (int i = 0; i < num_parts; ++i) {
      const long long at = i * (long long)num_rows + row;
      const float fade = exp2f(marks[2 * at] - most);
      whole += fade * marks[2 * at + 1];
      sum += fade * parts[at * D + threadIdx.x];
    }
    out[row * D + threadIdx.x] = static_cast<InT>(sum / whole);
"""


def can_run(q: Any, k: Any, v: Any) -> bool:
    """Whether this device, these numbers and these sizes of heads are the kernel's; and each query
    has a key."""
    return (
        _has_device()
        and all(isinstance(a, mx.array) and a.ndim == 4 for a in (q, k, v))
        and q.dtype == k.dtype == v.dtype
        and q.dtype in DTYPES
        and q.shape[3] in TILES
        and q.shape[3] == k.shape[3] == v.shape[3]
        and q.shape[0] == k.shape[0]
        and k.shape[:3] == v.shape[:3]
        and 0 < q.shape[2] <= k.shape[2]
        and 0 < k.shape[0] * k.shape[1] <= MAX_GRID
        and q.shape[1] % k.shape[1] == 0
    )


def run(
    q: mx.array,  # (B, heads, T, D)
    k: mx.array,  # (B, key heads, S, D)
    v: mx.array,
    scale: float,
    *,
    is_causal: bool,
) -> mx.array:
    """For a positive `scale`. A causal query sees all keys up to its own; the last has the last."""
    batch, num_heads, num_queries, depth = q.shape
    num_key_heads = k.shape[1]
    num_tiles = ceil(num_heads // num_key_heads * num_queries / ROWS)
    num_parts = _num_parts(batch * num_key_heads * num_tiles, k.shape[2])
    num_rows = batch * num_heads * num_queries
    is_split = (
        num_parts > 1
    )  # what is not to be written then has one number, for none may have none
    out, parts, marks = _attend(depth)(
        inputs=[q, k, v, _as_array(scale)],
        template=[
            # To a single query it is the same, and one kernel less to be made.
            ("InT", q.dtype), ("D", depth), ("IS_CAUSAL", is_causal or num_queries == 1),
            ("ROWS", ROWS), ("KEYS", TILES[depth]), ("THREADS", THREADS), ("PAD", PAD),
        ],
        grid=(num_tiles * THREADS, batch * num_key_heads, num_parts),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[
            (1,) if is_split else (num_rows, depth),
            (num_parts, num_rows, depth) if is_split else (1,),
            (num_parts, num_rows, 2) if is_split else (1,),
        ],
        output_dtypes=[q.dtype, mx.float32, mx.float32],
    )  # fmt: skip
    if is_split:
        out = _gathered(parts, marks, q.dtype)
    else:
        _prime(depth, q.dtype)
    assert isinstance(out, mx.array)
    # As models want it: the heads of a token beside each other, without another copy.
    return out.reshape(batch, num_queries, num_heads, depth).swapaxes(1, 2)


def _gathered(parts: mx.array, marks: mx.array, dtype: mx.Dtype) -> mx.array:
    _, num_rows, depth = parts.shape
    [out] = _gather()(
        inputs=[parts, marks],
        template=[("InT", dtype), ("D", depth)],
        grid=(num_rows * depth, 1, 1),
        threadgroup=(depth, 1, 1),
        output_shapes=[(num_rows, depth)],
        output_dtypes=[dtype],
    )
    assert isinstance(out, mx.array)
    return out


@cache
def _prime(depth: int, dtype: mx.Dtype) -> None:
    """Makes the other kernel when the first is made, which is while the model loads: it takes two
    seconds, and would be needed in the middle of a reply."""
    mx.eval(_gathered(mx.zeros((2, 1, depth)), mx.zeros((2, 1, 2)), dtype))


def _has_device() -> bool:
    is_cuda = mx.cuda.is_available() and mx.default_device() == mx.gpu
    return is_cuda and _capability() >= LEAST_CAPABILITY


@lru_cache(maxsize=1)
def _capability() -> int:
    return int(mx.device_info(mx.gpu).get("compute_capability_major", 0))


def _num_parts(num_blocks: int, num_keys: int) -> int:
    """A power of two, so that few different sizes are needed."""
    most = max(1, min(NUM_BLOCKS // num_blocks, num_keys // LEAST_PART))
    return 1 << (most.bit_length() - 1)


@lru_cache(maxsize=len(TILES))
def _attend(depth: int) -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_attend",
        input_names=["q", "k", "v", "scale"],
        output_names=["out", "parts", "marks"],
        source=_SOURCE,
        header=_HEADER,
        ensure_row_contiguous=False,
        shared_memory=8 * TILES[depth] * (depth + PAD),
    )


@lru_cache(maxsize=1)
def _gather() -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_gather",
        input_names=["parts", "marks"],
        output_names=["out"],
        source=_GATHER,
    )


@lru_cache(maxsize=8)
def _as_array(scale: float) -> mx.array:
    return mx.array([scale], dtype=mx.float32)
