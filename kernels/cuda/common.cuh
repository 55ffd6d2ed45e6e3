// Number formats and warp-level building blocks of all kernels, for NVRTC and, with CPU_EMU, for the CPU.
//
// Activations are io_t: bfloat16 unless IO_F16 or IO_F32 is defined. KV rows are e4m3_t (FP8 E4M3, saturating).
// Formats are kept as bits, so that no CUDA header is needed. Sizes come as macros; kernels name those they use.
#pragma once
#ifdef CPU_EMU
#include "cuda_cpu.h"
#else
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#define EXPORT(name)
#endif
#define KERNEL extern "C" __global__ void

struct f16_t { uint16_t bits; };
struct bf16_t { uint16_t bits; };
struct e4m3_t { uint8_t bits; };

#ifdef CPU_EMU
static inline float f16_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0) return __uint_as_float(sign) + (sign ? -1.f : 1.f) * ldexpf((float)mantissa, -24);
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
static inline uint16_t float_f16(float x) {  // round to nearest even
  const uint32_t u = __float_as_uint(x), sign = (u >> 16) & 0x8000u;
  const float a = fabsf(x);
  if (a != a) return 0x7FFF;
  if (a >= 65520.f) return sign | 0x7C00;
  if (a < 6.103515625e-5f) return sign | (uint16_t)nearbyintf(ldexpf(a, 24));
  const uint32_t m = __float_as_uint(a);
  return sign | (uint16_t)((m - (112u << 23) + 0xFFFu + ((m >> 13) & 1u)) >> 13);
}
static inline float bf16_float(uint16_t b) { return __uint_as_float((uint32_t)b << 16); }
static inline uint16_t float_bf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if (x != x) return 0x7FFF;
  return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
static inline float e4m3_float(uint8_t b) {
  const int exponent = (b >> 3) & 15, mantissa = b & 7;
  if ((b & 127) == 127) return NAN;
  const float a = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return b & 128 ? -a : a;
}
static inline uint8_t float_e4m3(float x) {  // round to nearest even, saturate to 448
  const uint8_t sign = __float_as_uint(x) >> 31 ? 128 : 0;
  const float a = fabsf(x);
  if (a != a) return sign | 127;
  if (a >= 448.f) return sign | 126;
  if (a < 0.015625f) return sign | (uint8_t)nearbyintf(a * 512.f);
  const uint32_t u = __float_as_uint(a);
  const uint32_t r = u + 0x7FFFFu + ((u >> 20) & 1u);
  const uint32_t bits = (r >> 20) - (120u << 3);
  return sign | (uint8_t)(bits > 126 ? 126 : bits);
}
static inline uint32_t pack_f16(float low, float high) {
  return (uint32_t)float_f16(low) | (uint32_t)float_f16(high) << 16;
}
static inline uint32_t e4m3x2_f16x2(uint16_t pair) {
  return pack_f16(e4m3_float((uint8_t)pair), e4m3_float((uint8_t)(pair >> 8)));
}
static inline float exp2_fast(float x) { return exp2f(x); }
#else
__device__ __forceinline__ float f16_float(uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
__device__ __forceinline__ uint16_t float_f16(float x) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
__device__ __forceinline__ float bf16_float(uint16_t b) { return __uint_as_float((uint32_t)b << 16); }
__device__ __forceinline__ uint16_t float_bf16(float x) {
  uint16_t b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
  return b;
}
__device__ __forceinline__ uint32_t e4m3x2_f16x2(uint16_t pair) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(pair));
  return r;
}
__device__ __forceinline__ float e4m3_float(uint8_t b) { return f16_float((uint16_t)e4m3x2_f16x2(b)); }
__device__ __forceinline__ uint8_t float_e4m3(float x) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.f), "f"(x));
  return (uint8_t)r;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
#endif

#if defined(IO_F32)
typedef float io_t;
__device__ __forceinline__ float io_float(io_t x) { return x; }
__device__ __forceinline__ io_t float_io(float x) { return x; }
#elif defined(IO_F16)
typedef f16_t io_t;
__device__ __forceinline__ float io_float(io_t x) { return f16_float(x.bits); }
__device__ __forceinline__ io_t float_io(float x) { return {float_f16(x)}; }
#else
typedef bf16_t io_t;
__device__ __forceinline__ float io_float(io_t x) { return bf16_float(x.bits); }
__device__ __forceinline__ io_t float_io(float x) { return {float_bf16(x)}; }
#endif

