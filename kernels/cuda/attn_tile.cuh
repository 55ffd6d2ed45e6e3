// Attention of query rows to tiles of 32 tokens: what tree_attn_partial and attn_prefill have in common.
//
// Needs HEADS, KV_HEADS, HEAD_DIM, WARPS (of a block) and SCORE_SCALE (log2 e / sqrt HEAD_DIM). A block serves one KV
// head, each warp 16 query rows: row = step row * GROUP + query head of the group. Queries and results stay in
// registers. Tiles of keys and values are copied in FP8, one ahead, and widened to f16 on the way to the tensor cores:
// every warp reads whole tiles for its 16 rows, and f16 tiles would be twice as many bytes.
#pragma once
#include "common.cuh"

constexpr int GROUP = HEADS / KV_HEADS, THREADS = WARPS * 32, TOKENS = 32, TOKEN_STRIDE = KV_HEADS * HEAD_DIM;
constexpr float NOTHING_SEEN = -1e30f;  // the highest score of a row that has seen no token

// Strides are chosen so that the reads of `attend` (8 bytes of four tokens, 8 tokens of ldmatrix) hit all banks once.
struct alignas(16) Tile {
  e4m3_t k[TOKENS][HEAD_DIM + 32], v[TOKENS][HEAD_DIM + 16];
};

// What one lane knows of its warp's rows lane / 4 and lane / 4 + 8.
struct Rows {
  uint32_t query[HEAD_DIM / 16][4];  // f16 pairs of mma's first operand
  float out[HEAD_DIM / 8][4];        // sums of weight * value code; pairs [2i], [2i + 1]: even, odd columns of 16
  float highest[2], total[2];        // score in log2 units, sum of weights; `total` of this lane's tokens only
};

// The lowest `count` bits, count of any size.
__device__ __forceinline__ uint32_t low_bits(int count) {
  return count >= 32 ? ~0u : count <= 0 ? 0u : (1u << count) - 1u;
}

// Rows first + lane / 4 and + 8 of head `head`, nothing seen yet; rows from `end` on are zeros. In each 32 values lane
// % 4 takes 8 consecutive ones, as `attend` does of keys: a product does not mind the order of its terms.
__device__ __forceinline__ void start_rows(Rows& rows, const io_t* q, int head, int first, int end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + 8 * half;
    const io_t* from = q + ((int64_t)(row / GROUP) * HEADS + head * GROUP + row % GROUP) * HEAD_DIM + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; ++i) {
      float x[8] = {};
      if (row < end) load_io<8>(x, from + i * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) rows.query[2 * i + e / 2][half + e % 2 * 2] = pack_f16(x[2 * e], x[2 * e + 1]);
    }
    rows.highest[half] = NOTHING_SEEN, rows.total[half] = 0.f;
  }
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8; ++i) rows.out[i][0] = rows.out[i][1] = rows.out[i][2] = rows.out[i][3] = 0.f;
}

// Starts copying the tokens from ... to - 1 at k and v. Values of the rest become zero: they may be NaN, and weight 0
// does not make that 0. Keys of the rest are whatever was there; `attend` drops their scores.
__device__ __forceinline__ void fetch(Tile& tile, const e4m3_t* k, const e4m3_t* v, int from, int to) {
  constexpr int PARTS = HEAD_DIM / 16;
  const int d = threadIdx.x % PARTS * 16;
#pragma unroll 1
  for (int token = threadIdx.x / PARTS; token < TOKENS; token += THREADS / PARTS) {
    if (from <= token && token < to) {
      copy16(&tile.k[token][d], k + token * TOKEN_STRIDE + d);
      copy16(&tile.v[token][d], v + token * TOKEN_STRIDE + d);
    } else {
      *(uint4*)&tile.v[token][d] = uint4{0u, 0u, 0u, 0u};
    }
  }
  copy_commit();
}

