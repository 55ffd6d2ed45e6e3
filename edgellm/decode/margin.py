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
    filtered out; how near a filtered token is to being kept and winning. A gap of probability mass at the top_p
    edge counts times the temperature, as a small shift of a logit changes mass by at most shift / temperature.
    """
    order = np.argsort(-row, kind="stable")
    values = row[order].astype(np.float64)
    scores = (values - values[0]) / temperature + gumbel(seed, position, order)
    place = int(np.flatnonzero(order == token)[0])
    edges = _Edges(values, temperature, top_k, top_p, min_p)
    gaps = [edges.distance(place)]
    kept = edges.kept.copy()
    kept[place] = False
    if kept.any():
        gaps.append(temperature * abs(float(scores[place] - scores[kept].max())))
    behind = temperature * (scores[place] - scores)
    for rival in np.flatnonzero(~edges.kept & (behind < min(gaps))):
        if rival != place:  # it has to get past the filters and ahead of the winner
            gaps.append(max(edges.distance(int(rival)), float(behind[rival])))
    return min(gaps)


class _Edges:
    """The filters over logits in descending order: which are kept, and how far each is from changing sides."""

    def __init__(self, values: NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
        self._values = values
        size = len(values)
        self._limit = top_k if 0 < top_k < size else size
        mass = np.exp((values - values[0]) / temperature)
        mass /= mass[: self._limit].sum()
        # Above 0 where a token at this place is in the nucleus; in units of logits.
        self._slack = (top_p - (np.cumsum(mass) - mass)) * temperature if top_p < 1.0 else np.full(size, math.inf)
        self._slack[0] = math.inf
        self._floor = values[0] + temperature * math.log(min_p) if min_p > 0.0 else -math.inf
        self.kept = (np.arange(size) < self._limit) & (self._slack > 0) & (values >= self._floor)

    def distance(self, place: int) -> float:
        """Shift that may move the token at `place` across the nearest edge in its way."""
        values, slack = self._values, self._slack
        if self.kept[place]:
            # It leaves the nucleus by falling to a later place and finding no mass left there.
            gaps = [float(np.maximum(values[place] - values[place:], slack[place:]).min())]
            if self._limit < len(values):
                gaps.append(float(values[place] - values[self._limit]))
            gaps.append(float(values[place] - self._floor))
            return min(gaps)
        gaps = [float(np.maximum(values[: place + 1] - values[place], -slack[: place + 1]).min())]
        if place >= self._limit:
            gaps.append(float(values[self._limit - 1] - values[place]))
        gaps.append(float(self._floor - values[place]))
        return max(0.0, *gaps)
