// From raw rows to the operands of the delta rule: what gdn_prep and gdn_prep_chain share.
//
// Blocks along x are heads: queries, keys, values. A thread has 8 channels (16 bytes of 16-bit activations), so that a
// head of 128 is 16 neighbouring threads, and the block works on THREADS / 16 rows at once. Needs THREADS besides what
// gdn.cuh needs.
#pragma once
#include "gdn.cuh"

constexpr int WIDEST = KEY_DIM > VALUE_DIM ? KEY_DIM : VALUE_DIM;

// The block's head and the thread's place in it.
struct Place {
  bool value;     // a value head; else a query or key head
  int head;       // of the value heads, or of [query heads; key heads]
  int lane;       // channels 8 lane … 8 lane + 7 of the head
  int row, rows;  // the thread's row among those that the block works on at once
  int channel;    // its first channel among all
};

__device__ __forceinline__ Place find_place() {
  Place p;
  p.value = blockIdx.x >= 2 * KEY_HEADS;
  p.head = p.value ? blockIdx.x - 2 * KEY_HEADS : blockIdx.x;
  const int lanes = (p.value ? VALUE_DIM : KEY_DIM) / 8;
  p.lane = threadIdx.x % lanes;
  p.row = threadIdx.x / lanes;
  p.rows = THREADS / lanes;
  p.channel = (p.value ? 2 * KEY_HEADS * KEY_DIM + p.head * VALUE_DIM : p.head * KEY_DIM) + 8 * p.lane;
  return p;
}

// y = silu(sum over the taps of row * weight); `rows` are the rows under the taps, oldest first, at the thread's
// channels, `taps` the weights of the oldest.
__device__ __forceinline__ void convolve(float* y, const io_t* const* rows, const float* taps) {
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] = 0.f;
#pragma unroll
  for (int j = 0; j < CONV_KERNEL; ++j) {
    float x[8];
    load_io<8>(x, rows[j]);
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
      const float4 weight = *(const float4*)(taps + j * CHANNELS + e);
      y[e] += x[e] * weight.x, y[e + 1] += x[e + 1] * weight.y;
      y[e + 2] += x[e + 2] * weight.z, y[e + 3] += x[e + 3] * weight.w;
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] = __fdividef(y[e], 1.f + __expf(-y[e]));
}

// Stores the thread's channels of row `row`; heads of queries and keys get length 1. All threads of a warp must call
// it, those with `real` store.
__device__ __forceinline__ void store_head(float* y, const Place& p, int row, bool real, io_t* q, io_t* k, io_t* v) {
  if (p.value) {
    if (real) store_io<8>(v + ((int64_t)row * VALUE_HEADS + p.head) * VALUE_DIM + 8 * p.lane, y);
    return;
  }
  float squares = 0.f;
#pragma unroll
  for (int e = 0; e < 8; ++e) squares += y[e] * y[e];
#pragma unroll
  for (int m = KEY_DIM / 16; m; m /= 2) squares += __shfl_xor_sync(~0u, squares, m);
  const float scale = rsqrtf(squares + 1e-6f);
#pragma unroll
  for (int e = 0; e < 8; ++e) y[e] *= scale;
  const bool key = p.head >= KEY_HEADS;
  const int64_t at = ((int64_t)row * KEY_HEADS + p.head - (key ? KEY_HEADS : 0)) * KEY_DIM + 8 * p.lane;
  if (real) store_io<8>((key ? k : q) + at, y);
}

// log_decay = decay * softplus(a + dt_bias) and beta = sigmoid(b) of rows `first` … `end` - 1 of a value head.
__device__ __forceinline__ void store_gates(int head, int first, int end, const io_t* a, const io_t* b,
                                            const float* decay, const float* dt_bias, float* log_decay, float* beta) {
  for (int row = first + threadIdx.x; row < end; row += THREADS) {
    const int at = row * VALUE_HEADS + head;
    const float x = io_float(a[at]) + dt_bias[head];
    log_decay[at] = decay[head] * (fmaxf(x, 0.f) + log1pf(__expf(-fabsf(x))));
    beta[at] = __fdividef(1.f, 1.f + __expf(-io_float(b[at])));
  }
}
