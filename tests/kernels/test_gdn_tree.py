from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delta_inputs import (
    CHAIN,
    Sequential,
    accept,
    assert_close,
    assert_rounded,
    delta_sizes,
    family,
    random_tree,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import Arrays, needs_compiler, run_both
from numpy.typing import NDArray

from edgellm.kernels import emulate
from edgellm.kernels.gdn import GDN_COMMIT, GDN_TREE_VERIFY
from edgellm.kernels.inputs import fill_capsule, fill_tree
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.spec import empty_tensors

pytestmark = needs_compiler
CAPSULE = ("k", "u", "g")


def check_step(sizes: Sizes, tensors: Arrays, count: int) -> Arrays:
    made, expected = run_both(GDN_TREE_VERIFY, sizes, tensors)
    assert_close(made["state"], expected["state"], 2e-6)
    assert_rounded(made["y"][:count], expected["y"][:count])
    for part, limit in (("k", 0.0), ("u", 5e-6), ("g", 2e-6)):
        name = f"new_cap_{part}"
        assert_close(made[name][:count], expected[name][:count], limit)
        assert made[name][sizes.rows :].tobytes() == tensors[name][sizes.rows :].tobytes()
    return made


@settings(deadline=None, max_examples=20)
@given(st.data(), st.integers(0, 99), st.integers(0, 16), st.integers(1, 20), st.sampled_from([0.0, 1.0, 100.0]))
def test_a_step_after_any_step(data: st.DataObject, seed: int, count: int, nodes: int, alike: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = delta_sizes("bf16", 16, (1, 2, 32), capsule=20)
    tensors = empty_tensors(GDN_TREE_VERIFY, sizes)
    parents = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, count))][:count]
    fill_tree(tensors, rng, parents, alike)
    fill_capsule(tensors, rng)
    accept(tensors, random_tree(rng, nodes), data.draw(st.integers(-1, nodes - 1)))
    tensors["state"][...] = 0.3 * rng.standard_normal(tensors["state"].shape)
    check_step(sizes, tensors, count)


@pytest.mark.parametrize(
    ("io", "rows", "heads", "count"),
    [
        ("f32", 16, (2, 4, 32), 13),
        ("f16", 5, (1, 1, 64), 3),
        ("bf16", 1, (4, 8, 32), 1),
        ("bf16", 16, (1, 3, 128), 16),
    ],
)
def test_types_and_shapes(io: Io, rows: int, heads: tuple[int, int, int], count: int) -> None:
    rng = np.random.default_rng(1)
    sizes = delta_sizes(io, rows, heads, capsule=32)
    tensors = empty_tensors(GDN_TREE_VERIFY, sizes)
    fill_tree(tensors, rng, random_tree(rng, count))
    fill_capsule(tensors, rng)
    accept(tensors, CHAIN, 31)  # more nodes than the kernel takes at a time
    tensors["state"][...] = 0.3 * rng.standard_normal(tensors["state"].shape)
    check_step(sizes, tensors, count)


def test_nothing_accepted_leaves_the_state_alone() -> None:
    rng = np.random.default_rng(2)
    sizes = delta_sizes("bf16", 16, (1, 2, 32), capsule=20)
    tensors = empty_tensors(GDN_TREE_VERIFY, sizes)
    fill_tree(tensors, rng, random_tree(rng, 4))
    accept(tensors, [-1], -1)
    tensors["state"][...] = rng.standard_normal(tensors["state"].shape)
    made = check_step(sizes, tensors, 4)
    assert made["state"].tobytes() == tensors["state"].tobytes()


def test_equal_keys_without_decay_and_strong_decay() -> None:
    rng = np.random.default_rng(3)
    sizes = delta_sizes("f32", 16, capsule=32)
    tensors = empty_tensors(GDN_TREE_VERIFY, sizes)
    fill_tree(tensors, rng, list(CHAIN[:16]))
    accept(tensors, [-1], -1)
    tensors["state"][...] = 0.3 * rng.standard_normal(tensors["state"].shape)
    tensors["k"][...] = tensors["k"][:1]
    tensors["beta"][...] = 1
    tensors["log_decay"][...] = 0
    check_step(sizes, tensors, 16)
    tensors["log_decay"][::3] = -60
    check_step(sizes, tensors, 16)


