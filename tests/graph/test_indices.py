"""Masks and rows of trees against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from graph_runner import path_to
from hypothesis import given
from hypothesis import strategies as st

from edgellm.graph.indices import MASKED, attention_bias, commit_rows, tree_index


@st.composite
def trees(draw):
    size = draw(st.integers(1, 64))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


@given(parents=trees(), kernel=st.integers(2, 5))
def test_tree_index_follows_the_definition(parents, kernel):
    index = tree_index(parents, kernel)
    assert index.mask.dtype == np.float32
    assert index.conv.dtype == index.depths.dtype == np.int64
    for node in range(len(parents)):
        path = path_to(node, parents)
        assert index.depths[node] == len(path) - 1
        assert np.flatnonzero(index.mask[node] == 0).tolist() == path
        assert set(index.mask[node]) <= {np.float32(0), MASKED}
        rows = [*range(kernel - 1), *(kernel - 1 + ancestor for ancestor in path)]
        assert index.conv[node].tolist() == rows[-kernel:]
        assert commit_rows(path, kernel).tolist() == rows[-(kernel - 1) :]
        assert commit_rows(path, kernel).tolist() == index.conv[node, 1:].tolist()


@pytest.mark.parametrize("parents", [[], [0], [-1, 1], [-1, 0, -1], [-1, 0, 3], [-1, *range(64)]])
def test_what_is_not_a_tree_is_refused(parents):
    with pytest.raises(ValueError, match=r"node \d|1 to 64 nodes"):
        tree_index(parents, 4)


def test_attention_bias():
    mask = tree_index([-1, 0, 0], 4).mask
    bias = attention_bias(5, mask)
    assert bias.shape == (1, 1, 3, 8)
    assert not bias[..., :5].any()
    assert np.array_equal(bias[0, 0, :, 5:], mask)
