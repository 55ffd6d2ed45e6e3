// The gated delta rule over a tree of nodes; commits the nodes accepted in the step before first.
//
// With G the total log decay on a node's path (itself included) and j over ancestors of i, S0 the committed state:
//   (I + L) U = beta (V - e^G K S0),  L_ij = beta_i e^(G_i - G_j) k_i.k_j   (j not i)
//   Y = (e^G Q S0 + A U) / sqrt(KEY_DIM),  A_ij = e^(G_i - G_j) q_i.k_j     (j may be i)
// A block has one head and TILE_COLUMNS of its columns, for which it keeps S0 in registers: the state is read once, and
// written once if something was committed. K S0 and Q S0 are summed over a warp's rows by shuffles and over warps
// through shared memory. U comes by forward substitution, a thread per column.
#include "gdn.cuh"

constexpr int PADDED = (ROWS + 3) / 4 * 4;  // nodes, for vectors of four

struct alignas(16) Nodes {
  float k[ROWS][KEY_DIM + 4], q[ROWS][KEY_DIM + 4];  // + 4: rows begin in different banks
  float partial[WARPS][ROWS][TILE_COLUMNS];          // a warp's part of K S0, then of Q S0
  float u[ROWS][TILE_COLUMNS];
  float below[ROWS][PADDED];  // [j][i]: L_ij, 0 unless j is an ancestor of i
  float attention[ROWS][ROWS];
  float total[ROWS], beta[ROWS];
  uint32_t ancestors[ROWS];
};

// Each warp's part of x S0 for all nodes. A lane ends with the sum of one column over the rows of the warp.
__device__ __forceinline__ void project(const float (*x)[KEY_DIM + 4], const float4* tile, Nodes& nodes) {
  const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
  const int column = tile_column() + (upper ? 2 : 0) + (odd ? 1 : 0);
#pragma unroll 4
  for (int n = 0; n < ROWS; ++n) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r += 4) {
      const float4 part = *(const float4*)&x[n][tile_row() + r];
      add_product(sum, part.x, tile[r]);
      add_product(sum, part.y, tile[r + 1]);
      add_product(sum, part.z, tile[r + 2]);
      add_product(sum, part.w, tile[r + 3]);
    }
    const float low = (upper ? sum.z : sum.x) + __shfl_xor_sync(~0u, upper ? sum.x : sum.z, 16);
    const float high = (upper ? sum.w : sum.y) + __shfl_xor_sync(~0u, upper ? sum.y : sum.w, 16);
    nodes.partial[threadIdx.x / 32][n][column] = (odd ? high : low) + __shfl_xor_sync(~0u, odd ? low : high, 8);
  }
}

// Four columns of row n of what `project` made.
__device__ __forceinline__ float4 projected(const Nodes& nodes, int n, int column) {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int w = 0; w < WARPS; ++w) add_product(sum, 1.f, *(const float4*)&nodes.partial[w][n][column]);
  return sum;
}

// L and A; a thread has one i and two j, which saves reads of k_i and q_i.
__device__ __forceinline__ void couple(Nodes& nodes) {
  constexpr int HALF = (ROWS + 1) / 2;
  for (int pair = threadIdx.x; pair < ROWS * HALF; pair += THREADS) {
    const int i = pair / HALF, j[2] = {pair % HALF, min(pair % HALF + HALF, ROWS - 1)};
    float kk[2] = {0.f, 0.f}, qk[2] = {0.f, 0.f};
    if (nodes.ancestors[i] >> j[0] & 1 || nodes.ancestors[i] >> j[1] & 1) {
#pragma unroll 4
      for (int d = 0; d < KEY_DIM; d += 4) {
        const float4 k = *(const float4*)&nodes.k[i][d], q = *(const float4*)&nodes.q[i][d];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float4 other = *(const float4*)&nodes.k[j[n]][d];
          kk[n] += k.x * other.x + k.y * other.y + k.z * other.z + k.w * other.w;
          qk[n] += q.x * other.x + q.y * other.y + q.z * other.z + q.w * other.w;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const bool seen = nodes.ancestors[i] >> j[n] & 1;
      const float kept = seen ? __expf(nodes.total[i] - nodes.total[j[n]]) : 0.f;
      nodes.below[j[n]][i] = i == j[n] ? 0.f : nodes.beta[i] * kept * kk[n];
      nodes.attention[i][j[n]] = kept * qk[n];
    }
  }
}

// U from its right side, in place, one column.
__device__ __forceinline__ void substitute(Nodes& nodes, int column) {
  float u[PADDED];
#pragma unroll
  for (int i = 0; i < PADDED; ++i) u[i] = i < ROWS ? nodes.u[min(i, ROWS - 1)][column] : 0.f;
#pragma unroll
  for (int j = 0; j < ROWS - 1; ++j)
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < PADDED; i += 4) {
      const float4 below = *(const float4*)&nodes.below[j][i];
      u[i] -= below.x * u[j], u[i + 1] -= below.y * u[j], u[i + 2] -= below.z * u[j], u[i + 3] -= below.w * u[j];
    }
#pragma unroll
  for (int i = 1; i < ROWS; ++i) nodes.u[i][column] = u[i];
}

