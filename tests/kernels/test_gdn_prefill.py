from __future__ import annotations

import numpy as np
import pytest
from delta_inputs import OPERANDS, Sequential, assert_close, assert_rounded, delta_sizes, fill_operands
from kernel_parity import Arrays, needs_compiler, run_both

from edgellm.kernels import emulate
from edgellm.kernels.gdn import GDN_PREFILL, GDN_TREE_VERIFY
from edgellm.kernels.sizes import Io, Sizes
from edgellm.kernels.spec import empty_tensors

pytestmark = needs_compiler


def chunk(sizes: Sizes, seed: int, count: int) -> Arrays:
    rng = np.random.default_rng(seed)
    tensors = empty_tensors(GDN_PREFILL, sizes)
    fill_operands(tensors, rng, count)
    for name in ("state", "conv_state", "qkv"):
        tensors[name][...] = 0.3 * rng.standard_normal(tensors[name].shape)
    tensors["qkv"][count:] = np.nan
    return tensors


def check(sizes: Sizes, tensors: Arrays) -> Arrays:
    count = int(tensors["control"][1])
    made, expected = run_both(GDN_PREFILL, sizes, tensors)
    assert_close(made["state"], expected["state"])
    np.testing.assert_array_equal(made["conv_state"], expected["conv_state"])
    assert_rounded(made["y"][:count], expected["y"][:count], 5e-6)
    return made


@pytest.mark.parametrize(
    ("io", "rows", "heads", "counts"),
    [
        ("bf16", 70, (2, 4, 32), (70, 66, 1)),
        ("f16", 40, (1, 2, 64), (33, 2)),
        ("f32", 33, (1, 2, 32), (32, 17)),
        ("bf16", 36, (1, 1, 128), (35,)),
        ("f32", 20, (1, 1, 128), (20,)),
    ],
)
def test_types_shapes_and_counts(io: Io, rows: int, heads: tuple[int, int, int], counts: tuple[int, ...]) -> None:
    sizes = delta_sizes(io, rows, heads)
    for count in counts:
        check(sizes, chunk(sizes, count, count))


def test_no_token_changes_nothing() -> None:
    sizes = delta_sizes("bf16", 70)
    tensors = chunk(sizes, 1, 0)
    made = check(sizes, tensors)
    for name in ("state", "conv_state"):
        assert made[name].tobytes() == tensors[name].tobytes()


@pytest.mark.parametrize("io", ["bf16", "f32"])
def test_equal_keys_without_decay_over_a_thousand_tokens(io: Io) -> None:
    sizes = delta_sizes(io, 1024, (1, 1, 32))
    tensors = chunk(sizes, 2, 1024)
    tensors["k"][...] = tensors["k"][:1]
    tensors["beta"][...] = 1
    tensors["log_decay"][...] = 0
    truth = Sequential(tensors["state"])
    outputs = truth.chain(tensors, 1024)
    emulate.run(GDN_PREFILL, sizes, tensors)
    assert_close(tensors["state"], truth.state)
    assert_rounded(tensors["y"], outputs.astype(tensors["y"].dtype), 5e-6)


def test_decays_of_every_strength_in_one_chunk() -> None:
    sizes = delta_sizes("f32", 33, (1, 2, 32))
    tensors = chunk(sizes, 3, 33)
    tensors["log_decay"][...] = -0.01
    tensors["log_decay"][[0, 5]] = -700.3
    tensors["log_decay"][9] = -np.inf
    tensors["log_decay"][20:24] = -33.3
    check(sizes, tensors)


def test_two_chunks_are_one_and_nodes_one_by_one() -> None:
    sizes = delta_sizes("bf16", 70)
    whole = chunk(sizes, 4, 70)
    parts = {name: values.copy() for name, values in whole.items()}
    truth = Sequential(whole["state"])
    single = delta_sizes("bf16", 1, capsule=16)
    steps = {**empty_tensors(GDN_TREE_VERIFY, single), "state": whole["state"].copy()}
    truth.chain(whole, 70)
    emulate.run(GDN_PREFILL, sizes, whole)
    outputs = []
    for start, end in ((0, 41), (41, 70)):
        for name in (*OPERANDS, "qkv"):
            parts[name][...] = np.nan
            parts[name][: end - start] = whole[name][start:end]
        parts["control"][1] = end - start
        emulate.run(GDN_PREFILL, sizes, parts)
        outputs.append(parts["y"][: end - start].copy())
    np.testing.assert_array_equal(parts["conv_state"], whole["conv_state"])
    steps["control"][1], steps["ancestors"][0] = 1, 1
    for token in range(71):  # the last one only commits the one before
        for name in OPERANDS:
            steps[name][0] = whole[name][min(token, 69)]
        emulate.run(GDN_TREE_VERIFY, single, steps)
        if token < 70:
            assert_rounded(steps["y"][0], whole["y"][token], 1e-5)
        for part in ("k", "u", "g"):
            steps[f"cap_{part}"], steps[f"new_cap_{part}"] = steps[f"new_cap_{part}"], steps[f"cap_{part}"]
        steps["accepted"][:] = 1, 0
    for way in (whole, parts, steps):
        assert_close(way["state"], truth.state)
    assert_rounded(np.concatenate(outputs), whole["y"], 1e-5)
