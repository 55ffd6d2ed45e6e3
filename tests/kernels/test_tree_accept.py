from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import Arrays, needs_compiler, run_both

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.decode.accept import accept_tree
from edgellm.decode.params import SamplingParams
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import StopRule
from edgellm.engine.base import TokenTree
from edgellm.engine.ort_logits import ArrayLogits, Clock
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import COUNT, empty_tensors
from edgellm.kernels.tree import TREE_ACCEPT

pytestmark = needs_compiler
SPEC = ModelSpec.from_config(PRESETS["tiny"].config)
VOCAB = 5  # few tokens, so that equal children and long paths are common
GARBAGE = -1234567


def walk(rows: int, tree: list[tuple[int, int]], best: list[int], count: int | None = None) -> Arrays:
    """What the kernel makes of the nodes (parent, token); it agrees with its reference."""
    sizes = Sizes.of(SPEC, io="bf16", rows=rows, max_pages=1, top_k=3)
    tensors = empty_tensors(TREE_ACCEPT, sizes)
    for name in ("best", "tokens", "parents", "accepted", "emitted"):
        tensors[name][...] = GARBAGE
    tensors["parents"][: len(tree)] = [parent for parent, _ in tree]
    tensors["tokens"][: len(tree)] = [token for _, token in tree]
    tensors["best"][: len(tree), 0] = best
    tensors["control"][COUNT] = len(tree) if count is None else count
    made, expected = run_both(TREE_ACCEPT, sizes, tensors)
    for name in ("accepted", "emitted"):
        np.testing.assert_array_equal(made[name], expected[name])
    return made


@st.composite
def verified(draw: st.DrawFn, most: int) -> tuple[list[tuple[int, int]], list[int]]:
    size = draw(st.integers(1, most))
    token = st.integers(0, VOCAB - 1)
    tree = [(-1, draw(token)), *((draw(st.integers(0, i - 1)), draw(token)) for i in range(1, size))]
    return tree, draw(st.lists(token, min_size=size, max_size=size))


@settings(deadline=None)
@given(verified(16))
def test_the_walk_is_that_of_the_sampler_without_randomness(case: tuple[list[tuple[int, int]], list[int]]) -> None:
    tree, best = case
    made = walk(16, tree, best)
    logits = np.zeros((len(tree), VOCAB), np.float32)
    logits[np.arange(len(tree)), best] = 1
    nodes = TokenTree(0, [token for _, token in tree], [parent for parent, _ in tree])
    rows = ArrayLogits(logits, range(len(tree)), Clock())
    endless = StopRule(eos=frozenset(), stop_tokens=frozenset(), limit=1000)
    outcome = accept_tree(nodes, rows, Sampler(SamplingParams(), []), endless)
    count = len(outcome.tokens)
    assert made["emitted"].tolist() == [count, *outcome.tokens, *[0] * (16 + 1 - count)]
    assert made["accepted"].tolist() == [sum(1 << node for node in outcome.path), outcome.path[-1]]


def test_a_chain_of_32_nodes_uses_every_bit() -> None:
    made = walk(32, [(i - 1, i) for i in range(32)], [i + 1 for i in range(32)])
    assert made["accepted"].tolist() == [-1, 31]
    assert made["emitted"].tolist() == [32, *range(1, 33), 0]


def test_padding_is_no_child() -> None:
    tree = [(-1, 9), (0, 7), (1, 8)]
    made = walk(16, tree, [7, 8, 6], count=2)
    assert made["accepted"].tolist() == [0b11, 1]
    assert made["emitted"][:4].tolist() == [2, 7, 8, 0]


def test_no_nodes_say_nothing() -> None:
    made = walk(4, [(-1, 9)], [7], count=0)
    assert made["accepted"].tolist() == [0, 0]
    assert not made["emitted"].any()


def test_parents_that_make_a_circle_end_the_walk() -> None:
    made = walk(4, [(1, 7), (0, 7), (2, 7)], [7, 7, 7])
    assert made["emitted"].tolist() == [2, 7, 7, 0, 0, 0]


def test_a_tree_wider_than_the_mask_is_refused() -> None:
    sizes = Sizes.of(SPEC, io="bf16", rows=33, max_pages=1)
    assert "32" in (TREE_ACCEPT.refuses(sizes) or "")
