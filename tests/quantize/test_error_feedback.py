"""Error feedback: equal to the plain search without correlation, equal to GPTQ with it, and what it gains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgellm.models
from edgellm.checkpoint.nvfp4 import BLOCK, E2M1, E4M3, Nvfp4, pack
from edgellm.checkpoint.reader import Checkpoint
from edgellm.quantize.error_feedback import cholesky_in_place, compensate
from edgellm.quantize.rounding import round_to_nearest, to_e2m1
from edgellm.quantize.search import search_scales

EDGE_TINY = Path(edgellm.models.__file__).parent / "edge-tiny"
DAMPING = 0.1


def correlated(rng, count, columns, decay=0.5):
    """Inputs f32 [count, columns] whose spectrum falls with rank^-decay, in a random basis."""
    basis = np.linalg.qr(rng.standard_normal((columns, columns)))[0]
    mixing = basis * np.arange(1, columns + 1) ** -decay @ basis.T
    return (rng.standard_normal((count, columns)) @ mixing).astype(np.float32)


def gaussian(rng, shape):
    return (rng.standard_normal(shape) * 0.02).astype(np.float32)


def output_error(quantized, matrix, inputs):
    return np.square(inputs.astype(np.float64) @ (quantized.to_float32().astype(np.float64) - matrix).T).sum()


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-40, 40))
def test_without_correlation_it_is_the_search(seed, power):
    rng = np.random.default_rng(seed)
    matrix = gaussian(rng, (5, 48))
    variances = np.exp(rng.standard_normal(48))
    got = compensate(matrix, np.diag(np.ldexp(variances, power)), damping=DAMPING)
    importance = (variances + DAMPING * variances.mean()).astype(np.float32)
    wanted = search_scales(matrix, importance=importance)
    assert got.global_scale == wanted.global_scale
    assert np.array_equal(got.block_scales.view(np.uint8), wanted.block_scales.view(np.uint8))
    assert np.array_equal(got.packed, wanted.packed)


@given(seed=st.integers(0, 2**32 - 1))
def test_representable_matrices_come_back_exactly(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (4, 48), dtype=np.uint8)
    scales = rng.integers(1, 127, (4, 3), dtype=np.uint8).view(E4M3)
    matrix = Nvfp4(pack(codes), scales, np.float32(0.01)).to_float32()
    inputs = correlated(rng, 64, 48)
    assert np.array_equal(compensate(matrix, inputs.T @ inputs, global_scale=np.float32(0.01)).to_float32(), matrix)


def gptq(matrix, moments, quantized):
    """GPTQ as its paper writes it, with the inverse of the moments, for the scales of `quantized`; in float64."""
    columns = matrix.shape[1]
    damped = moments + DAMPING * np.diagonal(moments).mean() * np.eye(columns)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    rest, scales = matrix.astype(np.float64), quantized.scales()
    values = np.empty_like(matrix)
    for k in range(columns):
        scale = scales[:, k // BLOCK]
        values[:, k] = E2M1[to_e2m1((rest[:, k] / scale).astype(np.float32))] * scale
        rest[:, k + 1 :] -= np.outer((rest[:, k] - values[:, k]) / upper[k, k], upper[k, k + 1 :])
    return values


def test_it_is_gptq():
    """More columns than a panel. Rounding may move single values across a boundary, and what follows them."""
    rng = np.random.default_rng(0)
    matrix, inputs = gaussian(rng, (24, 336)), correlated(rng, 1000, 336).astype(np.float64)
    moments = inputs.T @ inputs / len(inputs)
    got = compensate(matrix, moments, damping=DAMPING)
    assert (got.to_float32() == gptq(matrix, moments, got)).mean() > 0.99


def test_pieces_of_rows_give_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    matrix, inputs = gaussian(rng, (80, 64)), correlated(rng, 500, 64)
    whole = compensate(matrix, inputs.T @ inputs)
    monkeypatch.setattr("edgellm.quantize.error_feedback._VALUES", 64 * 32)
    pieces = compensate(matrix, inputs.T @ inputs)
    assert (pieces.packed == whole.packed).mean() > 0.99  # a matrix product may round otherwise


def test_the_output_error_falls_on_inputs_not_seen_before():
    rng = np.random.default_rng(0)
    matrix, inputs = gaussian(rng, (256, 256)), correlated(rng, 4096, 256)
    seen, unseen = inputs[:2048], inputs[2048:]
    moments = seen.T @ seen / len(seen)
    nearest = output_error(round_to_nearest(matrix), matrix, unseen)
    plain = output_error(search_scales(matrix), matrix, unseen)
    weighted = output_error(search_scales(matrix, importance=np.diagonal(moments).copy()), matrix, unseen)
    got = output_error(compensate(matrix, moments), matrix, unseen)
    print(f"search {plain / nearest:.3f}, with importance {weighted / nearest:.3f}, feedback {got / nearest:.3f}")
    assert got <= 0.6 * min(plain, weighted)


def test_the_output_error_falls_on_the_first_layer_of_edge_tiny():
    """Its inputs are the normalised embeddings: the moments of half the vocabulary, judged on the other half."""
    checkpoint = Checkpoint.open(EDGE_TINY)
    inputs = checkpoint.weight("embed_tokens.weight").to_float32()
    inputs = inputs / np.sqrt(np.square(inputs).mean(-1, keepdims=True) + np.float32(1e-6))
    inputs *= 1 + checkpoint.tensor("layers.0.input_layernorm.weight").astype(np.float32)
    seen, unseen = inputs[0::2], inputs[1::2]
    for name in ("in_proj_qkv", "in_proj_z"):
        matrix = checkpoint.weight(f"layers.0.linear_attn.{name}.weight").to_float32()
        nearest, plain = (output_error(f(matrix), matrix, unseen) for f in (round_to_nearest, search_scales))
        got = output_error(compensate(matrix, seen.T @ seen), matrix, unseen)
        print(f"{name}: search {plain / nearest:.3f}, feedback {got / nearest:.3f}")
        assert got <= 0.8 * plain


@pytest.mark.parametrize(
    ("moments", "damping", "problem"),
    [
        (np.eye(16), 0.1, "\\[32, 32\\], not \\[16, 16\\]"),
        (np.full((32, 32), np.nan), 0.1, "NaN"),
        (np.zeros((32, 32)), 0.1, "no positive diagonal"),
        (np.eye(32) - 1, 0.1, "no positive diagonal"),
        (np.eye(32) * 3 - 1, 0.1, "not positive semidefinite"),
        (np.eye(32), 0.0, "damping"),
        (np.eye(32), np.nan, "damping"),
    ],
)
def test_bad_moments_are_refused(moments, damping, problem):
    with pytest.raises(ValueError, match=problem):
        compensate(np.ones((2, 32), np.float32), moments, damping=damping)


@pytest.mark.parametrize("size", [1, 63, 64, 200])
def test_the_factor_by_blocks(size):
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2 * size, size))
    matrix = x.T @ x
    found = np.tril(matrix)  # the upper triangle is not read
    cholesky_in_place(found, block=64)
    np.testing.assert_allclose(found, np.linalg.cholesky(matrix), atol=1e-10 * size)
    with pytest.raises(np.linalg.LinAlgError):
        cholesky_in_place(matrix - 2 * np.diag(np.diagonal(matrix)), block=64)
