"""Rounding to nearest: E2M1 codes against ml_dtypes, and ModelOpt's recipe against its formulas and edge cases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgellm.checkpoint.nvfp4 import BLOCK, E2M1, E4M3, unpack
from edgellm.quantize.rounding import checked_amax, global_scale_of, round_magnitudes, round_to_nearest, to_e2m1

HALFWAY = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
SMALLEST = np.float32(2.0**-116)


def normal(seed, shape, power=0):
    return np.ldexp(np.random.default_rng(seed).standard_normal(shape), power).astype(np.float32)


@given(hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False)))
def test_codes_are_those_of_ml_dtypes(x):
    wanted = np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(to_e2m1(x), wanted)


def test_codes_beside_every_boundary():
    """The neighbourhood of each point where the code changes, and the extremes of float32."""
    points = np.array([*HALFWAY, *E2M1[:8], 1e-45, 1e-38, 3.4e38, np.inf], np.float32)
    near = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    both = np.concatenate([near, -near])
    assert np.array_equal(to_e2m1(both), np.clip(both, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def test_ties_clipping_and_the_sign_of_zero():
    assert to_e2m1(np.array(HALFWAY, np.float32)).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert to_e2m1(np.array([6, 7, 1e30, -7, 0, -0.0, -0.1], np.float32)).tolist() == [7, 7, 7, 15, 0, 8, 8]


@given(st.integers(0, 2**32 - 1), st.sampled_from([(), (0,), (3,), (2, 16), (2, 3, 4)]))
def test_codes_keep_the_shape_and_leave_the_input_alone(seed, shape):
    x = np.asarray(normal(seed, shape, 1), np.float32)
    before = x.copy()
    codes = to_e2m1(x)
    assert codes.shape == shape
    assert codes.dtype == np.uint8
    assert np.array_equal(x, before)
    assert np.array_equal(E2M1[codes], np.copysign(round_magnitudes(np.abs(before.reshape(-1))).reshape(shape), before))


def test_nan_has_no_code():
    with pytest.raises(ValueError, match="NaN"):
        to_e2m1(np.array([1, np.nan], np.float32))


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 9), power=st.integers(-100, 110))
def test_the_recipe_of_modelopt(seed, rows, blocks, power):
    """Its formulas, written out with the scalar conversions of ml_dtypes."""
    matrix = normal(seed, (rows, blocks * BLOCK), power)
    got = round_to_nearest(matrix)
    scale = np.abs(matrix).max() / np.float32(6 * 448)
    amax = np.abs(matrix).reshape(rows, blocks, BLOCK).max(-1)
    block_scales = (amax / (np.float32(6) * scale)).astype(E4M3)
    ratios = matrix / np.repeat(block_scales.astype(np.float32) * scale, BLOCK, axis=1)
    assert got.global_scale == scale
    assert got.global_scale.dtype == np.float32
    assert np.array_equal(got.block_scales.view(np.uint8), block_scales.view(np.uint8))
    wanted = np.clip(ratios, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(unpack(got.packed), wanted)


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-100, 110))
def test_the_error_of_a_value_is_at_most_half_a_step(seed, power):
    """Half the gap from 4 to 6 is one scale; a block scale rounded down by up to 1/17 clips up to 6/16 of a scale."""
    matrix = normal(seed, (4, 64), power)
    got = round_to_nearest(matrix)
    assert (np.abs(got.to_float32() - matrix) <= np.repeat(got.scales(), BLOCK, axis=1) * np.float32(1.0001)).all()


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-60, 60))
def test_a_power_of_two_passes_through(seed, power):
    matrix = normal(seed, (3, 48))
    one, other = round_to_nearest(matrix), round_to_nearest(np.ldexp(matrix, power))
    assert np.array_equal(one.packed, other.packed)
    assert np.array_equal(one.block_scales.view(np.uint8), other.block_scales.view(np.uint8))
    assert other.global_scale == np.ldexp(one.global_scale, power)


@given(seed=st.integers(0, 2**32 - 1))
def test_rows_do_not_depend_on_each_other_when_the_scale_is_given(seed):
    matrix = normal(seed, (5, 32))
    whole = round_to_nearest(matrix, global_scale_of(checked_amax(matrix)))
    assert np.array_equal(whole.packed, round_to_nearest(matrix).packed)
    part = round_to_nearest(matrix[2:4], whole.global_scale)
    assert np.array_equal(part.packed, whole.packed[2:4])
    assert np.array_equal(part.block_scales.view(np.uint8), whole.block_scales.view(np.uint8)[2:4])


def test_pieces_of_a_large_matrix_make_up_the_whole():
    matrix = normal(0, (70, 4096))
    whole = round_to_nearest(matrix)
    rows = [round_to_nearest(matrix[row : row + 1], whole.global_scale).packed for row in range(len(matrix))]
    assert np.array_equal(whole.packed, np.concatenate(rows))


@pytest.mark.parametrize("shape", [(3, 32), (0, 16), (2, 0)])
def test_zero_and_empty_matrices(shape):
    got = round_to_nearest(np.zeros(shape, np.float32))
    assert got.shape == shape
    assert got.global_scale > 0
    assert not got.packed.any()
    assert (got.block_scales.astype(np.float32) == 1).all()


def test_zero_blocks_have_scale_1_and_tiny_ones_the_smallest():
    matrix = np.zeros((1, 64), np.float32)
    matrix[0, 0], matrix[0, 16], matrix[0, 32] = 2688, 1e-6, 6 * 2.0**-10
    got = round_to_nearest(matrix)
    assert got.block_scales.astype(np.float32).tolist() == [[448, 2.0**-9, 2.0**-9, 1]]
    assert got.to_float32()[0, [0, 16, 32]].tolist() == [2688, 0, 6 * 2.0**-10]


def test_a_given_scale_that_is_too_small_clips():
    matrix = np.zeros((1, 16), np.float32)
    matrix[0, :2] = 5000, -9000
    got = round_to_nearest(matrix, np.float32(1))
    assert got.to_float32()[0, :2].tolist() == [2688, -2688]


@pytest.mark.parametrize("largest", [1e-45, 1e-38, float(SMALLEST), 2.0**127])
def test_extreme_magnitudes_stay_finite(largest):
    matrix = np.full((2, 32), largest, np.float32)
    matrix[1, 16:] = largest * 0.51
    got = round_to_nearest(matrix)
    assert got.global_scale >= SMALLEST
    assert np.isfinite(got.to_float32()).all()
    assert np.abs(got.to_float32() - matrix).max() <= max(largest / 6, 6 * 2.0**-10 * SMALLEST)


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [
        (np.zeros((2, 24), np.float32), "24 columns"),
        (np.zeros(16, np.float32), "2 dimensions, not 1"),
        (np.zeros((1, 1, 16), np.float32), "2 dimensions, not 3"),
        (np.zeros((2, 16)), "float32, not float64"),
        (np.full((2, 16), np.nan, np.float32), "NaN"),
        (np.full((2, 16), -np.inf, np.float32), "infinity"),
        (np.full((2, 16), 3e38, np.float32), "above 2\\^127"),
    ],
)
def test_bad_matrices_are_refused(matrix, problem):
    with pytest.raises(ValueError, match=problem):
        round_to_nearest(matrix)


@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf, 1e-45, 1e38])
def test_bad_global_scales_are_refused(scale):
    with pytest.raises(ValueError, match="global scale"):
        round_to_nearest(np.ones((1, 16), np.float32), np.float32(scale))
