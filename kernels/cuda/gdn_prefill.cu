// The gated delta rule over a chain of tokens, CHUNK at a time, on tensor cores.
//
// Per chunk the equations of gdn_tree_verify; I + L is inverted in blocks of 16 by forward substitution, and U follows
// block by block. A warp has 16 columns of a head and keeps their state transposed in registers, as f32 in the layout
// of mma's results. That layout is the one of mma's first operand, so everything is done transposed and no product goes
// through shared memory: (K S)^T = S^T K^T, Y^T = S^T Q^T + U^T A^T, S^T += U^T K (decays apart), and so on. Warps
// share the chunk's K, Q, inverses and A. f32 operands are split into two f16 numbers, 22 bits; products of both low
// parts are left out. Keys and queries of 16-bit activations are one f16 number. States and updates must stay below
// 65504.
#include "gdn.cuh"

constexpr int CHUNK = 32, BLOCK = 16, BLOCKS = CHUNK / BLOCK, THREADS = 32 * WARPS;
constexpr int COLUMNS = 16 * WARPS, GROUPS = VALUE_DIM / COLUMNS;  // columns of a block, blocks of a head
#ifdef IO_F32
constexpr int TERMS = 2;  // f16 numbers that a key is split into
#else
constexpr int TERMS = 1;
#endif

// Rows are 16 bytes longer than a multiple of 128, or 80 bytes: ldmatrix reads eight of them without conflicts.
struct alignas(16) Chunk {
  uint16_t k[TERMS][CHUNK][KEY_DIM + 8], q[TERMS][CHUNK][KEY_DIM + 8];
  uint16_t solve[2][CHUNK][CHUNK + 8];      // high and low parts; diagonal blocks: (I + L)^-1, below: -L
  uint16_t attention[2][CHUNK][CHUNK + 8];  // A
  float below[BLOCKS][BLOCK][BLOCK + 4];    // [j][i]: L_ij of the diagonal blocks
  float coarse[CHUNK], fine[CHUNK];         // their sum is G, see `load_decays`
  float grown[CHUNK], left[CHUNK];          // e^G_i, e^(G_last - G_i)
  float beta[CHUNK];
};

// Two values as f16 pairs whose sum is the values.
__device__ __forceinline__ void split(uint32_t& high, uint32_t& low, float a, float b) {
  high = pack_f16(a, b);
  low = pack_f16(a - f16_float((uint16_t)high), b - f16_float((uint16_t)(high >> 16)));
}

// mma's first operand, high and low parts, from results of it: 16 rows and the columns of two neighbours.
__device__ __forceinline__ void split_operand(uint32_t (*parts)[4], const float* left, const float* right) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* from = (i < 2 ? left : right) + i % 2 * 2;
    split(parts[0][i], parts[1][i], from[0], from[1]);
  }
}

// c += a b for 16 x 16 results (two neighbours), a in A parts and b in B, `low` elements from each other. Where b is
// read transposed, `b` is the lane's address by `lane_rows`, else by `lane_columns`.
template <int A, int B, bool TRANSPOSED>
__device__ __forceinline__ void multiply(float (*c)[4], const uint32_t (*a)[4], const uint16_t* b, int low) {
#pragma unroll
  for (int j = 0; j < B; ++j) {
    uint32_t part[4];
    TRANSPOSED ? load_matrix_x4_trans(part, b + j * low) : load_matrix_x4(part, b + j * low);
#pragma unroll
    for (int i = 0; i < A && i + j < 2; ++i) {
      mma_f16(c[0], a[i], part);
      mma_f16(c[1], a[i], part + 2);
    }
  }
}

// Where a lane points in a matrix with rows of `line`, for ldmatrix x4 of 16 x 16 elements at its beginning: quarters
// down, then right; or right, then down.
__device__ __forceinline__ int lane_rows(int line) { return threadIdx.x % 16 * line + threadIdx.x % 32 / 16 * 8; }
__device__ __forceinline__ int lane_columns(int line) {
  return (threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8) * line + threadIdx.x / 8 % 2 * 8;
}

