// Commits the accepted nodes of a step in all layers of a slot, for when no step follows that would do it.
#include "gdn.cuh"

// Blocks along x are (head, tile of columns), along y layers. The first blocks of a layer also move the convolution
// state on, a thread 8 channels of it: all rows are read before one is written.
KERNEL __launch_bounds__(THREADS)
    gdn_commit(const int* __restrict__ accepted, const io_t* __restrict__ cap_k, const float* __restrict__ cap_u,
               const float* __restrict__ cap_g, const io_t* cap_c, const float* state, const io_t* conv_state,
               float* state_out, io_t* conv_state_out) {
  __shared__ CommitBuffers buffers;
  const uint32_t mask = (uint32_t)accepted[0];
  if (!mask) return;
  const int head = blockIdx.x / TILES, first = blockIdx.x % TILES * TILE_COLUMNS;
  const int64_t layer = blockIdx.y, plane = (layer * VALUE_HEADS + head) * KEY_DIM * VALUE_DIM;
  float4 tile[TILE_ROWS];
  load_tile(tile, state + plane, first);
  commit_tile(tile, mask, accepted[1], cap_k + layer * CAPSULE * KEY_HEADS * KEY_DIM,
              cap_u + layer * CAPSULE * VALUE_HEADS * VALUE_DIM, cap_g + layer * CAPSULE * VALUE_HEADS, head, first,
              buffers);
  store_tile(state_out + plane, tile, first);
  const io_t* rows = conv_state + layer * HISTORY * CHANNELS;
  const io_t* nodes = cap_c + layer * CAPSULE * CHANNELS;
  move_history([=](int row) { return committed_row(rows, nodes, mask, row); },
               conv_state_out + layer * HISTORY * CHANNELS, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}
EXPORT(gdn_commit)