def commit(sizes: Sizes, state: NDArray[Any], capsule: Arrays, accepted: NDArray[Any]) -> NDArray[Any]:
    """The state after gdn_commit of one layer."""
    tensors = empty_tensors(GDN_COMMIT, sizes)
    tensors["accepted"][...] = accepted
    tensors["state"][0] = state
    for part in CAPSULE:
        tensors[f"cap_{part}"][0] = capsule[f"cap_{part}"]
    emulate.run(GDN_COMMIT, sizes, tensors)
    committed: NDArray[Any] = tensors["state"][0]
    return committed


@pytest.mark.parametrize("alike", [1.0, 100.0])
def test_chained_steps_commit_late_or_at_once_and_follow_the_definition(alike: float) -> None:
    rng = np.random.default_rng(4)
    wide, narrow = (delta_sizes("bf16", rows, (4, 8, 32), capsule=32) for rows in (16, 1))
    late = empty_tensors(GDN_TREE_VERIFY, wide)
    late["state"][...] = 0.3 * rng.standard_normal(late["state"].shape)
    truth = Sequential(late["state"])
    for sizes, count, last in ((wide, 16, 11), (narrow, 1, 0), (wide, 9, 8), (wide, 16, -1), (wide, 16, 15)):
        tensors = {**empty_tensors(GDN_TREE_VERIFY, sizes), "state": late["state"], "accepted": late["accepted"]}
        tensors.update({f"cap_{part}": late[f"cap_{part}"] for part in CAPSULE})
        parents = random_tree(rng, count)
        fill_tree(tensors, rng, parents, alike)
        at_once = {name: values.copy() for name, values in tensors.items()}
        at_once["state"][...] = commit(wide, at_once["state"], at_once, at_once["accepted"])
        at_once["accepted"][...] = 0
        assert_close(at_once["state"], truth.state)
        for way in (tensors, at_once):
            emulate.run(GDN_TREE_VERIFY, sizes, way)
        for name in ("state", "y", *(f"new_cap_{part}" for part in CAPSULE)):
            np.testing.assert_array_equal(tensors[name], at_once[name])
        states, outputs = truth.tree(tensors, parents)
        assert_rounded(tensors["y"][:count], outputs.astype(tensors["y"].dtype), 1e-5)
        for part in CAPSULE:  # buffers in turn
            tensors[f"cap_{part}"] = tensors[f"new_cap_{part}"]
        accept(tensors, parents, last)
        truth.state = states[last] if last >= 0 else truth.state
        late = tensors
    assert_close(commit(wide, late["state"], late, late["accepted"]), truth.state)


@pytest.mark.parametrize(("io", "heads", "last"), [("bf16", (2, 4, 32), 5), ("f16", (1, 3, 128), -1)])
def test_commit_of_all_layers(io: Io, heads: tuple[int, int, int], last: int) -> None:
    rng = np.random.default_rng(5)
    sizes = delta_sizes(io, 16, heads, layers=2)
    tensors = empty_tensors(GDN_COMMIT, sizes)
    fill_capsule(tensors, rng)
    for name in ("state", "conv_state", "cap_c"):
        tensors[name][...] = rng.standard_normal(tensors[name].shape)
    parents = random_tree(rng, 16)
    for node in (last, 1, 15):  # node 1: rows of the old state stay
        tensors["accepted"][:] = family(parents)[node] if node >= 0 else 0, node
        made, expected = run_both(GDN_COMMIT, sizes, tensors)
        assert_close(made["state"], expected["state"], 2e-6)
        np.testing.assert_array_equal(made["conv_state"], expected["conv_state"])
        assert node >= 0 or made["state"].tobytes() == tensors["state"].tobytes()
