// A tree's raw rows to queries, keys, values, decays and rates; commits the accepted nodes' rows of the step before.
#include "gdn_prep.cuh"

// A block owns its channels of convolution state and capsule: it reads the old rows, and writes after a barrier.
KERNEL __launch_bounds__(THREADS)
    gdn_prep(const io_t* __restrict__ qkv, const io_t* __restrict__ a, const io_t* __restrict__ b,
             const float* __restrict__ taps, const float* __restrict__ decay, const float* __restrict__ dt_bias,
             const int* __restrict__ parents, const int* __restrict__ accepted, const int* __restrict__ control,
             const io_t* conv_state, const io_t* cap_c, io_t* conv_state_out, io_t* cap_c_out, io_t* __restrict__ q,
             io_t* __restrict__ k, io_t* __restrict__ v, float* __restrict__ log_decay, float* __restrict__ beta) {
  __shared__ __align__(16) io_t history[HISTORY][WIDEST];
  const Place p = find_place();
  const uint32_t mask = (uint32_t)accepted[0];
  const int count = control[1];
  float x[8];
  for (int r = p.row; r < HISTORY; r += p.rows) {
    load_io<8>(x, committed_row(conv_state + p.channel, cap_c + p.channel, mask, r));
    store_io<8>(&history[r][8 * p.lane], x);
  }
  __syncthreads();
  if (mask)
    for (int r = p.row; r < HISTORY; r += p.rows) {
      load_io<8>(x, &history[r][8 * p.lane]);
      store_io<8>(conv_state_out + (int64_t)r * CHANNELS + p.channel, x);
    }
  for (int first = 0; first < count; first += p.rows) {
    const int row = first + p.row;
    const bool real = row < count;
    if (real) {
      const io_t* rows[CONV_KERNEL];
      int node = row;  // below zero: -1 is the newest row of the state
#pragma unroll
      for (int j = CONV_KERNEL - 1; j >= 0; --j) {
        rows[j] = node >= 0 ? qkv + (int64_t)node * CHANNELS + p.channel : &history[HISTORY + node][8 * p.lane];
        node = node >= 0 ? parents[node] : node - 1;
      }
      load_io<8>(x, rows[CONV_KERNEL - 1]);
      store_io<8>(cap_c_out + (int64_t)row * CHANNELS + p.channel, x);
      convolve(x, rows, taps + p.channel);
    }
    store_head(x, p, row, real, q, k, v);
  }
  if (p.value) store_gates(p.head, 0, count, a, b, decay, dt_bias, log_decay, beta);
}
EXPORT(gdn_prep)
