from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import needs_compiler, run_both

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.indices import tree_index
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, FIRST, empty_tensors
from edgellm.kernels.tree import TREE_BUILD

pytestmark = needs_compiler
SPEC = ModelSpec.from_config(PRESETS["tiny"].config)


@st.composite
def trees(draw: st.DrawFn, most: int) -> list[int]:
    size = draw(st.integers(1, most))
    return [-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))]


@settings(deadline=None)
@given(trees(16), st.integers(0, 600), st.integers(0, 1))
def test_a_tree_has_the_masks_and_positions_of_the_graph_inputs(parents: list[int], context: int, first: int) -> None:
    sizes = Sizes.of(SPEC, io="bf16", rows=16, max_pages=8)
    tensors = empty_tensors(TREE_BUILD, sizes)
    tensors["parents"][: len(parents)] = parents
    tensors["control"][[CONTEXT, COUNT, FIRST]] = context, len(parents), first
    made, expected = run_both(TREE_BUILD, sizes, tensors)
    for name in ("ancestors", "depths", "positions"):
        np.testing.assert_array_equal(made[name], expected[name])
    index = tree_index(parents, 4)
    bits = made["ancestors"][: len(parents), 0, None] >> np.arange(len(parents)) & 1
    np.testing.assert_array_equal(bits == 1, index.mask == 0)
    positions = np.clip(context - first + index.depths, 0, sizes.positions - 1)
    np.testing.assert_array_equal(made["positions"][: len(parents)], positions)


@settings(deadline=None)
@given(trees(100), st.integers(1, 16))
def test_a_tree_that_grows_by_steps_is_the_tree_made_at_once(parents: list[int], step: int) -> None:
    sizes = Sizes.of(SPEC, io="bf16", rows=16, tail=128, max_pages=8)
    tensors = empty_tensors(TREE_BUILD, sizes)
    for start in range(0, len(parents), step):
        part = parents[start : start + step]
        tensors["parents"][: len(part)] = part
        tensors["control"][:3] = 7, len(part), start
        tensors, expected = run_both(TREE_BUILD, sizes, tensors)
        np.testing.assert_array_equal(tensors["ancestors"], expected["ancestors"])
    family: list[int] = []
    for node, parent in enumerate(parents):
        family.append((family[parent] if parent >= 0 else 0) | 1 << node)
    words = tensors["ancestors"][: len(parents)].view(np.uint32).tolist()
    assert [sum(word << 32 * i for i, word in enumerate(row)) for row in words] == family