constexpr int KEY_LINE = KEY_DIM + 8, KEY_PART = CHUNK * KEY_LINE;
constexpr int PAIR_LINE = CHUNK + 8, PAIR_PART = CHUNK * PAIR_LINE;

// Rows first … first + CHUNK - 1 of keys or queries; zeros from `count` on.
__device__ __forceinline__ void load_heads(uint16_t* to, const io_t* from, int head, int first, int count) {
  for (int i = threadIdx.x; i < CHUNK * (KEY_DIM / 8); i += THREADS) {
    const int t = i / (KEY_DIM / 8), d = i % (KEY_DIM / 8) * 8;
    float x[8] = {};
    if (first + t < count) load_io<8>(x, from + ((int64_t)(first + t) * KEY_HEADS + head) * KEY_DIM + d);
    uint32_t parts[2][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) split(parts[0][e], parts[1][e], x[2 * e], x[2 * e + 1]);
#pragma unroll
    for (int j = 0; j < TERMS; ++j)
      *(uint4*)(to + j * KEY_PART + t * KEY_LINE + d) = {parts[j][0], parts[j][1], parts[j][2], parts[j][3]};
  }
}

// Totals of log decays, by one warp. Multiples of 1/256 and what remains are summed apart: the former exactly, so that
// differences of large totals are as exact as those of small ones. Rows that mean nothing neither decay nor write.
__device__ __forceinline__ void load_decays(Chunk& chunk, const float* log_decay, const float* beta, int head,
                                            int first, int count) {
  const int t = threadIdx.x;
  const int64_t at = (int64_t)(first + t) * VALUE_HEADS + head;
  const float own = first + t < count ? fmaxf(log_decay[at], -1000.f) : 0.f;
  float coarse = rintf(own * 256.f) / 256.f, fine = own - coarse;
#pragma unroll
  for (int step = 1; step < CHUNK; step *= 2) {
    const float before = __shfl_sync(~0u, coarse, t - step), rest = __shfl_sync(~0u, fine, t - step);
    if (t >= step) coarse += before, fine += rest;
  }
  chunk.coarse[t] = coarse, chunk.fine[t] = fine;
  chunk.grown[t] = __expf(coarse + fine);
  chunk.left[t] = __expf(__shfl_sync(~0u, coarse, CHUNK - 1) - coarse + (__shfl_sync(~0u, fine, CHUNK - 1) - fine));
  chunk.beta[t] = first + t < count ? beta[at] : 0.f;
}

// L and A from K and Q: six blocks of 16 x 16, three of K K^T and three of Q K^T, shared out to the warps.
__device__ __forceinline__ void couple(Chunk& chunk) {
  const int lane = threadIdx.x % 32;
  for (int task = threadIdx.x / 32; task < 6; task += WARPS) {
    const bool query = task % 2;
    const int down = task / 2 ? BLOCK : 0, right = task / 2 == 2 ? BLOCK : 0;
    const uint16_t* rows = (query ? chunk.q[0][down] : chunk.k[0][down]) + lane_rows(KEY_LINE);
    const uint16_t* columns = chunk.k[0][right] + lane_columns(KEY_LINE);
    float c[2][4] = {};
#pragma unroll 4
    for (int d = 0; d < KEY_DIM; d += 16) {
      uint32_t a[TERMS][4];
#pragma unroll
      for (int j = 0; j < TERMS; ++j) load_matrix_x4(a[j], rows + j * KEY_PART + d);
      multiply<TERMS, TERMS, false>(c, a, columns + d, KEY_PART);
    }
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const int i = down + lane / 4 + e % 4 / 2 * 8, j = right + e / 4 * 8 + lane % 4 * 2;
      float kept[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const bool seen = query ? i >= j + n : i > j + n;
        const float decay = chunk.coarse[i] - chunk.coarse[j + n] + (chunk.fine[i] - chunk.fine[j + n]);
        kept[n] = seen ? __expf(decay) * c[e / 4][e % 4 + n] : 0.f;
        if (!query) kept[n] *= chunk.beta[i];
        if (!query && down == right) chunk.below[down / BLOCK][(j + n) % BLOCK][i % BLOCK] = kept[n];
      }
      if (query)
        split(*(uint32_t*)&chunk.attention[0][i][j], *(uint32_t*)&chunk.attention[1][i][j], kept[0], kept[1]);
      else if (down != right)
        split(*(uint32_t*)&chunk.solve[0][i][j], *(uint32_t*)&chunk.solve[1][i][j], -kept[0], -kept[1]);
    }
  }
}

