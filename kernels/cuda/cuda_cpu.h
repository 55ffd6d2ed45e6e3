// Runs a CUDA C++ kernel on the CPU for tests: blocks one after another, every thread of a block a fiber.
//
// Barriers and shuffles switch fibers, and each warp runs as far as it can before the next, so a missing __syncthreads
// shows as a wrong result in one of the two orders in which warps and fibers are resumed. Shared memory is filled with 0xFF (NaN) before each block: reading what was not written
// shows too. A launch returns 1 when threads wait at a barrier that others never reach. Not modelled: races inside a
// warp, memory ordering, bank conflicts, alignment traps, register limits, asynchronous copies (they are synchronous).
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emu_shared")))
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))

struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
static inline float2 make_float2(float a, float b) { return {a, b}; }
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }

extern "C" char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));

namespace cpu {
struct Dim { unsigned x = 1, y = 1, z = 1; };
struct Warp { unsigned arrived = 0, turn = 0; uint64_t slot[32][4]; };
struct Fiber { ucontext_t context; Dim thread; unsigned index = 0; bool done = false; };
inline Fiber* current;
inline std::vector<Fiber> fibers;
inline std::vector<std::vector<char>> stacks;
inline std::vector<Warp> warps;
inline ucontext_t scheduler;
inline Dim block_index, grid, block;
inline unsigned arrived, turn, alive;
inline unsigned long progress;  // barrier arrivals and finished threads
inline std::vector<char> dynamic_shared;
inline void (*entry)(void*);
inline void* entry_argument;

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void block_barrier() {
  const unsigned mine = turn;
  ++progress;
  if (++arrived == fibers.size()) { arrived = 0; ++turn; }
  while (turn == mine) yield();
}
inline Warp& warp() { return warps[current->index >> 5]; }
inline unsigned lane() { return current->index & 31; }
inline void warp_barrier() {
  Warp& w = warp();
  const unsigned mine = w.turn;
  ++progress;
  if (++w.arrived == 32) { w.arrived = 0; ++w.turn; }
  while (w.turn == mine) yield();
}
inline void run_thread() {
  entry(entry_argument);
  current->done = true;
  --alive;
  ++progress;
  yield();
}
inline bool run_block(unsigned threads, bool reverse) {
  if (__start_emu_shared) memset(__start_emu_shared, 0xFF, __stop_emu_shared - __start_emu_shared);
  if (!dynamic_shared.empty()) memset(dynamic_shared.data(), 0xFF, dynamic_shared.size());
  fibers.assign(threads, Fiber{});
  warps.assign((threads + 31) / 32, Warp{});
  arrived = turn = 0;
  alive = threads;
  if (stacks.size() < threads) stacks.resize(threads, std::vector<char>(1 << 16));
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& f = fibers[i];
    f.index = i;
    f.thread = {i % block.x, (i / block.x) % block.y, i / (block.x * block.y)};
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks[i].data();
    f.context.uc_stack.ss_size = stacks[i].size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_thread, 0);
  }
  while (alive) {
    const unsigned long start = progress;
    for (unsigned w = 0; w < warps.size(); ++w) {  // each warp goes as far as it can before the next
      const unsigned first = (reverse ? (unsigned)warps.size() - 1 - w : w) * 32, size = std::min(32u, threads - first);
      for (unsigned long before = progress - 1; before != progress;) {
        before = progress;
        for (unsigned i = 0; i < size; ++i) {
          Fiber& f = fibers[first + (reverse ? size - 1 - i : i)];
          if (!f.done) { current = &f; swapcontext(&scheduler, &f.context); }
        }
      }
    }
    if (alive && progress == start) return false;
  }
  return true;
}
template <class... A, size_t... I> void call(void (*k)(A...), void** a, std::index_sequence<I...>) {
  k(*reinterpret_cast<A*>(a[I])...);
}
template <class... A>
int launch(void (*k)(A...), const unsigned* g, const unsigned* b, size_t shared, int reverse, void** arguments) {
  grid = {g[0], g[1], g[2]};
  block = {b[0], b[1], b[2]};
  dynamic_shared.assign(shared ? shared + 16 : 0, 0);
  struct Bound { void (*k)(A...); void** a; } bound{k, arguments};
  entry = [](void* p) { auto* q = static_cast<Bound*>(p); call(q->k, q->a, std::index_sequence_for<A...>{}); };
  entry_argument = &bound;
  const unsigned count = g[0] * g[1] * g[2];
  for (unsigned i = 0; i < count; ++i) {
    const unsigned at = reverse ? count - 1 - i : i;
    block_index = {at % g[0], at / g[0] % g[1], at / (g[0] * g[1])};
    if (!run_block(b[0] * b[1] * b[2], reverse)) return 1;
  }
  return 0;
}
template <class T> T shuffle(T value, unsigned source) {
  Warp& w = warp();
  memcpy(w.slot[lane()], &value, sizeof value);
  warp_barrier();
  T result;
  memcpy(&result, w.slot[source & 31], sizeof result);
  warp_barrier();
  return result;
}
}  // namespace cpu

#define threadIdx (cpu::current->thread)
#define blockIdx cpu::block_index
#define gridDim cpu::grid
#define blockDim cpu::block
#define __syncthreads cpu::block_barrier
#define __syncwarp cpu::warp_barrier
template <class T> T __shfl_sync(unsigned, T v, int source) { return cpu::shuffle(v, source); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) { return cpu::shuffle(v, cpu::lane() ^ mask); }
static inline unsigned __ballot_sync(unsigned, int predicate) {
  unsigned all = 0;
  for (int i = 0; i < 32; ++i) all |= (cpu::shuffle<int>(predicate, i) ? 1u : 0u) << i;
  return all;
}
static inline int __any_sync(unsigned, int predicate) {
  for (int m = 16; m; m >>= 1) predicate |= cpu::shuffle<int>(predicate, cpu::lane() ^ m);
  return predicate;
}
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline int __popc(uint32_t u) { return __builtin_popcount(u); }
static inline int __ffs(int u) { return __builtin_ffs(u); }
static inline int __clz(int u) { return u ? __builtin_clz(u) : 32; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
#define DYNAMIC_SHARED(name) char* name = (char*)(((uintptr_t)cpu::dynamic_shared.data() + 15) & ~(uintptr_t)15)
#define EXPORT(name)                                                                                    \
  extern "C" int cpu_##name(const unsigned* g, const unsigned* b, size_t shared, int reverse, void** a) { \
    return cpu::launch(name, g, b, shared, reverse, a);                                                  \
  }
