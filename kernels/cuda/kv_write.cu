// Appends the FP8 rows of a prompt's chunk to the pages of one layer.
#include "common.cuh"

// One thread per 16 bytes of a key row and of the value row beside it. Row i becomes token context + i.
KERNEL __launch_bounds__(THREADS)
    kv_write(const e4m3_t* __restrict__ new_k, const e4m3_t* __restrict__ new_v, const int* __restrict__ page_table,
             const int* __restrict__ control, const e4m3_t*, const e4m3_t*, e4m3_t* k_pages_out, e4m3_t* v_pages_out) {
  const int at = blockIdx.x * THREADS + threadIdx.x, row = at / (TOKEN_STRIDE / 16);
  if (row >= control[1] || row >= TAIL) return;
  const int token = control[0] + row, byte = at % (TOKEN_STRIDE / 16) * 16;
  const int64_t to = ((int64_t)page_table[token / PAGE] * PAGE + token % PAGE) * TOKEN_STRIDE + byte;
  *(uint4*)(k_pages_out + to) = *(const uint4*)(new_k + row * TOKEN_STRIDE + byte);
  *(uint4*)(v_pages_out + to) = *(const uint4*)(new_v + row * TOKEN_STRIDE + byte);
}
EXPORT(kv_write)
