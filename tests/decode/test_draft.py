"""The draft tree equals the best tree of an exhaustive search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.decode.draft import Draft, Drafter, draft_tree
from edgellm.decode.params import SpeculationParams
from edgellm.engine.base import Chunk, DraftNodes, DraftResult
from edgellm.engine.scripted import ScriptedExecutor

Path = tuple[int, ...]


class Table:
    """A draft layer that knows a node by its path and follows the numbering of the contract."""

    def __init__(self, seed: int, k: int, scale: float) -> None:
        self.seed, self.k, self.scale = seed, k, scale
        self.paths: list[Path] = []
        self.largest_call = 0

    def best(self, path: Path) -> tuple[list[int], list[float]]:
        rng = np.random.default_rng([self.seed, *path])
        ids = rng.choice(30, self.k, replace=False)
        logprobs = np.sort(np.log(rng.dirichlet(np.full(self.k + 1, self.scale))[: self.k] + 1e-30))[::-1]
        return ids.tolist(), logprobs.astype(np.float32).tolist()

    def draft(self, nodes: DraftNodes) -> DraftResult:
        if list(nodes.parents) == [-1]:
            self.paths = []
        known = len(self.paths)
        for token, parent in zip(nodes.tokens, nodes.parents, strict=True):
            assert parent < known
            self.paths.append((*(self.paths[parent] if parent >= 0 else ()), token))
        found = [self.best(path) for path in self.paths[known:]]
        self.largest_call = max(self.largest_call, len(found))
        return DraftResult(np.array([ids for ids, _ in found]), np.array([lp for _, lp in found], np.float32))

    def build(self, params: SpeculationParams, **limits: int) -> Draft:
        drafter = Drafter(0, 7, params, **{"max_nodes": 64, "max_depth": 64, **limits})
        while (nodes := drafter.pending()) is not None:
            drafter.feed(self.draft(nodes))
        return drafter.finish()


def paths_of(draft: Draft) -> list[Path]:
    paths: list[Path] = []
    for node, (token, parent) in enumerate(zip(draft.tree.tokens, draft.tree.parents, strict=True)):
        assert -1 <= parent < node, "not in topological order"
        assert (parent == -1) == (node == 0)
        paths.append((*(paths[parent] if node else ()), token))
    assert len(set(paths)) == len(paths), "two equal siblings"
    return paths


def exhaustive(table: Table, top_k: int, depth: int) -> dict[Path, float]:
    """Every node of the full tree with its cumulative log-probability."""
    found: dict[Path, float] = {(7,): 0.0}
    level = [(7,)]
    for _ in range(depth):
        deeper: list[Path] = []
        for path in level:
            for token, logprob in list(zip(*table.best(path), strict=True))[:top_k]:
                found[*path, token] = found[path] + logprob
                deeper.append((*path, token))
        level = deeper
    return found


@given(
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(2, 20),
    st.sampled_from([0.05, 0.5, 3.0]),
)
@settings(max_examples=120, deadline=None)
def test_equals_exhaustive_search(seed: int, top_k: int, steps: int, nodes: int, scale: float) -> None:
    table = Table(seed, 4, scale)
    draft = table.build(SpeculationParams(steps, top_k, nodes))
    everything = exhaustive(table, top_k, steps)
    best = sorted(everything.values(), reverse=True)[:nodes]
    assert sorted(draft.logprobs, reverse=True) == pytest.approx(best)
    assert {path: everything[path] for path in paths_of(draft)} == pytest.approx(
        dict(zip(paths_of(draft), draft.logprobs, strict=True))
    )
    assert draft.calls <= steps
    assert table.largest_call <= nodes


def test_stops_when_no_candidate_can_reach_the_tree() -> None:
    """One sure branch and nodes=2: the first child is the tree, and drafting on cannot change it."""

    class Sure(Table):
        def best(self, path: Path) -> tuple[list[int], list[float]]:
            return [1, 2], [-0.1, -3.0]

    assert Sure(0, 2, 1.0).build(SpeculationParams(8, 2, 2)).calls == 2  # the child, then nothing better below it
    assert Sure(0, 2, 1.0).build(SpeculationParams(8, 2, 16)).calls == 8

    class Flat(Table):
        def best(self, path: Path) -> tuple[list[int], list[float]]:
            return [1, 2], [-0.7, -0.7]

    draft = Flat(0, 2, 1.0).build(SpeculationParams(8, 2, 7))
    assert draft.calls == 3  # the two full levels below the root are the tree; the third can add nothing
    assert draft.tree.parents == [-1, 0, 0, 1, 1, 2, 2]


def test_bounds_of_draft_nodes() -> None:
    """An executor has to hold every drafted node, not only the kept ones: at most 48 for the default shape."""
    worst = 0
    for seed in range(200):
        table = Table(seed, 4, [0.05, 0.5, 3.0][seed % 3])
        table.build(SpeculationParams())
        worst = max(worst, len(table.paths))
    assert worst <= 48


@pytest.mark.parametrize(
    ("params", "limits", "nodes", "calls"),
    [
        (SpeculationParams(steps=0), {}, 1, 0),
        (SpeculationParams(nodes=1), {}, 1, 0),
        (SpeculationParams(), {"max_depth": 0}, 1, 0),
        (SpeculationParams(), {"max_nodes": 1}, 1, 0),
        (SpeculationParams(), {"max_nodes": 5}, 5, None),
        (SpeculationParams(top_k=1), {}, 9, 8),
        (SpeculationParams(top_k=1), {"max_depth": 3}, 4, 3),
    ],
)
def test_limits(params: SpeculationParams, limits: dict[str, int], nodes: int, calls: int | None) -> None:
    draft = Table(1, 4, 1.0).build(params, **limits)
    assert len(draft.tree.tokens) == nodes
    assert calls is None or draft.calls == calls
    assert max(len(path) for path in paths_of(draft)) <= 1 + limits.get("max_depth", 64)


def test_tokens_after_which_nothing_is_emitted_are_leaves() -> None:
    table = Table(5, 4, 1.0)
    free = table.build(SpeculationParams())
    inner = {free.tree.tokens[parent] for parent in free.tree.parents[1:]} - {7}
    drafter = Drafter(0, 7, SpeculationParams(), max_nodes=16, max_depth=8, terminal=inner)
    while (nodes := drafter.pending()) is not None:
        drafter.feed(table.draft(nodes))
    tree = drafter.finish().tree
    assert not {tree.tokens[parent] for parent in tree.parents[1:] if parent > 0} & inner


def test_impossible_drafts_are_left_out() -> None:
    drafter = Drafter(0, 7, SpeculationParams(), max_nodes=16, max_depth=1)
    nodes = drafter.pending()
    assert nodes is not None
    drafter.feed(DraftResult(np.array([[3, 4]]), np.array([[-0.5, -math.inf]], np.float32)))
    assert drafter.pending() is None
    assert drafter.finish().tree.tokens == [7, 3]


@pytest.mark.parametrize("limits", [{"draft_top_k": 0}, {"max_tree": 0}])
def test_executor_without_draft_layer_or_verification(limits: dict[str, int]) -> None:
    executor = ScriptedExecutor(vocab_size=50, **limits)
    executor.advance([Chunk(0, [1, 2], True)])
    draft = draft_tree(executor, 0, 5, SpeculationParams(), max_depth=9)
    assert (draft.tree.tokens, draft.calls) == ([5], 0)
