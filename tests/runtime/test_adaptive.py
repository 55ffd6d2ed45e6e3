"""The choice of how much to speculate follows measured cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.runtime.adaptive import OFF, AutoSpeculation

FULL = SpeculationParams()


def play(auto: AutoSpeculation, cost: Callable[[SpeculationParams], tuple[float, int]], rounds: int) -> list[int]:
    """Nodes of the shapes chosen in `rounds` rounds; `cost` gives seconds and tokens."""
    chosen = []
    for _ in range(rounds):
        params = auto.choose(1)
        auto.record(1, params, *cost(params))
        chosen.append(params.nodes if params.enabled else 1)
    return chosen


@pytest.mark.parametrize(
    ("per_node", "tokens", "best"), [(0.0, {1: 1, 4: 2, 8: 3, 16: 4}, 16), (1.0, {1: 1, 4: 2, 8: 3, 16: 4}, 1)]
)
def test_the_cheapest_shape_per_token_wins(per_node: float, tokens: dict[int, int], best: int) -> None:
    def cost(params: SpeculationParams) -> tuple[float, int]:
        nodes = params.nodes if params.enabled else 1
        return 1.0 + per_node * nodes, tokens[nodes]

    chosen = play(AutoSpeculation(FULL), cost, 500)
    assert set(chosen[:12]) == {1, 4, 8, 16}  # all are tried
    assert chosen[12:].count(best) > 460


def test_it_follows_a_change() -> None:
    auto = AutoSpeculation(FULL)
    play(auto, lambda params: (1.0, 4 if params.enabled else 1), 200)
    chosen = play(auto, lambda params: (3.0 if params.enabled else 1.0, 1), 300)
    assert chosen[-50:].count(1) >= 48


def test_loads_are_kept_apart() -> None:
    auto = AutoSpeculation(FULL)
    play(auto, lambda params: (1.0, 4 if params.enabled else 1), 50)
    assert auto.choose(4) == OFF  # nothing is known yet: the first shape to try


def test_small_shapes_stay_valid() -> None:
    assert [shape.nodes for shape in AutoSpeculation(SpeculationParams(steps=1, nodes=2)).shapes if shape.enabled] == [
        2
    ]


def test_auto_speculates_where_it_pays(open_rig: Callable[..., Any]) -> None:
    rig = open_rig(speculation="auto")
    plain = open_rig(speculation=None)
    sampling = SamplingParams(max_tokens=300, temperature=0.7, seed=5)
    assert rig.run(range(50), sampling).token_ids == plain.run(range(50), sampling).token_ids
    assert rig.engine.stats().drafted_tokens > 0