KERNEL __launch_bounds__(THREADS)
    gdn_tree_verify(const io_t* __restrict__ q, const io_t* __restrict__ k, const io_t* __restrict__ v,
                    const float* __restrict__ log_decay, const float* __restrict__ beta,
                    const int* __restrict__ ancestors, const int* __restrict__ accepted,
                    const int* __restrict__ control, const io_t* __restrict__ cap_k, const float* __restrict__ cap_u,
                    const float* __restrict__ cap_g, const float* state, float* state_out, io_t* __restrict__ y,
                    io_t* __restrict__ new_cap_k, float* __restrict__ new_cap_u, float* __restrict__ new_cap_g) {
  __shared__ union alignas(16) {
    CommitBuffers commit;
    Nodes nodes;
  } shared;
  Nodes& nodes = shared.nodes;
  const int head = blockIdx.x / TILES, first = blockIdx.x % TILES * TILE_COLUMNS;
  const int key_head = head / HEADS_PER_KEY, count = control[1];
  const int64_t plane = (int64_t)head * KEY_DIM * VALUE_DIM;
  float4 tile[TILE_ROWS];
  load_tile(tile, state + plane, first);
  const uint32_t mask = (uint32_t)accepted[0];
  if (mask) {
    commit_tile(tile, mask, accepted[1], cap_k, cap_u, cap_g, head, first, shared.commit);
    store_tile(state_out + plane, tile, first);
  }
  // Rows that mean nothing become nodes of zeros without ancestors: they add nothing to others.
  const bool writes_keys = first == 0 && head % HEADS_PER_KEY == 0;
  for (int i = threadIdx.x; i < ROWS * (KEY_DIM / 8); i += THREADS) {
    const int n = i / (KEY_DIM / 8), d = i % (KEY_DIM / 8) * 8, at = (n * KEY_HEADS + key_head) * KEY_DIM + d;
    float x[8] = {}, z[8] = {};
    if (n < count) {
      load_io<8>(x, k + at);
      load_io<8>(z, q + at);
      if (writes_keys) store_io<8>(new_cap_k + at, x);
    }
    *(float4*)&nodes.k[n][d] = make_float4(x[0], x[1], x[2], x[3]);
    *(float4*)&nodes.k[n][d + 4] = make_float4(x[4], x[5], x[6], x[7]);
    *(float4*)&nodes.q[n][d] = make_float4(z[0], z[1], z[2], z[3]);
    *(float4*)&nodes.q[n][d + 4] = make_float4(z[4], z[5], z[6], z[7]);
  }
  if (threadIdx.x < 32) {
    const int n = threadIdx.x, at = n * VALUE_HEADS + head;
    const bool real = n < count;
    const float own = real ? log_decay[at] : 0.f;
    const uint32_t path = real ? (uint32_t)ancestors[n] : 0u;
    float total = 0.f;
#pragma unroll
    for (int j = 0; j < ROWS; ++j) {
      const float other = __shfl_sync(~0u, own, j);
      total += path >> j & 1 ? other : 0.f;
    }
    if (n < ROWS) nodes.total[n] = total, nodes.beta[n] = real ? beta[at] : 0.f, nodes.ancestors[n] = path;
    if (real && first == 0) new_cap_g[at] = total;
  }
  __syncthreads();
  project(nodes.k, tile, nodes);
  couple(nodes);
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * 8; i += THREADS) {
    const int n = i / 8, c = i % 8 * 4;
    float value[4] = {};
    if (n < count) load_io<4>(value, v + (n * VALUE_HEADS + head) * VALUE_DIM + first + c);
    const float rate = nodes.beta[n], grown = __expf(nodes.total[n]);
    const float4 known = projected(nodes, n, c);
    *(float4*)&nodes.u[n][c] = make_float4(rate * (value[0] - grown * known.x), rate * (value[1] - grown * known.y),
                                           rate * (value[2] - grown * known.z), rate * (value[3] - grown * known.w));
  }
  __syncthreads();
  project(nodes.q, tile, nodes);
  if (threadIdx.x < TILE_COLUMNS) substitute(nodes, threadIdx.x);
  __syncthreads();
  const float scale = rsqrtf((float)KEY_DIM);
  for (int i = threadIdx.x; i < count * 8; i += THREADS) {
    const int n = i / 8, c = i % 8 * 4, at = (n * VALUE_HEADS + head) * VALUE_DIM + first + c;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    add_product(sum, __expf(nodes.total[n]), projected(nodes, n, c));
#pragma unroll
    for (int j = 0; j < ROWS; ++j) add_product(sum, nodes.attention[n][j], *(const float4*)&nodes.u[j][c]);
    const float out[4] = {scale * sum.x, scale * sum.y, scale * sum.z, scale * sum.w};
    store_io<4>(y + at, out);
    *(float4*)(new_cap_u + at) = *(const float4*)&nodes.u[n][c];
  }
}
EXPORT(gdn_tree_verify)
