from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from attention_inputs import large, tiny
from graph_runner import session
from kernel_parity import largest_difference, needs_compiler, run_both

from edgellm.checkpoint.presets import PRESETS
from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.lowering.rounding import rounded_to_e4m3
from edgellm.graph.rope import rope_tables
from edgellm.graph.weight_file import WeightFile
from edgellm.kernels import emulate
from edgellm.kernels.attention import ATTN_PREP
from edgellm.kernels.inputs import prep_tensors
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import empty_tensors
from edgellm.kernels.tolerance import codes_apart

pytestmark = needs_compiler
SPEC = ModelSpec.from_config(PRESETS["tiny"].config)


@pytest.mark.parametrize(
    ("sizes", "count", "start"),
    [
        pytest.param(tiny("f32", 16, tail=128), 16, 112, id="float32, end of the tail"),
        pytest.param(tiny("f32", 16, tail=128), 5, 40, id="float32, few rows"),
        pytest.param(tiny("f16", 3), 3, 0, id="float16"),
        pytest.param(large("bf16", 2), 1, 0, id="bfloat16, 24 heads of 256"),
    ],
)
def test_rows_are_prepared(sizes: Sizes, count: int, start: int) -> None:
    tensors = prep_tensors(ATTN_PREP, sizes, np.random.default_rng(start), count, start)
    made, expected = run_both(ATTN_PREP, sizes, tensors)
    step = {"f32": 1e-5, "f16": 2.0**-10, "bf16": 2.0**-7}[sizes.io]
    exact, rotated = (t["q_rotated"][:count].astype(np.float64) for t in (expected, made))
    assert largest_difference(rotated / (1 + np.abs(exact)), exact / (1 + np.abs(exact))) <= step
    assert made["tail_v"].tobytes() == expected["tail_v"].tobytes()
    apart = codes_apart(made["tail_k"], expected["tail_k"])
    assert apart.max() <= 1
    assert apart.sum() <= apart[start : start + count].size / 1000  # values in the middle of two codes


def test_rows_beyond_the_tail_go_nowhere() -> None:
    sizes = tiny("f32", 16, tail=128)
    tensors = prep_tensors(ATTN_PREP, sizes, np.random.default_rng(1), 16, 120)
    fitting = {name: array.copy() for name, array in tensors.items()}
    fitting["control"][1] = 8
    for given in (tensors, fitting):
        emulate.run(ATTN_PREP, sizes, given)
    assert tensors["tail_k"].tobytes() == fitting["tail_k"].tobytes()
    assert tensors["tail_v"].tobytes() == fitting["tail_v"].tobytes()


def test_values_are_rounded_as_the_graph_rounds_them(tmp_path: Path) -> None:
    """Every bfloat16 and float32 ones between two codes."""
    scale = float(np.float32(0.0371))
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale)
    between = (codes[1:] + codes[:-1]) / 2
    near = [np.nextafter(between, np.float32(way)) for way in (-np.inf, np.inf)]
    values = np.concatenate([every, between, *near, np.zeros(2048, np.float32)])
    with WeightFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("rounding", weights)
        x = g.input("x", np.float32, ["n"])
        g.op("Identity", [rounded_to_e4m3(g, x, scale)], output=g.output("y", np.float32, ["n"]))
        g.save(tmp_path / "rounding.onnx")
    (rounded,) = session(tmp_path / "rounding.onnx").run(None, {"x": values})

    sizes = tiny("f32", 256)
    per_launch = sizes.rows * sizes.kv_heads * sizes.head_dim
    for start in range(0, len(every) + len(between) * 3, per_launch):
        part = values[start : start + per_launch]
        tensors = empty_tensors(ATTN_PREP, sizes)
        tensors["control"][1] = sizes.rows
        tensors["kv_scale"][:] = scale
        tensors["v"].reshape(-1)[: len(part)] = part
        with np.errstate(over="ignore", invalid="ignore"):
            made, _ = run_both(ATTN_PREP, sizes, tensors)
        stored = made["tail_v"].astype(np.float32).reshape(-1)[: len(part)] * np.float32(scale)
        np.testing.assert_array_equal(stored, rounded[start : start + per_launch])


def test_queries_are_normed_and_turned_as_in_the_graph(tmp_path: Path) -> None:
    sizes = tiny("f32", 16, tail=128)
    spec = SPEC.attention
    tensors = prep_tensors(ATTN_PREP, sizes, np.random.default_rng(7), sizes.rows)
    with WeightFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("turned", weights)
        x = g.input("x", np.float32, [1, sizes.rows, spec.heads, spec.head_dim])
        positions = g.input("positions", np.int64, [1, sizes.rows])
        rope = rope_tables(g, spec, sizes.positions)
        for name in rope:
            g.op("Identity", [name], output=g.output(f"{name}.out", np.float32, ["n", "m"]))
        scale = g.const(tensors["q_norm"], np.float32)
        normed = g.op("RMSNormalization", [x, scale], axis=-1, epsilon=sizes.rms_eps)
        by_head = g.op("Transpose", [normed], perm=[0, 2, 1, 3])
        turned = g.op("RotaryEmbedding", [by_head, *rope, positions], rotary_embedding_dim=spec.rotary_dim)
        shape = [1, sizes.rows, spec.heads, spec.head_dim]
        g.op("Transpose", [turned], output=g.output("y", np.float32, shape), perm=[0, 2, 1, 3])
        g.save(tmp_path / "turned.onnx")
    feeds = {"x": tensors["q"].reshape(shape), "positions": tensors["position_ids"][None].astype(np.int64)}
    cos, sin, expected = session(tmp_path / "turned.onnx").run(None, feeds)
    tensors["cos"][...], tensors["sin"][...] = cos, sin
    made, _ = run_both(ATTN_PREP, sizes, tensors)
    np.testing.assert_allclose(made["q_rotated"], expected[0], atol=1e-5)
