"""The graphs for TensorRT compute the model: with float32 activations any runtime can run them, and does here."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from graph_runner import CHAIN, CONFIGS, TREE, Graphs, HashedModel, Nvfp4Model, Slot, tokens
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from edgellm.checkpoint.nvfp4 import E4M3, Nvfp4, unpack
from edgellm.checkpoint.quantized_weights import Fp8BlockWeight, Fp8Weight, Nvfp4Weight
from edgellm.errors import ConfigError
from edgellm.graph.builder import GraphBuilder
from edgellm.graph.export import build_tensorrt_graphs
from edgellm.graph.indices import MASKED, attention_bias, commit_rows, tree_index
from edgellm.graph.lowering.block_chain import CHAIN_BLOCK
from edgellm.graph.lowering.tensorrt import TensorRtForm, TensorRtOps
from edgellm.graph.reference import ReferenceModel
from edgellm.graph.source import attention_parts
from edgellm.graph.weight_file import WeightFile
from edgellm.quantize.rounding import round_to_nearest

MODELS = sorted(CONFIGS)
PLAIN = TensorRtForm("f32", "decoded")
CHUNK = 3 * CHAIN_BLOCK
TOLERANCE = 1e-4
# e^(G_i - G_j) loses what float32 loses in G, which in the weights of these models falls to -200 within a block.
BLOCKS_TOLERANCE = 3e-4


@pytest.fixture(scope="module")
def trt_graphs(tmp_path_factory):
    made = {}

    def make(name):
        if name not in made:
            model, folder = HashedModel(name), tmp_path_factory.mktemp("trt")
            build_tensorrt_graphs(model, folder, PLAIN, prefill_chunk=CHUNK)
            made[name] = Graphs(folder, model.spec)
        return made[name]

    return make


class Sequence:
    """One sequence over the graphs, its state and caches kept by the caller."""

    def __init__(self, graphs):
        spec = graphs.spec
        self.graphs, self.length = graphs, 0
        self.state = {}
        for i in spec.linear_layers:
            self.state[f"conv_{i}"] = np.zeros((1, spec.linear.conv_kernel - 1, spec.linear.conv_channels), np.float32)
            shape = (1, spec.linear.value_heads, spec.linear.key_dim, spec.linear.value_dim)
            self.state[f"state_{i}"] = np.zeros(shape, np.float32)
        for i in spec.full_layers:
            for part in "kv":
                shape = (1, spec.attention.kv_heads, 0, spec.attention.head_dim)
                self.state[f"{part}_{i}"] = np.zeros(shape, np.float32)

    def prefill(self, ids):
        """Logits [n, vocab] of one chunk, padded with token 0."""
        count, kernel = len(ids), self.graphs.spec.linear.conv_kernel
        padded = np.zeros(CHUNK, np.int64)
        padded[:count] = ids
        feeds = self.state | {
            "input_ids": padded[None],
            "positions": self.length + np.arange(CHUNK)[None],
            "attn_bias": attention_bias(self.length, np.where(np.tri(CHUNK) > 0, np.float32(0), MASKED)),
            "live": (np.arange(CHUNK) < count).astype(np.float32)[None, :, None],
            "conv_rows": commit_rows(range(count), kernel),
            "logit_rows": np.arange(count),
        }
        out = self.run("prefill", feeds)
        self.length += count
        for key in self.state:
            stem, _, layer = key.rpartition("_")
            if stem in "kv":
                rows = out[f"{stem}_new_{layer}"][:, :, :count]
                self.state[key] = np.concatenate([self.state[key], rows], axis=2)
            else:
                self.state[key] = out[f"{stem}_out_{layer}"]
        return out["logits"]

    def verify(self, ids, parents):
        index = tree_index(parents, self.graphs.spec.linear.conv_kernel)
        feeds = self.state | {
            "input_ids": np.asarray(ids)[None],
            "positions": (self.length + index.depths)[None],
            "attn_bias": attention_bias(self.length, index.mask),
            "tree_mask": index.mask[None, None],
            "conv_idx": index.conv,
            "logit_rows": np.arange(len(ids)),
        }
        return self.run("verify", feeds)

    def run(self, name, feeds):
        names = [item.name for item in self.graphs[name].get_outputs()]
        kinds = {item.name: item.type for item in self.graphs[name].get_inputs()}
        if kinds["attn_bias"] == "tensor(float16)":
            feeds["attn_bias"] = np.maximum(feeds["attn_bias"], -3e4).astype(np.float16)
        return dict(zip(names, self.graphs[name].run(None, feeds), strict=True))


def prompts(name):
    vocab = CONFIGS[name]["vocab_size"]
    return {"random": tokens(320, vocab, 1), "repeated": np.full(320, vocab // 3)}


@pytest.mark.parametrize("kind", ["random", "repeated"])
@pytest.mark.parametrize("name", MODELS)
def test_prefill_by_chunks_is_the_model(trt_graphs, name, kind):
    """Whole chunks and padded ones, one shorter than the convolution; repeated tokens have equal keys."""
    ids = prompts(name)[kind]
    logits, _ = ReferenceModel(HashedModel(name)).run(ids)
    sequence = Sequence(trt_graphs(name))
    got = [sequence.prefill(part) for part in np.split(ids, [CHUNK, CHUNK + 2, CHUNK + 67])]
    assert np.abs(np.concatenate(got) - logits).max() < BLOCKS_TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_prefill_leaves_the_states_of_the_cpu_graphs(trt_graphs, ort_graphs, name):
    ids = prompts(name)["random"][:150]
    sequence, slot = Sequence(trt_graphs(name)), Slot(ort_graphs(name))
    sequence.prefill(ids)
    slot.advance(ids)
    for key, value in sequence.state.items():
        wanted = slot.state[key][:, :, : len(ids)] if key.startswith(("k_", "v_")) else slot.state[key]
        np.testing.assert_allclose(value, wanted, atol=BLOCKS_TOLERANCE, err_msg=key)


@pytest.mark.parametrize("parents", [TREE, CHAIN, (-1,)], ids=["tree", "chain", "root"])
@pytest.mark.parametrize("name", MODELS)
def test_verify_is_the_canonical_graph(trt_graphs, canonical_graphs, name, parents):
    ids, nodes = prompts(name)["random"][:40], tokens(len(parents), CONFIGS[name]["vocab_size"], 6)
    sequence = Sequence(trt_graphs(name))
    sequence.prefill(ids)
    got = sequence.verify(nodes, parents)
    sequence.graphs = canonical_graphs(name)
    wanted = sequence.verify(nodes, parents)
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, atol=TOLERANCE, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_commit_and_mtp_have_the_canonical_inputs_and_outputs(trt_graphs, canonical_graphs, name):
    for part in ("commit", "mtp"):
        for side in ("get_inputs", "get_outputs"):
            got, wanted = (getattr(graphs(name)[part], side)() for graphs in (trt_graphs, canonical_graphs))
            assert [(x.name, x.shape, x.type) for x in got] == [(x.name, x.shape, x.type) for x in wanted]


def test_mtp_is_the_canonical_graph(trt_graphs, canonical_graphs):
    spec = trt_graphs("grouped-untied").spec
    empty = np.zeros((1, spec.attention.kv_heads, 0, spec.attention.head_dim), np.float32)
    feeds = {
        "input_ids": tokens(11, spec.vocab, 7)[None],
        "hidden_in": np.random.default_rng(0).standard_normal((1, 11, spec.hidden)).astype(np.float32),
        "positions": np.arange(11)[None],
        "attn_bias": attention_bias(0, np.where(np.tri(11) > 0, np.float32(0), MASKED)),
        "logit_rows": np.arange(11),
        "mtp_k": empty,
        "mtp_v": empty,
    }
    got, wanted = (graphs("grouped-untied")["mtp"].run(None, feeds) for graphs in (trt_graphs, canonical_graphs))
    for value, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(value, other, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_moves_logits_a_little(tmp_path, trt_graphs, name):
    """Float16, which the CPU runs: rounding differs, nothing else does."""
    model, ids = HashedModel(name), prompts(name)["random"]
    build_tensorrt_graphs(model, tmp_path, TensorRtForm("f16"), prefill_chunk=CHUNK)
    half, whole = Sequence(Graphs(tmp_path, model.spec)), Sequence(trt_graphs(name))
    for key, value in half.state.items():
        half.state[key] = value.astype(np.float16) if key.startswith(("k_", "v_")) else value
    for got, wanted in (
        (half.prefill(ids[:100]), whole.prefill(ids[:100])),
        (half.verify(ids[100:116], TREE)["logits"], whole.verify(ids[100:116], TREE)["logits"]),
    ):
        assert got.dtype == np.float32
        assert np.abs(got - wanted).mean() < 0.03 * np.abs(wanted).mean()


class Scaled(Nvfp4Model):
    """Matrices of the layers in NVFP4 with scales of their inputs."""

    def input_scale(self, name):
        return np.float32(0.002)

    def kind(self, name):
        shape = self.spec.expected_tensors()[name]
        small = name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
        fits = len(shape) == 2 and shape[1] % 16 == 0 and "layers." in name and not small
        return "nvfp4" if fits or name == "lm_head.weight" else "f32"


@pytest.mark.parametrize("name", ["equal-tied", "grouped-untied"])
def test_decoded_matrices_have_the_values_of_the_checkpoint(tmp_path, name):
    model, ids = Scaled(name), tokens(30, CONFIGS[name]["vocab_size"], 8)
    build_tensorrt_graphs(model, tmp_path, PLAIN, prefill_chunk=CHUNK)
    logits, _ = ReferenceModel(model).run(ids)
    assert np.abs(Sequence(Graphs(tmp_path, model.spec)).prefill(ids) - logits).max() < TOLERANCE


def test_native_matrices_are_the_bytes_of_the_checkpoint(tmp_path):
    """An FP4 product decodes codes, block scales and factor of the checkpoint; the factor stays float32."""
    model = Scaled("grouped-untied")
    *graphs, _ = build_tensorrt_graphs(model, tmp_path, TensorRtForm("bf16"), prefill_chunk=CHUNK)
    loaded = onnx.load(graphs[0])
    initializers = {tensor.name: tensor for tensor in loaded.graph.initializer}
    weight = model.weight("layers.0.mlp.down_proj.weight")
    codes = initializers["layers.0.mlp.down_proj.e2m1"]
    assert codes.data_type == onnx.TensorProto.FLOAT4E2M1
    assert list(codes.dims) == list(weight.shape)
    assert codes.raw_data == weight.matrix.packed.tobytes()
    assert initializers["layers.0.mlp.down_proj.scales"].raw_data == weight.matrix.block_scales.tobytes()
    scale = next(node for node in loaded.graph.node if "layers.0.mlp.down_proj.scales" in node.input)
    factor = onnx.numpy_helper.to_array(initializers[scale.input[1]])
    assert factor.dtype == np.float32
    assert factor == weight.matrix.global_scale


@pytest.mark.parametrize("activations", ["bf16", "f16"])
def test_what_the_caches_hold_is_16_bits_wide_and_all_else_float32(tmp_path, activations):
    model = HashedModel("grouped-untied")
    *graphs, _ = build_tensorrt_graphs(model, tmp_path, TensorRtForm(activations), prefill_chunk=CHUNK)
    half = {"bf16": onnx.TensorProto.BFLOAT16, "f16": onnx.TensorProto.FLOAT16}[activations]
    for path in graphs:
        graph = onnx.load(path, load_external_data=False).graph
        onnx.checker.check_model(str(path))
        for value in [*graph.input, *graph.output]:
            kind, name = value.type.tensor_type.elem_type, value.name
            cached = name.startswith(("k_", "v_", "mtp_k", "mtp_v", "attn_bias"))
            assert kind == half if cached else kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64), name


def products(path):
    """Matrix products with an FP4 operand."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return sum(node.op_type == "TRT_FP4DynamicQuantize" for node in nodes)


