"""The kernels of `attention_cuda`, in CUDA: text, compiled where they run. Any thread."""

# What the device has instructions for.
INSTRUCTIONS = """
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

SHARES = """
constexpr float LOG2_E = 1.44269504f;
// What the sums are to be multiplied with: `sink` is a score beside the others, without a value.
__device__ __forceinline__ float share_of(float most, float whole, float sink) {
  sink *= LOG2_E;
  const float top = fmaxf(most, sink);
  if (top == -INFINITY) return 0.0f;  // nothing was seen
  const float fade = power_of_2(most - top);
  return fade / (fade * whole + power_of_2(sink - top));
}
"""

HEADER = INSTRUCTIONS + SHARES

ATTEND = """
    constexpr int STRIDE = D + PAD;
    constexpr int STEPS = D / 16;  // of a product over a head
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

    // This lane has two rows of its warp's sixteen, and the last warps may have none.
    const bool is_idle = first_row + warp * 16 >= num_rows;
    const int rows[2] = {first_row + warp * 16 + quad, first_row + warp * 16 + quad + 8};
    const Short* queries = reinterpret_cast<const Short*>(q);
    unsigned a[STEPS][4];
    int limits[2];
    const bool* visible_to[2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_real = rows[half] < num_rows;
      const int row = is_real ? rows[half] : 0;
      limits[half] = IS_CAUSAL ? S - T + row / group + 1 : S;
      const int head = key_head * group + row % group, query = row / group;
      visible_to[half] = mask;
      if (HAS_MASK) {
        visible_to[half] += b * mask_strides[0] + head * mask_strides[1] + query * mask_strides[2];
      }
      const Short* mine =
          queries + b * q_strides[0] + head * q_strides[1] + query * q_strides[2];
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

    if (begin < end) fetch(begin, 0);
    for (int start = begin, buffer = 0; start < end; start += KEYS, buffer ^= 1) {
      wait_for_all();
      __syncthreads();  // so have all others, and they are done with the other buffer
      if (start + KEYS < end) fetch(start + KEYS, buffer ^ 1);
      // One bit for each of this lane's scores.
      unsigned is_visible = 0;
      if (HAS_MASK) {
        #pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) {
          const int key = start + i / 4 * 8 + column + i % 2;
          if (key < S && visible_to[i % 4 / 2][key * mask_strides[3]]) is_visible |= 1u << i;
        }
      }
      if (is_idle || (HAS_MASK && !__any_sync(0xffffffff, is_visible))) continue;
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

      if (HAS_MASK || start + KEYS > seen_by_all) {
        #pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
          #pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = start + 8 * i + column + e % 2;
            const bool is_seen = HAS_MASK ? is_visible >> (4 * i + e) & 1 : key < limits[e / 2];
            if (!is_seen) scores[i][e] = -INFINITY;
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
    }

    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      whole[half] += __shfl_xor_sync(0xffffffff, whole[half], 1);
      whole[half] += __shfl_xor_sync(0xffffffff, whole[half], 2);
      if (rows[half] >= num_rows) continue;
      const int head = key_head * group + rows[half] % group;
      const long long row = ((long long)b * T + rows[half] / group) * q_shape[1] + head;
      if (gridDim.z == 1) {
        const float share = share_of(most[half], whole[half], HAS_SINKS ? sinks[head] : -INFINITY);
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
GATHER = """
    const int num_parts = parts_shape[0], num_rows = parts_shape[1];
    const long long row = blockIdx.x;
    float most = -INFINITY;
    for (int i = 0; i < num_parts; ++i) {
      most = fmaxf(most, marks[2 * (i * (long long)num_rows + row)]);
    }
    float whole = 0.0f, sum = 0.0f;
    for (int i = 0; i < num_parts; ++i) {
      const long long at = i * (long long)num_rows + row;
      const float fade = most == -INFINITY ? 0.0f : exp2f(marks[2 * at] - most);
      whole += fade * marks[2 * at + 1];
      sum += fade * parts[at * D + threadIdx.x];
    }
    const float sink = HAS_SINKS ? sinks[row % sinks_shape[0]] : -INFINITY;
    out[row * D + threadIdx.x] = static_cast<InT>(sum * share_of(most, whole, sink));
"""
