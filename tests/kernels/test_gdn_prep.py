from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from delta_inputs import CHAIN, OPERANDS, accept, assert_close, assert_rounded, delta_sizes, fill_raw, random_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_parity import Arrays, needs_compiler, run_both

from edgellm.errors import ConfigError
from edgellm.kernels import emulate
from edgellm.kernels.gdn import GDN_COMMIT, GDN_PREFILL, GDN_PREP, GDN_PREP_CHAIN, GDN_TREE_VERIFY
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.source import definitions
from edgellm.kernels.spec import Kernel, empty_tensors

pytestmark = needs_compiler


def check_operands(made: Arrays, expected: Arrays, count: int) -> None:
    for name in ("q", "k", "v"):
        assert_rounded(made[name][:count], expected[name][:count])
    for name in ("log_decay", "beta"):
        np.testing.assert_allclose(made[name][:count], expected[name][:count], rtol=2e-6, atol=1e-7)


def step(sizes: Sizes, seed: int, parents: list[int], nodes: int, last: int) -> Arrays:
    """A step after one of `nodes` nodes, of which those up to `last` were accepted (-1: none)."""
    rng = np.random.default_rng(seed)
    tensors = empty_tensors(GDN_PREP, sizes)
    fill_raw(tensors, rng, len(parents))
    tensors["parents"][: len(parents)] = parents
    tensors["cap_c"][...] = rng.standard_normal(tensors["cap_c"].shape)
    accept(tensors, random_tree(rng, nodes), last)
    return tensors


def check_step(sizes: Sizes, tensors: Arrays, count: int) -> None:
    made, expected = run_both(GDN_PREP, sizes, tensors)
    check_operands(made, expected, count)
    np.testing.assert_array_equal(made["conv_state"], expected["conv_state"])
    np.testing.assert_array_equal(made["cap_c"][:count], expected["cap_c"][:count])
    assert made["cap_c"][sizes.rows :].tobytes() == tensors["cap_c"][sizes.rows :].tobytes()


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(0, 99), st.integers(0, 16), st.integers(1, 20))
def test_a_step_after_any_step(data: st.DataObject, seed: int, count: int, nodes: int) -> None:
    parents = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, count))][:count]
    last = data.draw(st.integers(-1, nodes - 1))
    sizes = delta_sizes("bf16", 16, capsule=20)
    check_step(sizes, step(sizes, seed, parents, nodes, last), count)


@pytest.mark.parametrize(
    ("io", "rows", "heads", "count"),
    [("f32", 5, (4, 8, 32), 4), ("f16", 1, (2, 4, 32), 1), ("bf16", 16, (1, 3, 128), 13)],
)
def test_types_and_shapes(io: Io, rows: int, heads: tuple[int, int, int], count: int) -> None:
    sizes = delta_sizes(io, rows, heads, capsule=32)
    check_step(sizes, step(sizes, 1, random_tree(np.random.default_rng(2), count), 32, 31), count)


def test_heads_of_unequal_width_and_another_kernel() -> None:
    sizes = dataclasses.replace(delta_sizes("bf16", 7, (2, 2, 32)), value_dim=64, conv_kernel=2)
    check_step(sizes, step(sizes, 3, [-1, 0, 0, 1, 2], 7, 6), 5)


def test_rows_of_zeros_and_large_gates() -> None:
    sizes = delta_sizes("f32", 5, (4, 8, 32), capsule=32)
    tensors = step(sizes, 1, [-1, 0], 4, -1)
    tensors["qkv"][:2] = tensors["conv_state"][...] = 0
    for name in ("a", "b"):
        tensors[name][:2] = np.array([[-200], [200]])
    tensors["dt_bias"][...] = 0
    made, expected = run_both(GDN_PREP, sizes, tensors)
    check_operands(made, expected, 2)
    assert not made["k"][:2].any()


@pytest.mark.parametrize(("io", "heads", "count"), [("bf16", (2, 4, 32), 66), ("f16", (1, 2, 128), 2)])
def test_a_chunk(io: Io, heads: tuple[int, int, int], count: int) -> None:
    sizes = delta_sizes(io, 70, heads)
    tensors = empty_tensors(GDN_PREP_CHAIN, sizes)
    fill_raw(tensors, np.random.default_rng(4), count)
    check_operands(*run_both(GDN_PREP_CHAIN, sizes, tensors), count)


def test_a_chunk_is_a_tree_without_branches() -> None:
    sizes = delta_sizes("bf16", 16, capsule=20)
    tree = step(sizes, 5, list(CHAIN[:16]), 1, -1)
    chunk = {**empty_tensors(GDN_PREP_CHAIN, sizes), **{name: tree[name].copy() for name in tree if name != "parents"}}
    emulate.run(GDN_PREP, sizes, tree)
    emulate.run(GDN_PREP_CHAIN, sizes, chunk)
    for name in OPERANDS:
        assert_close(tree[name], chunk[name], 0)


def test_rows_committed_late_are_rows_committed_at_once() -> None:
    sizes = delta_sizes("bf16", 16, capsule=20)
    late = step(sizes, 6, [-1, 0, 1, 1], 16, 15)
    at_once = {name: values.copy() for name, values in late.items()}
    emulate.run(GDN_PREP, sizes, late)
    commit = empty_tensors(GDN_COMMIT, sizes)
    commit["accepted"][...] = at_once["accepted"]
    for name in ("conv_state", "cap_c"):
        commit[name][0] = at_once[name]
    emulate.run(GDN_COMMIT, sizes, commit)
    np.testing.assert_array_equal(commit["conv_state"][0], late["conv_state"])
    at_once["conv_state"][...] = commit["conv_state"][0]
    at_once["accepted"][...] = 0
    emulate.run(GDN_PREP, sizes, at_once)
    for name in ("conv_state", *OPERANDS):
        np.testing.assert_array_equal(at_once[name][:4], late[name][:4])


@pytest.mark.parametrize(
    ("kernel", "change", "reason"),
    [
        (GDN_PREP, {"key_dim": 48}, "heads of 48 x 32"),
        (GDN_PREFILL, {"value_dim": 256}, "heads of 32 x 256"),
        (GDN_PREP_CHAIN, {"value_heads": 3}, "3 value heads"),
        (GDN_PREP_CHAIN, {"conv_kernel": 9}, "9 taps"),
        (GDN_COMMIT, {"capsule": 33}, "capsule of 33"),
        (GDN_TREE_VERIFY, {"rows": 17, "tail": 17, "capsule": 32}, "trees of 17"),
        (GDN_TREE_VERIFY, {"tail": 128}, "tail of 128"),
        (GDN_PREP, {"capsule": 8}, "capsule of 8"),
    ],
)
def test_what_a_kernel_cannot_do_it_refuses(kernel: Kernel, change: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        definitions(kernel, dataclasses.replace(delta_sizes("bf16", 16), **change))
