"""Which tokens may be drawn: top_k, top_p and min_p without sorting the vocabulary.

Each filter keeps a prefix of the tokens in descending order of logit, the lower id first where logits are equal, so
together they keep the shortest of the three prefixes. What must stay true: the result equals the one of a full sort.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # logits of a block whose maximum bounds the search


def largest(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest values of `row` [vocab], ascending by id; of equal values the lowest ids count first.

    The count-th largest maximum of fixed blocks is a lower bound of the threshold, and few values pass it.
    """
    size = len(row)
    if count >= size:
        return np.arange(size)
    blocks = size // _BLOCK
    if count * 2 < blocks:
        maxima = row[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        bound = np.partition(maxima, blocks - count)[blocks - count]
        ids = np.flatnonzero(row >= bound)
        values = row[ids]
    else:
        ids, values = np.arange(size), row
    if len(ids) == count:
        return ids
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = values > threshold
    equal = np.flatnonzero(values == threshold)[: count - int(np.count_nonzero(above))]
    above[equal] = True
    return np.compress(above, ids)


def candidates(
    row: NDArray[np.float32], best: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> NDArray[np.int64] | None:
    """Ids that pass the filters, ascending; None when no filter is set.

    Args:
        row: logits after all processors, [vocab], with a finite maximum `best`.
        temperature: above 0. Applied before the filters.
        top_k: 0 is off.
        top_p: the smallest set of at least this probability among what top_k left; 1 is off.
        min_p: least probability relative to the best token's; 0 is off.
    """
    ids = largest(row, top_k) if 0 < top_k < len(row) else None
    if top_p < 1.0:
        ids = _nucleus(row, ids, best, temperature, top_p)
    if min_p > 0.0:
        floor = np.float32(min(best + temperature * math.log(min_p), best))
        ids = np.flatnonzero(row >= floor) if ids is None else ids[row[ids] >= floor]
    return ids


def _nucleus(
    row: NDArray[np.float32], ids: NDArray[np.int64] | None, best: float, temperature: float, top_p: float
) -> NDArray[np.int64]:
    if ids is not None:
        return _cover(row, ids, best, temperature, top_p, None)[0]
    total = float(np.exp((row - np.float32(best)) / np.float32(temperature)).sum(dtype=np.float64))
    count = 256
    while count < len(row):
        found, whole = _cover(row, largest(row, count), best, temperature, top_p, total)
        if whole:
            return found
        count *= 16
    return _cover(row, np.arange(len(row)), best, temperature, top_p, None)[0]


def _cover(
    row: NDArray[np.float32],
    ids: NDArray[np.int64],
    best: float,
    temperature: float,
    top_p: float,
    total: float | None,
) -> tuple[NDArray[np.int64], bool]:
    """The shortest prefix of `ids`, best first, with `top_p` of `total` (None: of their own sum), and whether it is."""
    values = row[ids]
    order = np.argsort(-values, kind="stable")
    mass = np.cumsum(np.exp((values[order].astype(np.float64) - best) / temperature))
    need = top_p * (float(mass[-1]) if total is None else total)
    kept = int(np.searchsorted(mass, need)) + 1
    return np.sort(ids[order[:kept]]), kept <= len(ids)
