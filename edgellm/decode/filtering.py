"""Which tokens may be drawn: top_k, top_p and min_p without sorting the vocabulary.

Each filter keeps a prefix of the tokens in descending order of logit, the lower id first where logits are equal, so
together they keep the shortest of the three prefixes. What must stay true: the result equals the one of a full sort.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # logits of a block whose maximum bounds the search
_GUESSES = (256, 4096)  # sizes of a nucleus to try before sorting everything


def largest(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest values of `row` [vocab], ascending by id; of equal values the lowest ids count first.

    The count-th largest maximum of fixed blocks is a lower bound of the threshold, and few values pass it.
    """
    size = len(row)
    if count >= size:
        return np.arange(size)
    blocks = size // _BLOCK
    if count * 2 >= blocks:
        return _exact(row, np.arange(size), count)
    maxima = row[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    bound = np.partition(maxima, blocks - count)[blocks - count]
    above = np.flatnonzero(row > bound)
    if len(above) >= count:
        return _exact(row, above, count)
    return np.sort(np.concatenate([above, np.flatnonzero(row == bound)[: count - len(above)]]))


def _exact(row: NDArray[np.float32], ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`largest` among ascending `ids`, at least `count` of them."""
    values = row[ids]
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    kept = values > threshold
    kept[np.flatnonzero(values == threshold)[: count - int(np.count_nonzero(kept))]] = True
    return np.compress(kept, ids)


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
    everything = np.arange(len(row)) if ids is None else ids
    if len(everything) > _GUESSES[0]:  # only ever without top_k, or with a wide one
        values = row if ids is None else row[ids]
        total = float(np.exp((values - np.float32(best)) / np.float32(temperature)).sum(dtype=np.float64))
        for count in _GUESSES:
            guess = largest(row, count)
            kept = _cover(row[guess], best, temperature, top_p, total)
            if kept <= count < len(everything):
                return _exact(row, guess, kept) if kept < count else guess
    kept = min(_cover(row[everything], best, temperature, top_p, None), len(everything))
    return _exact(row, everything, kept)


def _cover(values: NDArray[np.float32], best: float, temperature: float, top_p: float, total: float | None) -> int:
    """How many of `values`, best first, reach the share `top_p` of `total` (None: of their own); above len if none."""
    descending = np.sort(values)[::-1].astype(np.float64)
    mass = np.cumsum(np.exp((descending - best) / temperature))
    return int(np.searchsorted(mass, top_p * (float(mass[-1]) if total is None else total))) + 1
