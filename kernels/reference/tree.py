"""References of the kernels that make and walk trees."""

from __future__ import annotations

import numpy as np

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, FIRST, TAIL_START, Tensors


def tree_build(sizes: Sizes, t: Tensors) -> None:
    """Ancestor masks (self included), depths and positions of the rows of a step.

    Row i is node start + i; a node without a parent (-1), and every row from COUNT on, sees only itself. The first
    visible token has position 0. Positions beyond the RoPE tables are the last one: such a node can never be emitted,
    the context ends before it.
    """
    context, count, start, first = (int(t["control"][i]) for i in (CONTEXT, COUNT, TAIL_START, FIRST))
    for row in range(min(sizes.rows, sizes.tail - start)):
        node, parent = start + row, int(t["parents"][row]) if row < count else -1
        mask = t["ancestors"][parent].copy() if parent >= 0 else t["ancestors"][node] * 0
        mask[node // 32] |= (1 << node % 32) - (1 << 32 if node % 32 == 31 else 0)
        t["ancestors"][node] = mask
        t["depths"][node] = t["depths"][parent] + 1 if parent >= 0 else 0
        t["positions"][row] = min(max(context + int(t["depths"][node]) - first, 0), sizes.positions - 1)


def tree_accept(sizes: Sizes, t: Tensors) -> None:
    """Follow the greedy tokens from the root; of equal children the lowest-numbered one. No nodes: nothing is said."""
    count = min(int(t["control"][COUNT]), sizes.rows)
    said: list[int] = []
    mask = node = 0
    while count > 0:
        mask |= 1 << node
        said.append(int(t["best"][node, 0]))
        matching = [i for i in range(node + 1, count) if t["parents"][i] == node and t["tokens"][i] == said[-1]]
        if not matching:
            break
        node = matching[0]
    t["accepted"][:] = np.array([mask], np.uint32).view(np.int32)[0], node
    t["emitted"][:] = 0
    t["emitted"][: len(said) + 1] = len(said), *said
