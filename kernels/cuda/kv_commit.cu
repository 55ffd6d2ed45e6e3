// Appends the accepted draft rows to the pages, in all layers.
#include "common.cuh"

// Block (part of the draft rows, layer); one thread per 16 bytes of a key row and of the value row beside it. Accepted
// rows become the tokens context, context + 1, ... in ascending order.
KERNEL __launch_bounds__(THREADS)
    kv_commit(const e4m3_t* __restrict__ tail_k, const e4m3_t* __restrict__ tail_v, const int* __restrict__ page_table,
              const int* __restrict__ control, const int* __restrict__ accepted, const e4m3_t*, const e4m3_t*,
              e4m3_t* k_pages_out, e4m3_t* v_pages_out) {
  const int at = blockIdx.x * THREADS + threadIdx.x, row = at / (TOKEN_STRIDE / 16);
  const uint32_t mask = accepted[0];
  if (row >= min(TAIL, 32) || !(mask >> row & 1u)) return;
  const int token = control[0] + __popc(mask & ((1u << row) - 1u)), byte = at % (TOKEN_STRIDE / 16) * 16;
  const int64_t page = (int64_t)blockIdx.y * control[4] + page_table[token / PAGE];
  const int64_t to = (page * PAGE + token % PAGE) * TOKEN_STRIDE + byte;
  const int64_t from = ((int64_t)blockIdx.y * TAIL + row) * TOKEN_STRIDE + byte;
  *(uint4*)(k_pages_out + to) = *(const uint4*)(tail_k + from);
  *(uint4*)(v_pages_out + to) = *(const uint4*)(tail_v + from);
}
EXPORT(kv_commit)
