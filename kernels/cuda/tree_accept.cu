// Greedy walk of a verified tree: which draft tokens the model would have said itself.
#include "common.cuh"

// One lane per node. From a node the walk goes to the lowest-numbered child that is the node's greedy token, the first
// of its TOP_K candidates. Children come after their parents, so that the walk ends whatever stands in `parents`.
KERNEL __launch_bounds__(32)
    tree_accept(const int* __restrict__ best, const int* __restrict__ tokens, const int* __restrict__ parents,
                const int* __restrict__ control, int* __restrict__ accepted, int* __restrict__ emitted) {
  const int lane = threadIdx.x, count = min(control[1], ROWS);
  const int token = lane < count ? tokens[lane] : 0, parent = lane < count ? parents[lane] : -1;
  const int said = lane < count ? best[lane * TOP_K] : 0;
  for (int i = lane; i < ROWS + 2; i += 32) emitted[i] = 0;
  __syncwarp();
  unsigned path = 0;
  int node = 0, length = 0;
  if (count > 0) {
    while (true) {
      path |= 1u << node;
      const int next = __shfl_sync(~0u, said, node);
      if (!lane) emitted[++length] = next;
      const unsigned children = __ballot_sync(~0u, lane > node && parent == node && token == next);
      if (!children) break;
      node = __ffs(children) - 1;
    }
  }
  if (lane) return;
  emitted[0] = length;
  accepted[0] = (int)path;
  accepted[1] = node;
}
EXPORT(tree_accept)