// Inverses of the diagonal blocks of I + L, by one warp: a lane substitutes forward for one column.
__device__ __forceinline__ void invert(Chunk& chunk) {
  const int block = threadIdx.x / BLOCK, column = threadIdx.x % BLOCK;
  float x[BLOCK];
#pragma unroll
  for (int i = 0; i < BLOCK; ++i) x[i] = i == column ? 1.f : 0.f;
#pragma unroll
  for (int j = 0; j < BLOCK - 1; ++j)
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < BLOCK; i += 4) {
      const float4 below = *(const float4*)&chunk.below[block][j][i];
      x[i] -= below.x * x[j], x[i + 1] -= below.y * x[j], x[i + 2] -= below.z * x[j], x[i + 3] -= below.w * x[j];
    }
#pragma unroll
  for (int i = 0; i < BLOCK; ++i) {
    const uint16_t high = float_f16(x[i]);
    chunk.solve[0][block * BLOCK + i][block * BLOCK + column] = high;
    chunk.solve[1][block * BLOCK + i][block * BLOCK + column] = float_f16(x[i] - f16_float(high));
  }
}

// Rows 0 … 15 of what a warp keeps are columns 2 (lane / 4) (rows 0 … 7) and 2 (lane / 4) + 1 (rows 8 … 15) of its 16:
// so a lane moves neighbouring columns. Columns are state rows, or tokens: 2 (lane % 4) and + 1 of each eight.
KERNEL __launch_bounds__(THREADS)
    gdn_prefill(const io_t* __restrict__ q, const io_t* __restrict__ k, const io_t* __restrict__ v,
                const float* __restrict__ log_decay, const float* __restrict__ beta, const io_t* qkv,
                const int* __restrict__ control, const float* state, const io_t* conv_state, float* state_out,
                io_t* conv_state_out, io_t* __restrict__ y) {
  __shared__ Chunk chunk;
  const int count = control[1], lane = threadIdx.x % 32, across = lane % 4 * 2;
  const int head = blockIdx.x / GROUPS, key_head = head / HEADS_PER_KEY;
  const int column = blockIdx.x % GROUPS * COLUMNS + threadIdx.x / 32 * 16 + lane / 4 * 2;
  const int64_t plane = (int64_t)head * KEY_DIM * VALUE_DIM + column;
  float s[KEY_DIM / 8][4];
#pragma unroll
  for (int i = 0; i < KEY_DIM / 4; ++i) {
    const float2 pair = *(const float2*)(state + plane + (i / 2 * 8 + across + i % 2) * VALUE_DIM);
    s[i / 2][i % 2] = pair.x, s[i / 2][i % 2 + 2] = pair.y;
  }
  for (int first = 0; first < count; first += CHUNK) {
    load_heads(chunk.k[0][0], k, key_head, first, count);
    load_heads(chunk.q[0][0], q, key_head, first, count);
    if (threadIdx.x < 32) load_decays(chunk, log_decay, beta, head, first, count);
    __syncthreads();
    couple(chunk);
    __syncthreads();
    if (threadIdx.x < 32) invert(chunk);
    float value[CHUNK / 8][4] = {}, known[CHUNK / 8][4] = {}, out[CHUNK / 8][4] = {};
#pragma unroll
    for (int i = 0; i < CHUNK / 4; ++i) {
      const int token = first + i / 2 * 8 + across + i % 2;
      float pair[2] = {0.f, 0.f};
      if (token < count) load_io<2>(pair, v + ((int64_t)token * VALUE_HEADS + head) * VALUE_DIM + column);
      value[i / 2][i % 2] = pair[0], value[i / 2][i % 2 + 2] = pair[1];
    }
    uint32_t operand[2][4];
#pragma unroll
    for (int d = 0; d < KEY_DIM; d += 16) {
      split_operand(operand, s[d / 8], s[d / 8 + 1]);
#pragma unroll
      for (int t = 0; t < CHUNK; t += 16) {
        multiply<2, TERMS, false>(known + t / 8, operand, chunk.k[0][t] + lane_columns(KEY_LINE) + d, KEY_PART);
        multiply<2, TERMS, false>(out + t / 8, operand, chunk.q[0][t] + lane_columns(KEY_LINE) + d, KEY_PART);
      }
    }
    float u[CHUNK / 8][4] = {};  // first the right side beta (V - e^G K S)^T
#pragma unroll
    for (int i = 0; i < CHUNK / 2; ++i) {
      const int t = i / 4 * 8 + across + i % 2;
      u[i / 4][i % 4] = chunk.beta[t] * (value[i / 4][i % 4] - chunk.grown[t] * known[i / 4][i % 4]);
      out[i / 4][i % 4] *= chunk.grown[t];
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < CHUNK; t += BLOCK) {
      float solved[2][4] = {};
      split_operand(operand, u[t / 8], u[t / 8 + 1]);
      multiply<2, 2, false>(solved, operand, &chunk.solve[0][t][t] + lane_columns(PAIR_LINE), PAIR_PART);
#pragma unroll
      for (int e = 0; e < 8; ++e) u[t / 8 + e / 4][e % 4] = solved[e / 4][e % 4];
      split_operand(operand, solved[0], solved[1]);
#pragma unroll
      for (int below = t; below < CHUNK; below += BLOCK) {
        if (below > t)
          multiply<2, 2, false>(u + below / 8, operand, &chunk.solve[0][below][t] + lane_columns(PAIR_LINE), PAIR_PART);
        multiply<2, 2, false>(out + below / 8, operand, &chunk.attention[0][below][t] + lane_columns(PAIR_LINE),
                              PAIR_PART);
      }
    }
    const float scale = rsqrtf((float)KEY_DIM), kept = chunk.grown[CHUNK - 1];
#pragma unroll
    for (int i = 0; i < CHUNK / 4; ++i) {
      const int t = i / 2 * 8 + across + i % 2;
      const float pair[2] = {scale * out[i / 2][i % 2], scale * out[i / 2][i % 2 + 2]};
      if (first + t < count) store_io<2>(y + ((int64_t)(first + t) * VALUE_HEADS + head) * VALUE_DIM + column, pair);
      u[i / 2][i % 2] *= chunk.left[t], u[i / 2][i % 2 + 2] *= chunk.left[t];
    }
#pragma unroll
    for (int i = 0; i < KEY_DIM / 2; ++i) s[i / 4][i % 4] *= kept;
#pragma unroll
    for (int t = 0; t < CHUNK; t += 16) {
      split_operand(operand, u[t / 8], u[t / 8 + 1]);
#pragma unroll
      for (int d = 0; d < KEY_DIM; d += 16)
        multiply<2, TERMS, true>(s + d / 8, operand, chunk.k[0][t] + lane_rows(KEY_LINE) + d, KEY_PART);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < KEY_DIM / 4; ++i)
    *(float2*)(state_out + plane + (i / 2 * 8 + across + i % 2) * VALUE_DIM) =
        make_float2(s[i / 2][i % 2], s[i / 2][i % 2 + 2]);
  move_history(
      [=](int row) {
        const int from = row + count;
        return from < HISTORY ? conv_state + from * CHANNELS : qkv + (int64_t)(from - HISTORY) * CHANNELS;
      },
      conv_state_out, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}
EXPORT(gdn_prefill)
