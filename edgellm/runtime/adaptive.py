"""How much to speculate, chosen by what it costs and gains here and now. It changes speed only, never the output.

For each number of sequences that decode together, every shape (off, small trees, the full one) has running means of
seconds and of tokens per round; the shape with the fewest seconds per token is used, and once in a while another one is
tried again, because text and load change.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgellm.decode.params import SpeculationParams

OFF = SpeculationParams(steps=0)
_TRIES = 3  # rounds of every shape before the first choice
_AGAIN = 64  # rounds between two trials of other shapes
_MEMORY = 0.1  # weight of a new round in the means


@dataclass(slots=True)
class _Shape:
    params: SpeculationParams
    rounds: int = 0
    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        self.rounds += 1
        weight = max(_MEMORY, 1 / self.rounds)
        self.seconds += weight * (seconds - self.seconds)
        self.tokens += weight * (tokens - self.tokens)


class AutoSpeculation:
    """Choose with `choose`, then tell what came of it with `record`.

    Args:
        full: the largest shape; quarters and halves of it are the others.
    """

    def __init__(self, full: SpeculationParams) -> None:
        parts = [(full.steps // share, full.nodes // share) for share in (4, 2)]
        smaller = [SpeculationParams(steps, full.top_k, nodes) for steps, nodes in parts if steps > 0 and nodes > 1]
        self.shapes = (OFF, *smaller, full)
        self._tables: dict[int, list[_Shape]] = {}
        self._rounds = 0

    def choose(self, sequences: int) -> SpeculationParams:
        """The shape for the next round of `sequences` sequences."""
        table = self._tables.setdefault(sequences, [_Shape(params) for params in self.shapes])
        for shape in table:
            if shape.rounds < _TRIES:
                return shape.params
        self._rounds += 1
        if self._rounds % _AGAIN == 0:
            return table[self._rounds // _AGAIN % len(table)].params
        return min(table, key=lambda shape: shape.seconds / shape.tokens).params

    def record(self, sequences: int, params: SpeculationParams, seconds: float, tokens: int) -> None:
        """A round with `params` took `seconds` and gave `tokens` in all."""
        for shape in self._tables[sequences]:
            if shape.params == params:
                shape.add(seconds, max(tokens, 1))
