"""The gated delta rule on CUDA: one kernel that walks over the tokens with the state in registers.

Token by token as mlx-lm's Metal kernel does, so the bits do not depend on how a prompt is cut. Any
thread that may use mlx; what `run` gives depends on its arguments alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mlx.core as mx

LANES = 8  # threads that share one row of the state
THREADS = 128  # in a block, so 16 rows
TILE_FLOATS = 4096  # of keys (and as many of queries) in shared memory at a time
MAX_TILE = 64  # tokens; with more, the values of small heads would not fit beside them

_SOURCE = """
    constexpr int ROWS = THREADS / LANES;
    constexpr int QUADS = Dk / (4 * LANES);  // of the state, in one lane
    __shared__ float4 keys[TILE][Dk / 4];
    __shared__ float4 queries[TILE][Dk / 4];
    __shared__ float4 gates[IS_VECTOR ? TILE : 1][IS_VECTOR ? Dk / 4 : 1];
    __shared__ float decays[TILE], betas[TILE], products[TILE];
    __shared__ float values[TILE][ROWS], outs[TILE][ROWS];

    const int T = k_shape[1];
    const int head = blockIdx.y;  // of all heads of the batch
    const int b = head / Hv, hv = head % Hv, hk = hv / (Hv / Hk);
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const int first_row = blockIdx.x * ROWS;
    const bool is_real = first_row + row < Dv;

    // Lane l holds every LANES-th quad of the row, so that lanes read neighbouring banks.
    float4 s[QUADS];
    const long long at = ((long long)head * Dv + first_row + row) * Dk;
    #pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      const int e = 4 * (i * LANES + lane);
      s[i] = is_real ? make_float4(state_in[at + e], state_in[at + e + 1],
                                   state_in[at + e + 2], state_in[at + e + 3])
                     : make_float4(0, 0, 0, 0);
    }

    for (int start = 0; start < T; start += TILE) {
      const int count = min(TILE, T - start);
      const long long token = (long long)b * T + start;
      for (int i = threadIdx.x; i < count * Dk; i += THREADS) {
        const int t = i / Dk, d = i % Dk;
        const long long from = ((token + t) * Hk + hk) * Dk + d;
        reinterpret_cast<float*>(keys[t])[d] = static_cast<float>(k[from]);
        reinterpret_cast<float*>(queries[t])[d] = static_cast<float>(q[from]);
        if constexpr (IS_VECTOR) {
          reinterpret_cast<float*>(gates[t])[d] =
              static_cast<float>(g[((token + t) * Hv + hv) * Dk + d]);
        }
      }
      for (int i = threadIdx.x; i < count * ROWS; i += THREADS) {
        const int t = i / ROWS, r = first_row + i % ROWS;
        values[t][i % ROWS] =
            r < Dv ? static_cast<float>(v[((token + t) * Hv + hv) * Dv + r]) : 0.0f;
      }
      for (int t = threadIdx.x; t < count; t += THREADS) {
        betas[t] = static_cast<float>(beta[(token + t) * Hv + hv]);
        if constexpr (!IS_VECTOR) decays[t] = static_cast<float>(g[(token + t) * Hv + hv]);
      }
      __syncthreads();
      // k · q of each token, by one row of lanes
      for (int t = row; t < TILE; t += ROWS) {
        float sum = 0.0f;
        if (t < count) {
          for (int i = lane; i < Dk / 4; i += LANES) {
            const float4 a = keys[t][i], c = queries[t][i];
            sum += a.x * c.x + a.y * c.y + a.z * c.z + a.w * c.w;
          }
        }
        for (int m = LANES / 2; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffff, sum, m);
        if (lane == 0 && t < count) products[t] = sum;
      }
      __syncthreads();

      for (int t = 0; t < count; ++t) {
        float4 kk[QUADS], with_key = make_float4(0, 0, 0, 0), with_query = with_key;
        #pragma unroll
        for (int i = 0; i < QUADS; ++i) {
          kk[i] = keys[t][i * LANES + lane];
          const float4 qq = queries[t][i * LANES + lane];
          if constexpr (IS_VECTOR) {
            const float4 gg = gates[t][i * LANES + lane];
            s[i].x *= gg.x; s[i].y *= gg.y; s[i].z *= gg.z; s[i].w *= gg.w;
          }
          with_key.x += s[i].x * kk[i].x; with_query.x += s[i].x * qq.x;
          with_key.y += s[i].y * kk[i].y; with_query.y += s[i].y * qq.y;
          with_key.z += s[i].z * kk[i].z; with_query.z += s[i].z * qq.z;
          with_key.w += s[i].w * kk[i].w; with_query.w += s[i].w * qq.w;
        }
        float memory = (with_key.x + with_key.y) + (with_key.z + with_key.w);
        float seen = (with_query.x + with_query.y) + (with_query.z + with_query.w);
        #pragma unroll
        for (int m = LANES / 2; m > 0; m /= 2) {
          memory += __shfl_xor_sync(0xffffffff, memory, m);
          seen += __shfl_xor_sync(0xffffffff, seen, m);
        }
        const float decay = IS_VECTOR ? 1.0f : decays[t];
        const float delta = (values[t][row] - decay * memory) * betas[t];
        #pragma unroll
        for (int i = 0; i < QUADS; ++i) {
          s[i].x = decay * s[i].x + kk[i].x * delta;
          s[i].y = decay * s[i].y + kk[i].y * delta;
          s[i].z = decay * s[i].z + kk[i].z * delta;
          s[i].w = decay * s[i].w + kk[i].w * delta;
        }
        // S_t q = decay · S_{t-1} q + (k · q) delta
        if (lane == 0) outs[t][row] = decay * seen + products[t] * delta;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < count * ROWS; i += THREADS) {
        const int t = i / ROWS, r = first_row + i % ROWS;
        if (r < Dv) {
          y[((token + t) * Hv + hv) * Dv + r] = static_cast<InT>(outs[t][i % ROWS]);
        }
      }
      __syncthreads();
    }
    if (is_real) {
      #pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        const int e = 4 * (i * LANES + lane);
        state_out[at + e] = s[i].x; state_out[at + e + 1] = s[i].y;
        state_out[at + e + 2] = s[i].z; state_out[at + e + 3] = s[i].w;
      }
    }
