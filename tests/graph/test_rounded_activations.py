"""Activations as a device has them that multiplies NVFP4 with NVFP4: against the quantizer's rounding."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from graph_runner import Graphs, Nvfp4Model, Slot, tokens
from hypothesis import given
from hypothesis import strategies as st

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.engine.builder import build_bundle
from edgellm.engine.bundle import Bundle
from edgellm.engine.recipe import load_recipe
from edgellm.errors import ConfigError
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.export import build_ort_graphs
from edgellm.graph.lowering.rounding import rounded_to_nvfp4
from edgellm.graph.reference import ReferenceModel
from edgellm.graph.weight_file import WeightFile
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.rounding import round_to_nearest
from edgellm.quantize.writer import quantize_checkpoint

W4A4 = WeightFormat("nvfp4", accuracy_level=0, activations="nvfp4")
SCALE = np.float32(0.0123)


@pytest.fixture(scope="module")
def rounding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    with WeightFile(folder / "weights.bin") as file:
        g = GraphBuilder("rounding", file)
        x = g.input("x", np.float32, ["B", "S", 48])
        g.op("Identity", [rounded_to_nvfp4(g, x, SCALE)], output=g.output("y", np.float32, ["B", "S", 48]))
        g.save(folder / "rounding.onnx")
    session = ort.InferenceSession(folder / "rounding.onnx", providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-20, 8), grid=st.booleans())
def test_values_are_the_quantizers(rounding, seed, power, grid):
    rng = np.random.default_rng(seed)
    x = rng.integers(-24, 25, (2, 5, 48)) / 4 if grid else rng.standard_t(3, (2, 5, 48))
    x = np.ldexp(x, power).astype(np.float32)
    x[0, 0, :16] = 0
    wanted = round_to_nearest(x.reshape(10, 48), SCALE).to_float32()
    np.testing.assert_array_equal(rounding(x).reshape(10, 48), wanted)


class Scaled(Nvfp4Model):
    """Attention and MLP matrices in NVFP4 with scales of their inputs: in the MLP one for each of two fused parts."""

    def input_scale(self, name):
        return np.float32(0.004 if name.endswith("up_proj.weight") else 0.002)

    def kind(self, name):
        shape = self.spec.expected_tensors()[name]
        fits = len(shape) == 2 and shape[1] % 16 == 0 and ("self_attn" in name or "mlp" in name)
        return "nvfp4" if fits or name == "lm_head.weight" else "f32"


class RoundingReference(ReferenceModel):
    """The NumPy model with rounded inputs of the NVFP4 matrices."""

    def _tensor(self, name):
        values = super()._tensor(name)
        return Rounding(values, self._source.input_scale(name)) if self._source.kind(name) == "nvfp4" else values


class Rounding:
    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    def __matmul__(self, x):
        return self.values @ round_to_nearest(x.astype(np.float32)[None], self.scale).to_float32()[0]

    @property
    def T(self):
        return RoundingColumns(self.values, self.scale)


class RoundingColumns(Rounding):
    def __rmatmul__(self, x):
        return round_to_nearest(x.astype(np.float32), self.scale).to_float32() @ self.values.T

    __array_ufunc__ = None


def test_a_model_rounds_what_goes_into_its_matrices(tmp_path):
    model = Scaled("grouped-untied")
    build_ort_graphs(model, tmp_path, W4A4)
    ids = tokens(12, model.spec.vocab, 8)
    got = Slot(Graphs(tmp_path, model.spec)).advance(ids)
    plain = ReferenceModel(model).run(ids)[0]
    wanted = RoundingReference(model).run(ids)[0]
    # Values at the border between two codes may fall to the other side, float32 against float64.
    assert np.abs(got - wanted).mean() < 0.1 * np.abs(plain - wanted).mean()


def test_a_checkpoint_without_scales_is_refused(tmp_path):
    source = make_checkpoint("tiny", tmp_path / "source")
    recipe = load_recipe("cpu-nvfp4-w4a4")
    quantize_checkpoint(source, tmp_path / "w4a16", named_recipe("nvfp4"))
    with pytest.raises(ConfigError, match="no input_scale: it is W4A16"):
        build_bundle(tmp_path / "w4a16", tmp_path / "bundle", recipe)
    quantize_checkpoint(source, tmp_path / "w4a4", named_recipe("nvfp4"), texts=[[1, 2, 3]])
    build_bundle(tmp_path / "w4a4", tmp_path / "bundle", recipe)
    said = Bundle.open(tmp_path / "bundle").manifest.precision
    assert said["activations of matrix products"] == "values of NVFP4, as f32"
    assert said["KV rows"] == "values of E4M3, as f32"
