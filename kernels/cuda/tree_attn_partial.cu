// Attention of the rows of a tree to a part of the context and the draft rows.
#include "attn_tile.cuh"

// Block (KV head, split, group of 16 WARPS query rows). The tiles of the context, then those of the draft rows in the
// tail, are divided among the splits. part_o: sums of weight * value; part_ml: highest score (log2), sum of weights.
KERNEL __launch_bounds__(THREADS, 1)
    tree_attn_partial(const io_t* __restrict__ q, const e4m3_t* __restrict__ k_pages,
                      const e4m3_t* __restrict__ v_pages, const int* __restrict__ page_table,
                      const int* __restrict__ control, const e4m3_t* __restrict__ tail_k,
                      const e4m3_t* __restrict__ tail_v, const int* __restrict__ ancestors,
                      const float* __restrict__ kv_scale, float* __restrict__ part_o, float* __restrict__ part_ml) {
  __shared__ Tile tiles[2];
  const int lane = threadIdx.x % 32, head = blockIdx.x, split = blockIdx.y;
  const int context = control[0], count = control[1], start = control[2], skipped = control[3];
  const int used = min(start + count, TAIL), end = count * GROUP;  // draft rows; query rows that mean something
  const int warp_row = (blockIdx.z * WARPS + threadIdx.x / 32) * 16;
  Rows rows;
  start_rows(rows, q, head, warp_row, end);
  const int context_tiles = (context + TOKENS - 1) / TOKENS, all = context_tiles + (used + TOKENS - 1) / TOKENS;
  const int share = (all + SPLITS - 1) / SPLITS, first = min(split * share, all), last = min(first + share, all);
  const float scale = SCORE_SCALE * kv_scale[0];
  auto get = [&](int i, int buffer) {
    const bool drafts = i >= context_tiles;
    const int token = (drafts ? i - context_tiles : i) * TOKENS;
    const int64_t at = drafts ? token : (int64_t)page_table[token / PAGE] * PAGE + token % PAGE;
    const int64_t offset = at * TOKEN_STRIDE + head * HEAD_DIM;
    fetch(tiles[buffer], (drafts ? tail_k : k_pages) + offset, (drafts ? tail_v : v_pages) + offset,
          drafts ? 0 : skipped - token, (drafts ? used : context) - token);
  };
  walk(first, last, get, [&](int i, int buffer) {
    if (warp_row >= end) return;
    const int word = i - context_tiles;
    uint32_t seen[2];
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane / 4 + 8 * half;
      seen[half] = low_bits(word < 0 ? context - i * TOKENS : used - word * TOKENS);
      if (word >= 0) seen[half] &= row < end ? ancestors[(start + row / GROUP) * WORDS + word] : 0;
      else seen[half] &= ~low_bits(skipped - i * TOKENS);
    }
    attend(rows, tiles[buffer], seen, scale);
  });
  for (int half = 0; half < 2; ++half) {
    const float total = row_total(rows, half);
    const int row = warp_row + lane / 4 + 8 * half;
    if (row >= end) continue;
    const int64_t at = (int64_t)(split * KV_HEADS + head) * (ROWS * GROUP) + row;
    if (lane % 4 == 0) *(float2*)&part_ml[at * 2] = make_float2(rows.highest[half], total);
    if (first == last) continue;  // tree_attn_reduce reads no sums of a split that has no tokens
#pragma unroll
    for (int g = 0; g < HEAD_DIM / 16; ++g)
      *(float4*)&part_o[at * HEAD_DIM + g * 16 + lane % 4 * 4] = row_columns(rows, g, half, kv_scale[1]);
  }
}
EXPORT(tree_attn_partial)
