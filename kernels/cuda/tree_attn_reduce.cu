// Puts together what the splits of tree_attn_partial found.
#include "common.cuh"

constexpr int PER_LANE = HEAD_DIM / 32, GROUP = HEADS / KV_HEADS;
struct alignas(PER_LANE * 4 < 16 ? PER_LANE * 4 : 16) Sums { float of[PER_LANE]; };

// One warp per row and head. Splits without tokens have total 0, and their sums were never written.
KERNEL __launch_bounds__(THREADS) tree_attn_reduce(const float* __restrict__ part_o, const float* __restrict__ part_ml,
                                                   io_t* __restrict__ context) {
  const int lane = threadIdx.x % 32, at = (blockIdx.x * THREADS + threadIdx.x) / 32;
  const int row = at / HEADS, head = at % HEADS;
  if (row >= ROWS) return;
  const int64_t first = (int64_t)(head / GROUP) * (ROWS * GROUP) + row * GROUP + head % GROUP;
  const int64_t step = (int64_t)KV_HEADS * ROWS * GROUP;  // from split to split
  float highest = -1e30f;
  for (int s = 0; s < SPLITS; ++s) highest = fmaxf(highest, part_ml[(first + s * step) * 2]);
  float total = 0.f;
  Sums sums = {};
  for (int s = 0; s < SPLITS; ++s) {
    const float2 found = *(const float2*)&part_ml[(first + s * step) * 2];
    if (found.y == 0.f) continue;
    const float factor = exp2_fast(found.x - highest);
    const Sums part = *(const Sums*)&part_o[(first + s * step) * HEAD_DIM + lane * PER_LANE];
    total += found.y * factor;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) sums.of[i] += part.of[i] * factor;
  }
  const float inverse = 1.f / total;
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) sums.of[i] *= inverse;
  store_io<PER_LANE>(context + (int64_t)at * HEAD_DIM + lane * PER_LANE, sums.of);
}
EXPORT(tree_attn_reduce)