def test_matrices_are_fused_only_when_their_scales_agree(tmp_path):
    class Split(Scaled):
        def weight(self, name):
            weight = super().weight(name)
            if name.endswith("up_proj.weight"):
                return Nvfp4Weight(weight.matrix, np.float32(0.004))
            return weight

    class Alike(Scaled):
        def weight(self, name):
            weight = super().weight(name)
            if not isinstance(weight, Nvfp4Weight):
                return weight
            matrix = weight.matrix
            return Nvfp4Weight(Nvfp4(matrix.packed, matrix.block_scales, np.float32(0.001)), weight.input_scale)

    counts = {}
    for kind in (Alike, Split):
        (tmp_path / kind.__name__).mkdir()
        model = kind("equal-tied", num_hidden_layers=3)
        graphs = build_tensorrt_graphs(model, tmp_path / kind.__name__, TensorRtForm(), prefill_chunk=CHUNK)
        counts[kind] = products(graphs[0])
    assert counts[Alike] == 3 * 4  # per layer: into the mixer, out of it, gate and up, down
    # gate, up; qkv, z of two layers; q with its gate, k, v of one
    assert counts[Split] == 3 * (1 + 2 + 1) + 2 * 2 + 3


class Fp8(HashedModel):
    """The MLP's matrices in FP8 with one scale, and one for their inputs."""

    SCALE = np.float32(0.01)

    def kind(self, name):
        return "fp8" if ".mlp." in name else "f32"

    def weight(self, name):
        if self.kind(name) != "fp8":
            return super().weight(name)
        values = super().tensor(name)
        factor = np.float32(np.abs(values).max() / 448)
        return Fp8Weight((values / factor).astype(E4M3), factor.reshape(1, 1), self.SCALE)

    def tensor(self, name):
        return self.weight(name).to_float32() if self.kind(name) == "fp8" else super().tensor(name)


