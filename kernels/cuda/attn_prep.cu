// Queries, keys and values of a step as attention takes them: head norms, RoPE, and FP8 rows in the tail.
#include "common.cuh"

constexpr int PER_LANE = HEAD_DIM / 32;            // consecutive values of a head that a lane has
constexpr int HALF_LANES = ROTARY / 2 / PER_LANE;  // lanes that have the first halves of RoPE's pairs
template <class T> struct alignas(PER_LANE * sizeof(T) < 16 ? PER_LANE * sizeof(T) : 16) Slice { T of[PER_LANE]; };

// One warp per head of a row: the query heads, then those of keys, then those of values. RoPE turns value i with value
// i + ROTARY / 2. FP8 rows hold E4M3(x / scale), divided in float32.
KERNEL __launch_bounds__(THREADS)
    attn_prep(const io_t* __restrict__ q, const io_t* __restrict__ k, const io_t* __restrict__ v,
              const float* __restrict__ q_norm, const float* __restrict__ k_norm, const float* __restrict__ cos,
              const float* __restrict__ sin, const int* __restrict__ position_ids, const float* __restrict__ kv_scale,
              const int* __restrict__ control, const e4m3_t*, const e4m3_t*, e4m3_t* tail_k_out, e4m3_t* tail_v_out,
              io_t* __restrict__ q_rotated) {
  const int lane = threadIdx.x % 32, row = blockIdx.y, at = (blockIdx.x * THREADS + threadIdx.x) / 32;
  const int64_t node = control[2] + row;
  if (row >= control[1] || node >= TAIL || at >= HEADS + 2 * KV_HEADS) return;
  const bool is_query = at < HEADS, is_value = at >= HEADS + KV_HEADS;
  const int head = is_query ? at : (at - HEADS) % KV_HEADS;
  const io_t* heads = is_query ? q + (int64_t)row * HEADS * HEAD_DIM : (is_value ? v : k) + row * KV_HEADS * HEAD_DIM;
  float x[PER_LANE];
  load_io<PER_LANE>(x, heads + head * HEAD_DIM + lane * PER_LANE);
  if (!is_value) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) squares += x[i] * x[i];
    const float factor = rsqrtf(warp_sum(squares) * (1.f / HEAD_DIM) + RMS_EPS);
    const Slice<float> norm = *(const Slice<float>*)((is_query ? q_norm : k_norm) + lane * PER_LANE);
    const bool turned = lane < 2 * HALF_LANES, upper = lane >= HALF_LANES;
    const int angle = position_ids[row] * (ROTARY / 2) + lane % HALF_LANES * PER_LANE;
    Slice<float> c = {}, s = {};
    if (turned) c = *(const Slice<float>*)(cos + angle), s = *(const Slice<float>*)(sin + angle);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      x[i] *= factor * norm.of[i];
      const float other = __shfl_sync(~0u, x[i], upper ? lane - HALF_LANES : lane + HALF_LANES);
      if (turned) x[i] = x[i] * c.of[i] + (upper ? other : -other) * s.of[i];
    }
  }
  if (is_query) {
    store_io<PER_LANE>(q_rotated + ((int64_t)row * HEADS + head) * HEAD_DIM + lane * PER_LANE, x);
  } else {
    Slice<e4m3_t> made;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) made.of[i] = {float_e4m3(x[i] / kv_scale[is_value])};
    e4m3_t* tail = is_value ? tail_v_out : tail_k_out;
    *(Slice<e4m3_t>*)&tail[(node * KV_HEADS + head) * HEAD_DIM + lane * PER_LANE] = made;
  }
}
EXPORT(attn_prep)
