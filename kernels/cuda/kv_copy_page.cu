// Copies one page of the cache to another, in all layers: before a slot writes into a page that others read.
#include "common.cuh"

// copy: source, target, pages of a layer. Block (part of the page, layer); one thread per 16 bytes of keys and of the values beside them.
KERNEL __launch_bounds__(THREADS)
    kv_copy_page(const int* __restrict__ copy, const e4m3_t* k_pages, const e4m3_t* v_pages,
                 e4m3_t* k_pages_out, e4m3_t* v_pages_out) {
  const int64_t bytes = (int64_t)PAGE * TOKEN_STRIDE, byte = (int64_t)(blockIdx.x * THREADS + threadIdx.x) * 16;
  if (byte >= bytes) return;
  const int64_t layer = (int64_t)blockIdx.y * copy[2];
  const int64_t from = (layer + copy[0]) * bytes + byte, to = (layer + copy[1]) * bytes + byte;
  *(uint4*)(k_pages_out + to) = *(const uint4*)(k_pages + from);
  *(uint4*)(v_pages_out + to) = *(const uint4*)(v_pages + from);
}
EXPORT(kv_copy_page)