class Fp8Reference(ReferenceModel):
    """The NumPy model with the inputs of the FP8 matrices rounded."""

    def _tensor(self, name):
        values = super()._tensor(name)
        return RoundingToFp8(values) if self._source.kind(name) == "fp8" else values


class RoundingToFp8:
    def __init__(self, values):
        self.values = values

    def __matmul__(self, x):
        codes = np.clip(x.astype(np.float32) / Fp8.SCALE, -448, 448).astype(E4M3)
        return self.values @ (codes.astype(np.float32) * Fp8.SCALE)


def test_fp8_matrices_are_multiplied_with_rounded_activations(tmp_path):
    model = Fp8("grouped-untied")
    build_tensorrt_graphs(model, tmp_path, TensorRtForm("f32"), prefill_chunk=CHUNK)
    ids = tokens(20, model.spec.vocab, 8)
    got = Sequence(Graphs(tmp_path, model.spec)).prefill(ids)
    plain, wanted = ReferenceModel(model).run(ids)[0], Fp8Reference(model).run(ids)[0]
    # Values at the border between two codes may fall to the other side, float32 against float64.
    assert np.abs(got - wanted).mean() < 0.1 * np.abs(plain - wanted).mean()


def with_matrix(weight):
    class Model(HashedModel):
        def kind(self, name):
            return weight.kind if name == "layers.1.mlp.down_proj.weight" else "f32"

        def weight(self, name):
            return weight if name == "layers.1.mlp.down_proj.weight" else super().weight(name)

    return Model("equal-tied")


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        (Nvfp4Weight(Nvfp4(np.zeros((128, 128), np.uint8), np.zeros((128, 16), "f"), np.float32(1)), None), "W4A16"),
        (Fp8Weight(np.zeros((128, 256), np.uint8), np.ones((1, 1), "f"), None), "fp8 without an input_scale"),
        (Fp8Weight(np.zeros((128, 256), np.uint8), np.ones((128, 1), "f"), np.float32(1)), "a scale per row or tile"),
        (Fp8BlockWeight(np.zeros((128, 256), np.uint8), np.ones((1, 2), "f"), (128, 128)), "a scale per row or tile"),
    ],
)
def test_matrices_without_a_native_product_are_refused_by_name(tmp_path, weight, named):
    with pytest.raises(ConfigError, match=rf"layers\.1\.mlp\.down_proj\.weight is .*{named}"):
        build_tensorrt_graphs(with_matrix(weight), tmp_path, TensorRtForm(), prefill_chunk=CHUNK)


