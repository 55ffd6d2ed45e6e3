"""How far a draw was from another outcome, in units of logits.

Results that differ in the last bits (another chunking, a tree instead of a chain) may flip a draw that was nearly
tied. Tests excuse those and count them; nothing else reads a margin, so this sorts the vocabulary and is slow.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgellm.decode.randomness import gumbel


def greedy_margin(row: NDArray[np.float32]) -> float:
    """Gap between the two largest logits of `row` [vocab]."""
    if len(row) < 2:
        return math.inf
    second, first = np.partition(row, len(row) - 2)[-2:]
    return float(first) - float(second)


def sampled_margin(
    row: NDArray[np.float32],
    token: int,
    *,
    seed: int,
    position: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> float:
    """Least shift between two logits of `row` [vocab] that may change the draw of `token`.

    It is the smallest of: the gap to the runner-up among the tokens that the filters keep; how near `token` is to being
    filtered out; how near a filtered token that would have won is to being kept. A gap of probability mass at the top_p
    edge counts times the temperature, as a small shift of a logit changes mass by at most shift / temperature.
    """
    order = np.argsort(-row, kind="stable")
    values = row[order].astype(np.float64)
    scores = (values - values[0]) / temperature + gumbel(seed, position, order)
    place = int(np.flatnonzero(order == token)[0])
    # For each token in descending order: signed distance to the edge of each filter, above 0 where it is kept.
    inside = np.full(len(values), math.inf)
    limit = top_k if 0 < top_k < len(values) else len(values)
    if limit < len(values):
        inside = np.where(np.arange(len(values)) < limit, values - values[limit], values - values[limit - 1])
    if top_p < 1.0:
        mass = np.exp((values - values[0]) / temperature)
        mass /= mass[:limit].sum()
        before = np.cumsum(mass) - mass
        nucleus = (top_p - before) * temperature
        nucleus[0] = math.inf
        inside = np.minimum(inside, nucleus)
    if min_p > 0.0:
        inside = np.minimum(inside, values - (values[0] + temperature * math.log(min_p)))
    kept = inside > 0
    kept[place] = False
    gaps = [abs(float(inside[place]))]
    if kept.any():
        gaps.append(temperature * abs(float(scores[place] - scores[kept].max())))
    rivals = ~kept & (scores > scores[place])
    if rivals.any():
        gaps.append(float(np.abs(inside[rivals]).min()))
    return min(gaps)
