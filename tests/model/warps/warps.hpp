// Enough of CUDA to run a kernel's source on a CPU, block after block: its threads are fibres that
// take turns whenever they wait for each other. What `attention_source` has as
// instructions of the device is here as what these are documented to do.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using std::max;
using std::min;
using Short = unsigned short;

#define __device__
#define __forceinline__ inline

constexpr int NUM_THREADS = 128;
constexpr size_t STACK_BYTES = 1 << 18;
constexpr Short NAN_BITS = 0x7fc0;

struct Dim { int x, y, z; };
static Dim blockIdx, gridDim;

struct Fibre { ucontext_t context; bool is_done; };
static Fibre fibres[NUM_THREADS];
static ucontext_t outside;
static int current;
struct Index { struct { operator int() const { return current; } } x; };
static Index threadIdx;

static void let_others() {
  const int self = current;
  int next = self;
  do next = (next + 1) % NUM_THREADS; while (fibres[next].is_done && next != self);
  if (next == self) return;
  current = next;
  swapcontext(&fibres[self].context, &fibres[next].context);
}

struct Barrier { int num_waiting = 0, generation = 0; };
static Barrier of_block, of_warps[NUM_THREADS / 32];

static void wait_at(Barrier& barrier, int num_threads) {
  const int generation = barrier.generation;
  if (++barrier.num_waiting == num_threads) {
    barrier.num_waiting = 0;
    ++barrier.generation;
  } else {
    while (barrier.generation == generation) let_others();
  }
}
static void __syncthreads() { wait_at(of_block, NUM_THREADS); }
static void sync_warp() { wait_at(of_warps[current / 32], 32); }

struct BFloat16 {
  Short bits = 0;
  BFloat16() = default;
  explicit BFloat16(float number) {
    uint32_t wide;
    memcpy(&wide, &number, 4);
    bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
  }
};
static float widened(Short bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float number;
  memcpy(&number, &wide, 4);
  return number;
}
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float power_of_2(float x) { return exp2f(x); }

template <typename T>
unsigned pack(float low, float high) {
  return T(low).bits | unsigned(T(high).bits) << 16;
}

static float shuffled[NUM_THREADS];
static float __shfl_xor_sync(unsigned, float number, int mask) {
  shuffled[current] = number;
  sync_warp();
  const float found = shuffled[current ^ mask];
  sync_warp();
  return found;
}

static unsigned asked[NUM_THREADS];
static bool __any_sync(unsigned, unsigned number) {
  asked[current] = number;
  sync_warp();
  const unsigned* first = asked + current / 32 * 32;
  const bool found = std::any_of(first, first + 32, [](unsigned one) { return one != 0; });
  sync_warp();
  return found;
}

// mma.m16n8k16: which lane has which numbers of a (16 x 16), b (16 x 8) and the sums (16 x 8).
static unsigned lefts[NUM_THREADS][4], rights[NUM_THREADS][2];
static float number_of(unsigned pair, int place) { return widened(pair >> 16 * place); }
static void multiply(float* sums, const unsigned* a, const unsigned* b, BFloat16) {
  memcpy(lefts[current], a, sizeof lefts[0]);
  memcpy(rights[current], b, sizeof rights[0]);
  sync_warp();
  const int warp = current / 32 * 32, lane = current % 32;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int among = k % 8 / 2;
      const unsigned left = lefts[warp + row % 8 * 4 + among][row / 8 + k / 8 * 2];
      const unsigned right = rights[warp + column * 4 + among][k / 8];
      sum += number_of(left, k % 2) * number_of(right, k % 2);
    }
    sums[e] += sum;
  }
  sync_warp();
}

// ldmatrix.x4: lane 8 i + r says where row r of matrix i lies.
static const Short* places[NUM_THREADS];
static void load(unsigned* to, const Short* row, bool is_turned) {
  places[current] = row;
  sync_warp();
  const int lane = current % 32, pair = lane % 4 * 2, other = lane / 4;
  for (int i = 0; i < 4; ++i) {
    const Short** rows = places + current / 32 * 32 + 8 * i;
    const Short low = is_turned ? rows[pair][other] : rows[other][pair];
    const Short high = is_turned ? rows[pair + 1][other] : rows[other][pair + 1];
    to[i] = low | unsigned(high) << 16;
  }
  sync_warp();
}
static void load_matrices(unsigned* to, const Short* row) { load(to, row, false); }
static void load_matrices_turned(unsigned* to, const Short* row) { load(to, row, true); }

// cp.async: what is on its way is not there, until it is waited for.
struct Copy { Short* to; const void* from; bool is_real; };
static std::vector<Copy> on_the_way[NUM_THREADS];
static int num_unaligned = 0;
static void send(Short* to, const void* from, bool is_real) {
  num_unaligned += is_real && uintptr_t(from) % 16 != 0;
  std::fill(to, to + 8, NAN_BITS);
  on_the_way[current].push_back({to, from, is_real});
}
static void wait_for_all() {
  for (const Copy& copy : on_the_way[current]) {
    if (copy.is_real) memcpy(copy.to, copy.from, 16); else memset(copy.to, 0, 16);
  }
  on_the_way[current].clear();
}

static Short shared[1 << 17];
static void kernel();  // one thread of one block

static void run_thread() {
  kernel();
  fibres[current].is_done = true;
  if (std::any_of(fibres, fibres + NUM_THREADS, [](Fibre& f) { return !f.is_done; })) let_others();
  setcontext(&outside);
}

static void run_block() {
  static std::vector<char> stacks(NUM_THREADS * STACK_BYTES);
  std::fill(std::begin(shared), std::end(shared), NAN_BITS);
  for (int i = 0; i < NUM_THREADS; ++i) {
    Fibre& fibre = fibres[i];
    getcontext(&fibre.context);
    fibre.is_done = false;
    fibre.context.uc_stack.ss_sp = stacks.data() + i * STACK_BYTES;
    fibre.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fibre.context, run_thread, 0);
  }
  current = 0;
  volatile bool is_over = false;
  getcontext(&outside);
  if (!is_over) {
    is_over = true;
    setcontext(&fibres[0].context);
  }
}