@pytest.mark.parametrize("chunk", [0, 63, 65, 96])
def test_chunks_are_whole_blocks(tmp_path, chunk):
    with pytest.raises(ConfigError, match=f"multiple of {CHAIN_BLOCK} tokens, not {chunk}"):
        build_tensorrt_graphs(HashedModel("odd-sizes"), tmp_path, PLAIN, prefill_chunk=chunk)


class TRT_FP4DynamicQuantize(OpRun):
    """TensorRT's operator: NVFP4 codes and block scales of x for a given global scale."""

    op_domain = "trt"

    def _run(self, x, factor, axis=None, block_size=None, scale_type=None):
        assert (axis, block_size, scale_type) == (-1, 16, onnx.TensorProto.FLOAT8E4M3FN)
        matrix = round_to_nearest(x.reshape(-1, x.shape[-1]), factor)
        codes = unpack(matrix.packed).view(ml_dtypes.float4_e2m1fn)
        scales = np.asarray(matrix.block_scales).view(ml_dtypes.float8_e4m3fn)
        return codes.reshape(x.shape), scales.reshape(*x.shape[:-1], -1)


def test_an_nvfp4_projection_is_the_product_of_rounded_activations_and_decoded_weights(tmp_path):
    """The very graph that TensorRT compiles, run by ONNX's reference with an operator of TensorRT filled in."""
    model = Scaled("grouped-untied")
    spec, name = model.spec, f"layers.{model.spec.full_layers[0]}.self_attn"
    parts = attention_parts(spec.attention, name)  # the queries' and the gate's rows of one matrix, then k and v
    with WeightFile(tmp_path / "weights.bin") as file:
        g = GraphBuilder("projection", file)
        x = g.input("x", np.float32, [1, "S", spec.hidden])
        outputs = [g.output(f"y_{i}", np.float32, [1, "S", part.rows]) for i, part in enumerate(parts)]
        TensorRtOps(model, TensorRtForm("f32")).project(g, x, "in", parts, outputs)
        g.save(tmp_path / "projection.onnx")
    rows = np.random.default_rng(3).standard_normal((1, 5, spec.hidden)).astype(np.float32)
    evaluator = ReferenceEvaluator(str(tmp_path / "projection.onnx"), new_ops=[TRT_FP4DynamicQuantize])
    rounded = round_to_nearest(rows[0], model.input_scale("")).to_float32()
    for part, got in zip(parts, evaluator.run(None, {"x": rows}), strict=True):
        weight = model.weight(part.tensor).to_float32()
        wanted = rounded @ (weight if part.index is None else weight[part.index]).T
        np.testing.assert_allclose(got[0], wanted, atol=2e-5)
