// Ancestor masks and positions of the nodes that a step adds to a tree.
#include "common.cuh"

// Row i of the step is node start + i of the tree; its parent is a node number, or -1 for a node without one. Rows that
// mean nothing see only themselves.
KERNEL __launch_bounds__(32) tree_build(const int* __restrict__ parents, const int* __restrict__ control,
                                        const int* ancestors, const int* depths, int* ancestors_out, int* depths_out,
                                        int* __restrict__ positions) {
  if (threadIdx.x) return;
  const int context = control[0], count = control[1], start = control[2], first = control[3];
  for (int i = 0; i < ROWS && start + i < TAIL; ++i) {
    const int node = start + i, parent = i < count ? parents[i] : -1;
    for (int w = 0; w < WORDS; ++w) {
      const int above = parent < 0 ? 0 : ancestors[parent * WORDS + w];
      ancestors_out[node * WORDS + w] = above | (node / 32 == w ? 1 << node % 32 : 0);
    }
    const int depth = parent < 0 ? 0 : depths[parent] + 1;
    depths_out[node] = depth;
    positions[i] = min(max(context + depth - first, 0), POSITIONS - 1);
  }
}
EXPORT(tree_build)
