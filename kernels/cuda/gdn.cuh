// What the Gated DeltaNet kernels share: the part of the state that a block keeps, and the commit of accepted nodes.
//
// Needs KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV_KERNEL, CHANNELS and, for the state, TILE_ROWS and CAPSULE.
// A capsule is what a step leaves of its nodes: keys, updates u and totals G of the log decays on their paths, and the
// raw rows of the convolution. Nodes off the accepted path may hold anything and are not read.
#pragma once
#include "common.cuh"

constexpr int HEADS_PER_KEY = VALUE_HEADS / KEY_HEADS, HISTORY = CONV_KERNEL - 1;

// The number of the set bit that has `count` set bits below it.
__device__ __forceinline__ int accepted_node(uint32_t mask, int count) {
  for (; count; --count) mask &= mask - 1;
  return __ffs((int)mask) - 1;
}

// Row `row` of what the convolution remembers once the nodes of `mask` are committed: [state; accepted nodes] without
// its first __popc(mask) rows. Pointers are to the first channel that is wanted, rows are CHANNELS apart.
__device__ __forceinline__ const io_t* committed_row(const io_t* state, const io_t* nodes, uint32_t mask, int row) {
  const int from = row + __popc(mask);
  return from < HISTORY ? state + (int64_t)from * CHANNELS
                        : nodes + (int64_t)accepted_node(mask, from - HISTORY) * CHANNELS;
}

// Makes `row(r)` row r of what the convolution remembers. A thread has 8 channels, the first of them 8 `octet`, and
// those `stride` octets on. It has read all rows of a channel when it writes one: rows may be the state's own (and then
// no pointer behind them __restrict__, which would make all of them read-only to the compiler).
template <class Row> __device__ __forceinline__ void move_history(const Row& row, io_t* state, int octet, int stride) {
  for (; octet < CHANNELS / 8; octet += stride) {
    float x[HISTORY][8];
#pragma unroll
    for (int r = 0; r < HISTORY; ++r) load_io<8>(x[r], row(r) + 8 * octet);
#pragma unroll
    for (int r = 0; r < HISTORY; ++r) store_io<8>(state + r * CHANNELS + 8 * octet, x[r]);
  }
}

#ifdef TILE_ROWS
// A block keeps TILE_COLUMNS columns of a head's state in registers: a thread four of them in TILE_ROWS rows, eight
// threads side by side, so that a warp moves four rows of 128 bytes with one access.
constexpr int TILE_COLUMNS = 32, TILES = VALUE_DIM / TILE_COLUMNS, THREADS = 8 * KEY_DIM / TILE_ROWS;
constexpr int WARPS = THREADS / 32;
constexpr int BATCH = CAPSULE < 16 ? CAPSULE : 16;  // accepted nodes in shared memory at a time

struct alignas(16) CommitBuffers {
  float k[BATCH][KEY_DIM + 4];
  float u[BATCH][TILE_COLUMNS];
};

__device__ __forceinline__ void add_product(float4& sum, float a, const float4& b) {
  sum.x += a * b.x, sum.y += a * b.y, sum.z += a * b.z, sum.w += a * b.w;
}
__device__ __forceinline__ int tile_row() { return threadIdx.x / 8 * TILE_ROWS; }
__device__ __forceinline__ int tile_column() { return threadIdx.x % 8 * 4; }

// `state` is the head's, `first` the block's first column.
__device__ __forceinline__ void load_tile(float4* tile, const float* state, int first) {
#pragma unroll
  for (int r = 0; r < TILE_ROWS; ++r)
    tile[r] = *(const float4*)(state + (tile_row() + r) * VALUE_DIM + first + tile_column());
}
__device__ __forceinline__ void store_tile(float* state, const float4* tile, int first) {
#pragma unroll
  for (int r = 0; r < TILE_ROWS; ++r)
    *(float4*)(state + (tile_row() + r) * VALUE_DIM + first + tile_column()) = tile[r];
}

// S = e^G S + sum of e^(G - G_j) k_j u_j^T over the accepted nodes j; G is the last one's. Ends at a barrier.
__device__ __forceinline__ void commit_tile(float4* tile, uint32_t mask, int last, const io_t* cap_k,
                                            const float* cap_u, const float* cap_g, int head, int first,
                                            CommitBuffers& buffers) {
  const float total = cap_g[last * VALUE_HEADS + head], grown = __expf(total);
#pragma unroll
  for (int r = 0; r < TILE_ROWS; ++r)
    tile[r].x *= grown, tile[r].y *= grown, tile[r].z *= grown, tile[r].w *= grown;
  for (int nodes = __popc(mask); nodes > 0; nodes -= BATCH) {
    const int batch = min(nodes, BATCH);
    for (int i = threadIdx.x; i < batch * (KEY_DIM / 8); i += THREADS) {
      const int n = i / (KEY_DIM / 8), d = i % (KEY_DIM / 8) * 8, node = accepted_node(mask, n);
      const float weight = __expf(total - cap_g[node * VALUE_HEADS + head]);
      float k[8];
      load_io<8>(k, cap_k + (node * KEY_HEADS + head / HEADS_PER_KEY) * KEY_DIM + d);
      *(float4*)&buffers.k[n][d] = make_float4(weight * k[0], weight * k[1], weight * k[2], weight * k[3]);
      *(float4*)&buffers.k[n][d + 4] = make_float4(weight * k[4], weight * k[5], weight * k[6], weight * k[7]);
    }
    for (int i = threadIdx.x; i < batch * 8; i += THREADS)
      *(float4*)&buffers.u[i / 8][i % 8 * 4] =
          *(const float4*)(cap_u + (accepted_node(mask, i / 8) * VALUE_HEADS + head) * VALUE_DIM + first + i % 8 * 4);
    __syncthreads();
    for (int n = 0; n < batch; ++n) {
      const float4 u = *(const float4*)&buffers.u[n][tile_column()];
#pragma unroll
      for (int r = 0; r < TILE_ROWS; r += 4) {
        const float4 k = *(const float4*)&buffers.k[n][tile_row() + r];
        add_product(tile[r], k.x, u);
        add_product(tile[r + 1], k.y, u);
        add_product(tile[r + 2], k.z, u);
        add_product(tile[r + 3], k.w, u);
      }
    }
    __syncthreads();
    for (int n = 0; n < batch; ++n) mask &= mask - 1;
  }
}
#endif