"""


def can_run(k: mx.array, v: mx.array) -> bool:
    """Whether this device and these sizes of heads are the kernel's."""
    key_dim = k.shape[-1]
    return (
        mx.cuda.is_available()
        and mx.default_device() == mx.gpu
        and key_dim % (4 * LANES) == 0
        and key_dim <= 256
        and v.shape[1] > 0
    )


def run(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The shapes of `gated_delta`; no mask."""
    batch, length, num_key_heads, key_dim = k.shape
    num_heads, value_dim = v.shape[2:]
    is_vector = g.ndim == 4
    rows = THREADS // LANES
    y, last = _kernel()(
        inputs=[q, k, v, g.astype(mx.float32), beta, state.astype(mx.float32)],
        template=[
            ("InT", q.dtype),
            ("Dk", key_dim),
            ("Dv", value_dim),
            ("Hk", num_key_heads),
            ("Hv", num_heads),
            ("LANES", LANES),
            ("THREADS", THREADS),
            ("TILE", min(MAX_TILE, TILE_FLOATS // key_dim // (2 if is_vector else 1))),
            ("IS_VECTOR", is_vector),
        ],
        grid=(-(-value_dim // rows) * THREADS, batch * num_heads, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(batch, length, num_heads, value_dim), state.shape],
        output_dtypes=[q.dtype, mx.float32],
    )
    return y, last


@lru_cache(maxsize=1)
def _kernel() -> Any:
    return mx.fast.cuda_kernel(
        name="keepwarm_gated_delta",
        input_names=["q", "k", "v", "g", "beta", "state_in"],
        output_names=["y", "state_out"],
        source=_SOURCE,
    )
