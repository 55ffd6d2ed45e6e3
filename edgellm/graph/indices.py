"""Host-made inputs of the graphs: masks, depths and row indices. Pure NumPy, made once per step.

A tree is given by `parents`: ``parents[0] == -1`` is the root, every other node follows its parent. A chain is the tree
whose node i has the parent i - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
MASKED: Final = np.float32(-1e30)  # added to a score; exp of it is 0 and it does not overflow when it is added twice


@dataclass(frozen=True, slots=True)
class TreeIndex:
    """What the verify graph needs to know of a tree of S nodes, whatever sequence it continues."""

    depths: I64  # [S]: edges to the root; a node's position is the committed length plus its depth
    mask: F32  # [S, S]: 0 for ancestors and self, else MASKED
    conv: I64  # [S, K]: rows of concat(conv state of K-1 rows, new rows) under the taps, oldest first


def tree_index(parents: Sequence[int], kernel: int) -> TreeIndex:
    """Index arrays of a tree for a convolution of `kernel` taps.

    Raises:
        ValueError: `parents` is not a tree in topological order, or it has more than 64 nodes.
    """
    depths: list[int] = []
    family: list[int] = []  # bit j: node j is an ancestor of the node or the node itself
    rows: list[list[int]] = []
    for node, parent in enumerate(parents):
        if node == 0 and parent == -1:
            depths.append(0)
            family.append(1)
            rows.append(list(range(kernel)))
        elif 0 <= parent < node:
            depths.append(depths[parent] + 1)
            family.append(family[parent] | 1 << node)
            rows.append([*rows[parent][1:], kernel - 1 + node])
        else:
            raise ValueError(f"node {node} has parent {parent}: nodes must follow their parents, node 0 is the root")
    if not 0 < len(family) <= 64:
        raise ValueError(f"a tree has 1 to 64 nodes, not {len(family)}")
    bits = np.array(family, np.uint64)[:, None] >> np.arange(len(family), dtype=np.uint64) & np.uint64(1)
    mask = (np.float32(1) - bits.astype(np.float32)) * MASKED
    return TreeIndex(np.array(depths, np.int64), mask, np.array(rows, np.int64))


def commit_rows(path: Sequence[int], kernel: int) -> I64:
    """Rows [K-1] of concat(conv state, the tree's rows) that are the convolution state after the nodes of `path`."""
    rows = [*range(kernel - 1), *(kernel - 1 + node for node in path)]
    return np.array(rows[len(rows) - (kernel - 1) :], np.int64)


def attention_bias(past: int, mask: F32) -> F32:
    """Bias f32 [1, 1, S, past + S]: all committed tokens are visible, new ones by `mask` [S, S]."""
    size = len(mask)
    bias = np.zeros((1, 1, size, past + size), np.float32)
    bias[0, 0, :, past:] = mask
    return bias
