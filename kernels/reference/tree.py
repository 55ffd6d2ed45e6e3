"""References of the kernels that make and walk trees."""

from __future__ import annotations

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, TAIL_START, Tensors


def tree_build(sizes: Sizes, t: Tensors) -> None:
    """Ancestor masks (self included), depths and positions of the rows of a step.

    Row i is node start + i; a node without a parent (-1), and every row from COUNT on, sees only itself. Positions
    beyond the RoPE tables are the last one: such a node can never be emitted, the context ends before it.
    """
    context, count, start = (int(t["control"][i]) for i in (CONTEXT, COUNT, TAIL_START))
    for row in range(min(sizes.rows, sizes.tail - start)):
        node, parent = start + row, int(t["parents"][row]) if row < count else -1
        mask = t["ancestors"][parent].copy() if parent >= 0 else t["ancestors"][node] * 0
        mask[node // 32] |= (1 << node % 32) - (1 << 32 if node % 32 == 31 else 0)
        t["ancestors"][node] = mask
        t["depths"][node] = t["depths"][parent] + 1 if parent >= 0 else 0
        t["positions"][row] = min(context + int(t["depths"][node]), sizes.positions - 1)