// ---- N consecutive activations, a power of two, in accesses of up to 16 bytes
template <int N> struct alignas(sizeof(io_t) * N < 16 ? sizeof(io_t) * N : 16) IoVector { io_t values[N]; };
template <int N> __device__ __forceinline__ void load_io(float* x, const io_t* from) {
  const IoVector<N> all = *(const IoVector<N>*)from;
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = io_float(all.values[i]);
}
template <int N> __device__ __forceinline__ void store_io(io_t* to, const float* x) {
  IoVector<N> all;
#pragma unroll
  for (int i = 0; i < N; ++i) all.values[i] = float_io(x[i]);
  *(IoVector<N>*)to = all;
}

// ---- warp-wide sums
__device__ __forceinline__ float warp_sum(float x) {
  for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

// ---- asynchronous copies of 16 bytes into shared memory, in groups
#ifdef CPU_EMU
static inline void copy16(void* shared, const void* global) { memcpy(shared, global, 16); }
static inline void copy_commit() {}
template <int N> static inline void copy_wait() {}
#else
__device__ __forceinline__ void copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
               "l"(global));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
#endif

// ---- tensor cores: c[16x8] += a[16x16] b[16x8], f16 in, f32 out, in the register layout of mma.m16n8k16
#ifdef CPU_EMU
static inline void mma_f16(float* c, const uint32_t* a, const uint32_t* b) {
  cpu::Warp& w = cpu::warp();
  uint32_t mine[8] = {a[0], a[1], a[2], a[3], b[0], b[1], 0, 0};
  memcpy(w.slot[cpu::lane()], mine, sizeof mine);
  cpu::warp_barrier();
  const unsigned group = cpu::lane() / 4, pair = cpu::lane() % 4;
  auto part = [&](unsigned lane, unsigned reg, unsigned half) {
    uint32_t r;
    memcpy(&r, (const char*)w.slot[lane] + 4 * reg, 4);
    return f16_float((uint16_t)(half ? r >> 16 : r));
  };
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = group + 8 * (e / 2), column = pair * 2 + e % 2;
    float sum = 0.f;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned lane = k % 8 / 2;
      sum += part(row % 8 * 4 + lane, row / 8 + k / 8 * 2, k % 2) * part(column * 4 + lane, 4 + k / 8, k % 2);
    }
    c[e] += sum;
  }
  cpu::warp_barrier();
}
// Two 8x8 matrices of 16-bit elements from shared memory, transposed: lanes 0-15 give the row addresses.
static inline void load_matrix_x2_trans(uint32_t* r, const void* row) {
  cpu::Warp& w = cpu::warp();
  memcpy(w.slot[cpu::lane()], &row, sizeof row);
  cpu::warp_barrier();
  const unsigned lane = cpu::lane();
  for (unsigned m = 0; m < 2; ++m) {
    uint16_t pair[2];
    for (unsigned e = 0; e < 2; ++e) {
      const char* address;
      memcpy(&address, w.slot[m * 8 + lane % 4 * 2 + e], sizeof address);
      memcpy(&pair[e], address + lane / 4 * 2, 2);
    }
    r[m] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
  }
  cpu::warp_barrier();
}
// Four of them: lanes 0-31 give the row addresses.
static inline void load_matrix_x4_trans(uint32_t* r, const void* row) {
  load_matrix_x2_trans(r, row);
  const uint64_t above = cpu::shuffle((uint64_t)row, cpu::lane() | 16);
  load_matrix_x2_trans(r + 2, (const void*)above);
}
// Four 8x8 matrices as they lie: lanes 0-31 give the row addresses, lane l gets elements 2(l % 4) and + 1 of row l / 4.
static inline void load_matrix_x4(uint32_t* r, const void* row) {
  cpu::Warp& w = cpu::warp();
  memcpy(w.slot[cpu::lane()], &row, sizeof row);
  cpu::warp_barrier();
  const unsigned lane = cpu::lane();
  for (unsigned m = 0; m < 4; ++m) {
    const char* address;
    memcpy(&address, w.slot[m * 8 + lane / 4], sizeof address);
    memcpy(&r[m], address + lane % 4 * 4, 4);
  }
  cpu::warp_barrier();
}
static inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return r;
}
#else
__device__ __forceinline__ void mma_f16(float* c, const uint32_t* a, const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Two 8x8 matrices of 16-bit elements from shared memory, transposed: lanes 0-15 give the row addresses.
__device__ __forceinline__ void load_matrix_x2_trans(uint32_t* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
// Four of them: lanes 0-31 give the row addresses.
__device__ __forceinline__ void load_matrix_x4_trans(uint32_t* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
// Four 8x8 matrices as they lie: lanes 0-31 give the row addresses, lane l gets elements 2(l % 4) and + 1 of row l / 4.
__device__ __forceinline__ void load_matrix_x4(uint32_t* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row)));
}
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
#endif
