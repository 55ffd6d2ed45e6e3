"""The search of block scales: never worse than rounding to nearest, exact where it can be, and how much it gains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgellm.models
from edgellm.checkpoint.nvfp4 import BLOCK, E2M1, E4M3, Nvfp4, pack
from edgellm.checkpoint.reader import Checkpoint
from edgellm.quantize.rounding import encode, round_to_nearest
from edgellm.quantize.search import search_scales

EDGE_TINY = Path(edgellm.models.__file__).parent / "edge-tiny"
SLACK = 1 + 1e-5  # sums of squares in float32


def gaussian(rng, shape):
    return (rng.standard_normal(shape) * 0.02).astype(np.float32)


def student_t(rng, shape):
    return (rng.standard_t(4, shape) * 0.02).astype(np.float32)


def outliers(rng, shape):
    return gaussian(rng, shape) * np.where(rng.random(shape) < 1e-3, np.float32(20), np.float32(1))


def uniform(rng, shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def wide(rng, shape):
    """Blocks whose scales cover all of E4M3 and go below it; some are zero."""
    matrix = rng.standard_normal(shape).reshape(shape[0], -1, BLOCK)
    powers = rng.integers(-28, 1, matrix.shape[:2])
    matrix = np.ldexp(matrix, np.broadcast_to(powers[..., None], matrix.shape))
    matrix[rng.random(matrix.shape[:2]) < 0.1] = 0
    return matrix.reshape(shape).astype(np.float32)


KINDS = [gaussian, student_t, outliers, uniform, wide]


def block_errors(matrix, quantized, importance=1.0):
    error = (quantized.to_float32().astype(np.float64) - matrix) ** 2 * importance
    return error.reshape(len(matrix), -1, BLOCK).sum(-1)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-80, 100), weigh=st.booleans(), given_scale=st.booleans())
def test_no_block_is_worse_than_round_to_nearest(kind, seed, power, weigh, given_scale):
    rng = np.random.default_rng(seed)
    matrix = np.ldexp(kind(rng, (3, 80)), power)
    importance = np.exp(rng.standard_normal(80) * 3).astype(np.float32) if weigh else None
    scale = None
    if given_scale:  # from one at which almost all blocks are clipped to one at which almost all are subnormal
        scale = np.float32(np.abs(matrix).max() / 2688 * 2.0 ** rng.uniform(-4, 14) + 2.0**-116)
    weights = 1.0 if importance is None else importance.astype(np.float64)
    got = block_errors(matrix, search_scales(matrix, importance=importance, global_scale=scale), weights)
    assert (got <= block_errors(matrix, round_to_nearest(matrix, scale), weights) * SLACK).all()


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-80, 80))
def test_representable_matrices_come_back_exactly(seed, power):
    rng = np.random.default_rng(seed)
    scale = np.float32(np.ldexp(rng.uniform(1, 2), power))
    codes = rng.integers(1, 127, (4, 6), dtype=np.uint8)
    largest = rng.integers(1, 9, (4, 6, 1))  # so that the largest magnitude of a block is often below 6
    drawn = rng.integers(0, largest, (4, 6, BLOCK)) | rng.integers(0, 2, (4, 6, BLOCK)) << 3
    matrix = Nvfp4(pack(drawn.reshape(4, -1).astype(np.uint8)), codes.view(E4M3), scale).to_float32()
    assert np.array_equal(search_scales(matrix, global_scale=scale).to_float32(), matrix)


def test_every_block_scale_with_every_largest_magnitude_is_found():
    """All 126 block scales, each with blocks of all magnitudes up to 0.5, 1, ..., 6."""
    magnitudes = np.arange(BLOCK)[None] % np.arange(2, 9)[:, None]
    codes = np.tile(pack(magnitudes.astype(np.uint8)).reshape(1, -1), (126, 1))
    scales = np.repeat(np.arange(1, 127, dtype=np.uint8)[:, None], 7, axis=1).view(E4M3)
    for scale in (1.0, 1.7e-4, 3.3e3):
        matrix = Nvfp4(codes, scales, np.float32(scale)).to_float32()
        assert np.array_equal(search_scales(matrix, global_scale=np.float32(scale)).to_float32(), matrix)
        ones = np.ones(matrix.shape[1], np.float32)
        found = search_scales(matrix, importance=ones, global_scale=np.float32(scale))
        assert np.array_equal(found.to_float32(), matrix)


@pytest.mark.parametrize(
    ("kind", "spread", "bound"), [(k, 0, 1.0001) for k in KINDS] + [(student_t, 2, 1.002), (student_t, 4, 1.01)]
)
def test_close_to_the_best_of_all_block_scales(kind, spread, bound):
    rng = np.random.default_rng(1)
    matrix = kind(rng, (32, 512))
    importance = np.exp(rng.standard_normal(512) * spread).astype(np.float32)
    got = search_scales(matrix, importance=importance if spread else None)
    least = np.full(got.block_scales.shape, np.inf)
    for code in range(1, 127):
        scales = np.full(got.block_scales.shape, code, np.uint8).view(E4M3)
        np.minimum(least, block_errors(matrix, encode(matrix, scales, got.global_scale), importance), out=least)
    assert block_errors(matrix, got, importance).sum() <= least.sum() * bound


@pytest.mark.parametrize("kind", [gaussian, student_t, outliers, uniform])
def test_the_error_is_at_most_nine_tenths_on_samples(kind):
    matrix = kind(np.random.default_rng(0), (256, 1024))
    ratio = block_errors(matrix, search_scales(matrix)).sum() / block_errors(matrix, round_to_nearest(matrix)).sum()
    print(f"{kind.__name__}: {ratio:.4f}")
    assert ratio <= 0.9


def test_the_error_is_at_most_nine_tenths_on_edge_tiny():
    checkpoint = Checkpoint.open(EDGE_TINY)
    ratios = {}
    for name in checkpoint.names:
        if (".mlp." not in name and "_attn." not in name) or checkpoint.tensor(name).ndim != 2:
            continue
        matrix = checkpoint.weight(name).to_float32()
        if matrix.shape[1] % BLOCK == 0:
            before, after = round_to_nearest(matrix), search_scales(matrix)
            ratios[name] = block_errors(matrix, after).sum() / block_errors(matrix, before).sum()
    print(f"edge-tiny: {min(ratios.values()):.4f} to {max(ratios.values()):.4f} over {len(ratios)} matrices")
    assert len(ratios) > 50
    assert max(ratios.values()) <= 0.9


def test_importance_moves_the_error_to_where_it_counts_least():
    rng = np.random.default_rng(0)
    matrix = gaussian(rng, (128, 512))
    importance = np.exp(rng.standard_normal(512) * 2).astype(np.float32)
    weighted = block_errors(matrix, search_scales(matrix, importance=importance), importance).sum()
    plain = block_errors(matrix, search_scales(matrix), importance).sum()
    print(f"weighted error with importance: {weighted / plain:.4f} of the one without")
    assert weighted <= 0.8 * plain


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-120, 120))
def test_only_the_ratios_of_importance_in_a_block_count(seed, power):
    rng = np.random.default_rng(seed)
    matrix = gaussian(rng, (3, 64))
    importance = rng.random(64).astype(np.float32)
    importance[16:32] = 0  # counts as all equal
    other = np.ldexp(importance, power)
    other[16:32] = 1
    one, two = (search_scales(matrix, importance=weights) for weights in (importance, other))
    assert np.array_equal(one.packed, two.packed)
    assert np.array_equal(one.block_scales.view(np.uint8), two.block_scales.view(np.uint8))


@pytest.mark.parametrize("weigh", [False, True])
def test_rows_do_not_depend_on_each_other_or_on_the_layout(weigh):
    """A given global scale makes a fused matrix the same bytes as its parts, whatever the pieces were."""
    rng = np.random.default_rng(0)
    matrix = student_t(rng, (40, 4096))
    importance = rng.random(4096).astype(np.float32) if weigh else None
    whole = search_scales(matrix, importance=importance)
    turned = search_scales(np.asfortranarray(matrix), importance=importance)
    assert np.array_equal(turned.packed, whole.packed)
    for rows in (slice(0, 13), slice(13, 40)):
        part = search_scales(matrix[rows], importance=importance, global_scale=whole.global_scale)
        assert np.array_equal(part.packed, whole.packed[rows])
        assert np.array_equal(part.block_scales.view(np.uint8), whole.block_scales[rows].view(np.uint8))


def test_the_default_global_scale_leaves_room_where_that_is_exact():
    matrix = gaussian(np.random.default_rng(0), (8, 64))
    assert search_scales(matrix).global_scale == 2 * round_to_nearest(matrix).global_scale
    matrix[3, 16:32] = matrix.max() / 2**15
    assert search_scales(matrix).global_scale == round_to_nearest(matrix).global_scale


@pytest.mark.parametrize("shape", [(3, 32), (0, 16), (2, 0)])
def test_zero_and_empty_matrices_are_found_exact(shape):
    got = search_scales(np.zeros(shape, np.float32), importance=np.ones(shape[1], np.float32))
    assert got.shape == shape
    assert got.global_scale > 0
    assert not got.packed.any()
    assert (got.block_scales.astype(np.float32) == 1).all()


@pytest.mark.parametrize("largest", [1e-45, 1e-38, 2.0**127])
def test_extreme_magnitudes_stay_finite(largest):
    rng = np.random.default_rng(0)
    matrix = (rng.uniform(-1, 1, (4, 32)) * largest).astype(np.float32)
    matrix[0, 0] = largest
    assert np.isfinite(search_scales(matrix).to_float32()).all()


def test_codes_cover_the_whole_format():
    """An optimum that used only part of the codes would point to a wrong table."""
    used = np.unique(E2M1[np.unique(search_scales(uniform(np.random.default_rng(0), (64, 64))).packed & 15)])
    assert len(used) == 15  # ±0 are one value


@pytest.mark.parametrize(
    ("importance", "problem"),
    [
        (np.ones(16, np.float32), "float32 \\[32\\]"),
        (np.ones((1, 32), np.float32), "float32 \\[32\\]"),
        (np.ones(32), "not float64"),
        (np.full(32, -1, np.float32), "below 0"),
        (np.full(32, np.nan, np.float32), "NaN"),
        (np.full(32, np.inf, np.float32), "infinity"),
    ],
)
def test_bad_importance_is_refused(importance, problem):
    with pytest.raises(ValueError, match=problem):
        search_scales(np.ones((2, 32), np.float32), importance=importance)


@pytest.mark.parametrize(
    ("matrix", "scale", "problem"),
    [
        (np.ones((2, 24), np.float32), None, "24 columns"),
        (np.full((2, 16), np.nan, np.float32), None, "NaN"),
        (np.ones((2, 16), np.float32), np.float32(0), "global scale"),
        (np.ones((2, 16), np.float32), np.float32(np.nan), "global scale"),
    ],
)
def test_bad_matrices_and_scales_are_refused(matrix, scale, problem):
    with pytest.raises(ValueError, match=problem):
        search_scales(matrix, global_scale=scale)
