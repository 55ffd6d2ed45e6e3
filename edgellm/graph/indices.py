"""Small arrays that the host makes for every step: tree masks, depths, convolution rows, attention bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MASKED = np.float32(-1e30)


@dataclass(frozen=True, slots=True)
class TreeIndex:
    """What the verify graph needs to know of a tree of S nodes."""

    depths: NDArray[np.int64]  # [S], 0 for the root
    mask: NDArray[np.float32]  # [S, S]: 0 where the column is an ancestor or the node itself, else -1e30
    conv: NDArray[np.int64]  # [S, K]: rows of concat(K-1 state rows, S new rows), oldest tap first


def tree_index(parents: Sequence[int], kernel: int) -> TreeIndex:
    """Index arrays of a tree given by parent numbers (`parents[0] == -1`, `parents[i] < i`)."""
    size = len(parents)
    mask = np.full((size, size), MASKED, np.float32)
    depths = np.zeros(size, np.int64)
    conv = np.zeros((size, kernel), np.int64)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
            depths[node] = depths[parent] + 1
            conv[node, :-1] = conv[parent, 1:]
        else:
            conv[node, :-1] = np.arange(kernel - 1)
        mask[node, node] = 0
        conv[node, -1] = kernel - 1 + node
    return TreeIndex(depths, mask, conv)


def commit_rows(path: Sequence[int], kernel: int) -> NDArray[np.int64]:
    """Rows of concat(K-1 state rows, tree rows) that are the convolution state after `path`, [K-1]."""
    rows = [*range(kernel - 1), *(kernel - 1 + node for node in path)]
    return np.asarray(rows[len(rows) - (kernel - 1) :], np.int64)


def attention_bias(past: int, mask: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bias [1, 1, S, past + S]: all committed tokens are visible, new rows by `mask`."""
    size = mask.shape[0]
    bias = np.zeros((1, 1, size, past + size), np.float32)
    bias[0, 0, :, past:] = mask
    return bias
