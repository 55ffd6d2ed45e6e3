"""Stored forms of matrices: error bounds, exactness, and agreement with the kernels that read them."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgellm.checkpoint.nvfp4 import E2M1, Nvfp4, pack
from edgellm.errors import ConfigError
from edgellm.graph.encodings import BlockFormat, WeightFormat, nvfp4_exact

FORMATS = [BlockFormat(bits, block) for bits in (4, 8) for block in (16, 32, 128)]


@pytest.mark.parametrize("form", FORMATS, ids=str)
@given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 300), power=st.integers(-30, 30))
def test_rounding_error_is_at_most_half_a_step(form, seed, columns, power):
    rng = np.random.default_rng(seed)
    matrix = np.ldexp(rng.standard_normal((3, columns)), power).astype(np.float32)
    codes, scales = form.encode(matrix)
    assert codes.shape == form.codes_shape(3, columns)
    assert scales.shape == (3, form.blocks(columns))
    step = np.repeat(np.abs(scales), form.block, axis=1)[:, :columns]
    # The largest 4-bit code is +7 though -8 exists: a value may be clipped by up to one step.
    slack = 0.5 if form.bits == 8 else 1.0
    assert (np.abs(form.decode(codes, scales, columns) - matrix) <= step * (slack + 1e-3)).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_zero_and_extreme_blocks(form):
    matrix = np.zeros((2, 3 * form.block), np.float32)
    matrix[0, : form.block] = np.float32(3e38)
    matrix[1, form.block : 2 * form.block] = np.float32(1e-45)
    codes, scales = form.encode(matrix)
    back = form.decode(codes, scales, matrix.shape[1])
    assert np.isfinite(back).all()
    assert np.abs(back[0] - matrix[0]).max() <= 3e38 * 1e-6
    assert np.abs(back[1]).max() <= 1e-44


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("columns", [256, 80])
def test_the_kernels_read_what_decode_says(form, columns):
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((24, columns)).astype(np.float32)
    x = rng.standard_normal((5, columns)).astype(np.float32)
    codes, scales = form.encode(matrix)
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft",
        K=columns, N=24, bits=form.bits, block_size=form.block, accuracy_level=0,
    )  # fmt: skip
    got = run(node, {"x": x}, {"q": codes, "s": scales})
    np.testing.assert_allclose(got, x @ form.decode(codes, scales, columns).T, atol=1e-4)


def test_nvfp4_is_stored_exactly():
    """Every code with scales of every E4M3 exponent: the stored form gives the same float32 products."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    codes = rng.permuted(np.tile(np.arange(16, dtype=np.uint8), (32, 8)), axis=1)  # [32, 128]
    every = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    block_scales = rng.choice(every, (32, 8))
    global_scale = 3.1e-5
    matrix = Nvfp4(pack(codes), block_scales.astype(ml_dtypes.float8_e4m3fn), np.float32(global_scale))
    stored, scales = nvfp4_exact(matrix)
    wanted = E2M1[codes].astype(np.float64) * np.repeat(block_scales * np.float32(global_scale), 16, axis=1)
    assert np.array_equal(BlockFormat(8, 16).decode(stored, scales, 128), wanted.astype(np.float32))
    some = np.array([30, 2, 2, 7])
    for rows in (slice(3, 9), some):
        part, part_scales = nvfp4_exact(matrix, rows)
        assert np.array_equal(part, stored[rows])
        assert np.array_equal(part_scales, scales[rows])


@pytest.mark.parametrize(
    "make",
    [
        lambda: BlockFormat(3, 32),
        lambda: BlockFormat(8, 48),
        lambda: WeightFormat("int2"),
        lambda: WeightFormat("int8", accuracy_level=1),
    ],
)
def test_bad_formats_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def run(node, feeds, weights):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in feeds.items()]
    inits = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], inits)
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=12)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
