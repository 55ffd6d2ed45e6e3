// A prefill chunk's raw rows to queries, keys, values, decays and rates. The state is read only: gdn_prefill, which
// has the rows too, moves it on.
#include "gdn_prep.cuh"

// Blocks along y take BLOCK_ROWS rows each. A row is read by the CONV_KERNEL rows that see it, from L1 but for once.
KERNEL __launch_bounds__(THREADS)
    gdn_prep_chain(const io_t* __restrict__ qkv, const io_t* __restrict__ a, const io_t* __restrict__ b,
                   const float* __restrict__ taps, const float* __restrict__ decay, const float* __restrict__ dt_bias,
                   const io_t* __restrict__ conv_state, const int* __restrict__ control, io_t* __restrict__ q,
                   io_t* __restrict__ k, io_t* __restrict__ v, float* __restrict__ log_decay,
                   float* __restrict__ beta) {
  const Place p = find_place();
  const int start = blockIdx.y * BLOCK_ROWS, end = min(control[1], start + BLOCK_ROWS);
  for (int first = start; first < end; first += p.rows) {
    const int row = first + p.row;
    const bool real = row < end;
    float x[8];
    if (real) {
      const io_t* rows[CONV_KERNEL];
#pragma unroll
      for (int j = 0; j < CONV_KERNEL; ++j) {
        const int from = row - HISTORY + j;
        rows[j] = (from >= 0 ? qkv + (int64_t)from * CHANNELS : conv_state + (int64_t)(HISTORY + from) * CHANNELS) +
                  p.channel;
      }
      convolve(x, rows, taps + p.channel);
    }
    store_head(x, p, row, real, q, k, v);
  }
  if (p.value) store_gates(p.head, start, end, a, b, decay, dt_bias, log_decay, beta);
}
EXPORT(gdn_prep_chain)
