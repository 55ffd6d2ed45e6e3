// The TOP_K largest of each row of VOCAB logits, best first, and with LOG_NORM the logarithm of the row's sum of exp.
#include "common.cuh"

// A block per row. Every thread keeps the best KEPT of its elements while the row is read once, 16 bytes at a time;
// then TOP_K rounds take the best of all threads. A thread whose kept ones are used up reads its part again for the
// next best: rare, for a thread's elements are spread over the row, and it makes the result exact for every row. One
// block per row is enough: the row was just written, so it comes from the L2 cache, and whatever this takes is little
// beside the matrix that made it.
//
// Candidates are compared as keys: the logit's order in the upper half, the complement of its id in the lower one, so
// that no two are equal and of equal logits the lowest id wins. NaN orders below every number, "nothing" is key 0.
#define KEPT 4
#define WIDTH (VOCAB % 4 ? 1 : 4)
#define BATCH 4  // loads in flight
#define WARPS (THREADS / 32)

__device__ __forceinline__ uint32_t order(float x) {
  if (x != x) return 1;
  const uint32_t bits = __float_as_uint(x == 0.f ? 0.f : x);  // -0 is 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t make_key(float x, int id) { return (uint64_t)order(x) << 32 | (uint32_t)~id; }
__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
  for (int m = 16; m; m >>= 1) key = max(key, (uint64_t)__shfl_xor_sync(~0u, key, m));
  return key;
}

// Sum of exp(x - peak) over the numbers added; NaN adds nothing. With an infinite peak the sum does not matter.
struct ExpSum {
  float peak, sum;

  __device__ __forceinline__ void raise(float other) {
    const float top = fmaxf(peak, other);
    if (top - top == 0.f) sum *= __expf(peak - top);
    peak = top;
  }
  __device__ __forceinline__ void add(const float* x) {
    float top = x[0];
    for (int i = 1; i < WIDTH; ++i) top = fmaxf(top, x[i]);
    raise(top);
    if (peak - peak != 0.f) return;
    for (int i = 0; i < WIDTH; ++i) sum += x[i] == x[i] ? __expf(x[i] - peak) : 0.f;
  }
  __device__ __forceinline__ void merge(float other_peak, float other_sum) {
    raise(other_peak);
    if (peak - peak == 0.f) sum += other_sum * __expf(other_peak - peak);
  }
  __device__ __forceinline__ float log_norm() const { return peak - peak == 0.f ? peak + logf(sum) : peak; }
};

// The best of this thread's elements whose keys are less than `below`, in order.
__device__ __forceinline__ void read_best(const float* row, uint64_t below, uint64_t* kept, ExpSum& norm) {
  const int stride = THREADS * WIDTH;
#pragma unroll
  for (int i = 0; i < KEPT; ++i) kept[i] = 0;
  for (int start = threadIdx.x * WIDTH; start < VOCAB; start += BATCH * stride) {
    float x[BATCH][WIDTH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const float* at = row + start + b * stride;
      if (start + b * stride >= VOCAB) continue;
#if VOCAB % 4
      x[b][0] = *at;
#else
      const float4 four = *(const float4*)at;
      x[b][0] = four.x, x[b][1] = four.y, x[b][2] = four.z, x[b][3] = four.w;
#endif
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      if (start + b * stride >= VOCAB) continue;
      norm.add(x[b]);
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) {
        uint64_t key = make_key(x[b][e], start + b * stride + e);
        if (key >= below || key < kept[KEPT - 1]) continue;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
          const uint64_t less = min(key, kept[i]);
          kept[i] = max(key, kept[i]);
          key = less;
        }
      }
    }
  }
}

KERNEL __launch_bounds__(THREADS)
#ifdef LOG_NORM
    draft_topk(const float* __restrict__ logits, int* __restrict__ ids, float* __restrict__ values,
               float* __restrict__ log_norm) {
#else
    sample_topk(const float* __restrict__ logits, int* __restrict__ ids, float* __restrict__ values) {
#endif
  __shared__ uint64_t heads[2][WARPS];  // the best of each warp; two, so that a round needs one barrier
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* row = logits + (size_t)blockIdx.x * VOCAB;
  uint64_t kept[KEPT];
  ExpSum norm{__uint_as_float(0xFF800000u), 0.f};
  read_best(row, ~(uint64_t)0, kept, norm);

#ifdef LOG_NORM
  __shared__ float peaks[WARPS], sums[WARPS];
  for (int m = 16; m; m >>= 1) {
    const float peak = __shfl_xor_sync(~0u, norm.peak, m), sum = __shfl_xor_sync(~0u, norm.sum, m);
    norm.merge(peak, sum);
  }
  if (!lane) peaks[warp] = norm.peak, sums[warp] = norm.sum;
  __syncthreads();
  if (!threadIdx.x) {
    for (int i = 1; i < WARPS; ++i) norm.merge(peaks[i], sums[i]);
    log_norm[blockIdx.x] = norm.log_norm();
  }
#endif

  uint64_t mine = warp_max(kept[0]);
  for (int i = 0; i < TOP_K; ++i) {
    if (!lane) heads[i % 2][warp] = mine;
    __syncthreads();
    const uint64_t best = warp_max(lane < WARPS ? heads[i % 2][lane] : 0);
    if (mine != best) continue;
    if (kept[0] == best) {
      const int id = (int)~(uint32_t)best;
      ids[blockIdx.x * TOP_K + i] = id;
      values[blockIdx.x * TOP_K + i] = row[id];
#pragma unroll
      for (int k = 1; k < KEPT; ++k) kept[k - 1] = kept[k];
      kept[KEPT - 1] = 0;
      ExpSum unused = norm;
      if (TOP_K > KEPT && !kept[0]) read_best(row, best, kept, unused);
    }
    mine = warp_max(kept[0]);
  }
}
#ifdef LOG_NORM
EXPORT(draft_topk)
#else
EXPORT(sample_topk)
#endif