// Calls use(i, buffer) for i = first ... last - 1 after fetching tile i into `buffer` by get(i, buffer), one ahead.
template <class Get, class Use>
__device__ __forceinline__ void walk(int first, int last, Get get, Use use) {
  if (first < last) get(first, 0);
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    copy_wait<0>();
    __syncthreads();  // tile i is complete, and nobody uses the other buffer any more
    const int buffer = (i - first) & 1;
    if (i + 1 < last) get(i + 1, buffer ^ 1);
    use(i, buffer);
  }
}

// Adds a tile. Bit t of seen[h] says whether row lane / 4 + 8 h sees token t; scale turns a product into a score.
__device__ __forceinline__ void attend(Rows& rows, const Tile& tile, const uint32_t* seen, float scale) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const float unseen = __uint_as_float(0xFF800000u);  // minus infinity: weight 0 whatever the highest score is
  float score[TOKENS / 8][4];
#pragma unroll
  for (int j = 0; j < TOKENS / 8; ++j) score[j][0] = score[j][1] = score[j][2] = score[j][3] = 0.f;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 32)
#pragma unroll
    for (int j = 0; j < TOKENS / 8; ++j) {
      const uint2 keys = *(const uint2*)&tile.k[j * 8 + lane / 4][d + quad * 8];
      const uint32_t words[2] = {keys.x, keys.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t key[2] = {e4m3x2_f16x2((uint16_t)words[i]), e4m3x2_f16x2((uint16_t)(words[i] >> 16))};
        mma_f16(score[j], rows.query[d / 16 + i], key);
      }
    }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = unseen;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = score[j][2 * half + e];
        x = seen[half] >> (j * 8 + quad * 2 + e) & 1u ? x * scale : unseen;
        highest = fmaxf(highest, x);
      }
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(rows.highest[half], fmaxf(highest, __shfl_xor_sync(~0u, highest, 2)));
    factor[half] = exp2_fast(rows.highest[half] - highest);
    rows.highest[half] = highest;
  }
  uint32_t weights[TOKENS / 16][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.total[half] *= factor[half];
#pragma unroll
    for (int j = 0; j < TOKENS / 8; ++j) {
      const float a = exp2_fast(score[j][2 * half] - rows.highest[half]);
      const float b = exp2_fast(score[j][2 * half + 1] - rows.highest[half]);
      rows.total[half] += a + b;
      weights[j / 2][j % 2 * 2 + half] = pack_f16(a, b);
    }
  }
  if (__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) rows.out[i][e] *= factor[e / 2];
  }
  // ldmatrix moves pairs of bytes: a lane gets two columns of two tokens, sorted into even and odd columns below.
#pragma unroll
  for (int t = 0; t < TOKENS / 16; ++t)
#pragma unroll
    for (int g = 0; g < HEAD_DIM / 16; ++g) {
      uint32_t pairs[2];
      load_matrix_x2_trans(pairs, &tile.v[t * 16 + lane % 16][g * 16]);
      const uint32_t even = permute_bytes(pairs[0], pairs[1], 0x6420);
      const uint32_t odd = permute_bytes(pairs[0], pairs[1], 0x7531);
      const uint32_t values[2][2] = {{e4m3x2_f16x2((uint16_t)even), e4m3x2_f16x2((uint16_t)(even >> 16))},
                                     {e4m3x2_f16x2((uint16_t)odd), e4m3x2_f16x2((uint16_t)(odd >> 16))}};
      mma_f16(rows.out[2 * g], weights[t], values[0]);
      mma_f16(rows.out[2 * g + 1], weights[t], values[1]);
    }
}

// The sum of weights of row lane / 4 + 8 half, in all four lanes that share the row.
__device__ __forceinline__ float row_total(const Rows& rows, int half) {
  const float total = rows.total[half] + __shfl_xor_sync(~0u, rows.total[half], 1);
  return total + __shfl_xor_sync(~0u, total, 2);
}

// Columns 16 g + 4 (lane % 4) ... + 3 of row lane / 4 + 8 half, times `factor`.
__device__ __forceinline__ float4 row_columns(const Rows& rows, int g, int half, float factor) {
  const float *even = rows.out[2 * g] + 2 * half, *odd = rows.out[2 * g + 1] + 2 * half;
  return make_float4(even[0] * factor, odd[0] * factor, even[1] * factor, odd[1] * factor);
}
