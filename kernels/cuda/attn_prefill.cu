// Causal attention of a chunk of a prompt, whose own keys and values are in the pages already.
#include "attn_tile.cuh"

// Block (group of 16 WARPS query rows, KV head). Blocks that run at the same time read the same tiles, so that these
// come from the L2 cache; late rows, which see most, start first. Tiles that all rows of a warp are too early for are
// skipped.
KERNEL __launch_bounds__(THREADS, 1)
    attn_prefill(const io_t* __restrict__ q, const e4m3_t* __restrict__ k_pages, const e4m3_t* __restrict__ v_pages,
                 const int* __restrict__ page_table, const int* __restrict__ control,
                 const float* __restrict__ kv_scale, io_t* __restrict__ context_out) {
  __shared__ Tile tiles[2];
  const int lane = threadIdx.x % 32, head = blockIdx.y, block_row = (gridDim.x - 1 - blockIdx.x) * (WARPS * 16);
  const int context = control[0], end = control[1] * GROUP;
  if (block_row >= end) return;
  const int warp_row = block_row + threadIdx.x / 32 * 16;
  // Tokens that the last row of the block, and of the warp, sees.
  const int block_sees = context + (min(block_row + WARPS * 16, end) - 1) / GROUP + 1;
  const int warp_sees = warp_row < end ? context + (min(warp_row + 16, end) - 1) / GROUP + 1 : 0;
  Rows rows;
  start_rows(rows, q, head, warp_row, end);
  const float scale = SCORE_SCALE * kv_scale[0];
  auto get = [&](int i, int buffer) {
    const int token = i * TOKENS;
    const int64_t at = (int64_t)page_table[token / PAGE] * PAGE + token % PAGE;
    const int64_t offset = at * TOKEN_STRIDE + head * HEAD_DIM;
    fetch(tiles[buffer], k_pages + offset, v_pages + offset, 0, block_sees - token);
  };
  walk(0, (block_sees + TOKENS - 1) / TOKENS, get, [&](int i, int buffer) {
    if (i * TOKENS >= warp_sees) return;
    uint32_t seen[2];
    for (int half = 0; half < 2; ++half)
      seen[half] = low_bits(context + (warp_row + lane / 4 + 8 * half) / GROUP + 1 - i * TOKENS);
    attend(rows, tiles[buffer], seen, scale);
  });
  for (int half = 0; half < 2; ++half) {
    const float factor = kv_scale[1] / row_total(rows, half);
    const int row = warp_row + lane / 4 + 8 * half;
    if (row >= end) continue;
    io_t* to = context_out + ((int64_t)(row / GROUP) * HEADS + head * GROUP + row % GROUP) * HEAD_DIM + lane % 4 * 4;
#pragma unroll
    for (int g = 0; g < HEAD_DIM / 16; ++g) {
      const float4 x = row_columns(rows, g, half, factor);
      const float columns[4] = {x.x, x.y, x.z, x.w};
      store_io<4>(to + g * 16, columns);
    }
  }
}
EXPORT(attn_prefill)
