"""Fixtures of the graph tests: built graphs of the three small models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from graph_runner import Graphs, HashedModel

from edgellm.graph.encodings import WeightFormat
from edgellm.graph.export import build_canonical, build_ort_graphs

GraphMaker = Callable[..., Graphs]


@pytest.fixture(scope="session")
def ort_graphs(tmp_path_factory: pytest.TempPathFactory) -> GraphMaker:
    """`ort_graphs(model name, weight format)`: graphs for ONNX Runtime, built once."""
    made: dict[tuple[str, WeightFormat], Graphs] = {}

    def make(name: str, weights: WeightFormat | None = None) -> Graphs:
        form = weights or WeightFormat()
        if (name, form) not in made:
            model, folder = HashedModel(name), tmp_path_factory.mktemp("ort")
            build_ort_graphs(model, folder, form)
            made[name, form] = Graphs(folder, model.spec)
        return made[name, form]

    return make


@pytest.fixture(scope="session")
def canonical_graphs(tmp_path_factory: pytest.TempPathFactory) -> GraphMaker:
    """`canonical_graphs(model name)`: the standard-operator form, built once."""
    made: dict[str, Graphs] = {}

    def make(name: str) -> Graphs:
        if name not in made:
            model, folder = HashedModel(name), tmp_path_factory.mktemp("canonical")
            build_canonical(model, folder)
            made[name] = Graphs(folder, model.spec)
        return made[name]

    return make
