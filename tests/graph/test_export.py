"""What the files hold: every weight once, aligned, shared by the graphs; memory and errors of building."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import onnx
import pytest
from graph_runner import CONFIGS, Graphs, HashedModel, Nvfp4Model, Slot, tokens
from onnx.external_data_helper import ExternalDataInfo

from edgellm.checkpoint.nvfp4 import E4M3
from edgellm.errors import ConfigError
from edgellm.graph import source
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.export import build_canonical, build_ort_graphs
from edgellm.graph.reference import ReferenceModel
from edgellm.graph.weight_file import ALIGNMENT, WeightFile

FORMATS = [WeightFormat("f32"), WeightFormat("int8", 32), WeightFormat("int4", 16)]


def external(path):
    """Name → (offset, length) of the external tensors of a graph."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            info = ExternalDataInfo(tensor)
            assert info.location == "weights.bin"
            found[tensor.name] = (info.offset, info.length)
    return found


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.precision)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_weights_are_written_once_and_shared(tmp_path, name, form):
    model = HashedModel(name)
    *graphs, weights = build_ort_graphs(model, tmp_path, form)
    assert [path.name for path in graphs] == ["advance.onnx", "verify.onnx", "commit.onnx", "mtp.onnx"]
    matrices = collections.Counter(name for name in model.reads if len(model.spec.expected_tensors()[name]) == 2)
    assert set(matrices) == {name for name, shape in model.spec.expected_tensors().items() if len(shape) == 2}
    tied_head = "embed_tokens.weight" if model.spec.tied_embeddings else ""
    for tensor, count in matrices.items():
        # q_proj is read for the queries and for the gates; a tied 4-bit head is not the 8-bit embedding.
        twice = tensor.endswith("q_proj.weight") or (tensor == tied_head and form.precision == "int4")
        assert count == 1 + twice, tensor
    spans = [external(path) for path in graphs]
    for name in set.union(*(set(span) for span in spans)):
        assert len({span[name] for span in spans if name in span}) == 1, name
    ends = sorted({place for span in spans for place in span.values()})
    assert all(offset % ALIGNMENT == 0 for offset, _ in ends)
    for (offset, length), (following, _) in itertools.pairwise(ends):
        assert offset + length <= following
        assert following - (offset + length) < ALIGNMENT
    assert sum(ends[-1]) == weights.stat().st_size
    assert set(spans[1]) == set(spans[0]), "advance and verify use the same weights"


def test_graphs_stay_small(tmp_path):
    *graphs, _ = build_ort_graphs(HashedModel("equal-tied"), tmp_path, WeightFormat("int8"))
    assert all(path.stat().st_size < 400_000 for path in graphs)


def test_large_matrices_are_read_in_pieces(tmp_path, monkeypatch):
    """The same file whatever the size of the pieces."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    build_ort_graphs(HashedModel("odd-sizes"), whole, WeightFormat("int4"))
    monkeypatch.setattr(source, "PIECE_BYTES", 1000)
    build_ort_graphs(HashedModel("odd-sizes"), parts, WeightFormat("int4"))
    assert (whole / "weights.bin").read_bytes() == (parts / "weights.bin").read_bytes()


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.precision)
def test_building_twice_gives_the_same_bytes(tmp_path, form):
    made = []
    for run in "ab":
        (tmp_path / run).mkdir()
        made.append([path.read_bytes() for path in build_ort_graphs(HashedModel("odd-sizes"), tmp_path / run, form)])
    assert made[0] == made[1]


@pytest.mark.parametrize("form", FORMATS[1:], ids=lambda form: form.precision)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_quantized_graphs_compute_the_model_of_their_decoded_weights(tmp_path, name, form):
    """With float32 activations the only difference from the reference is the stored form of the matrices."""
    exact = WeightFormat(form.precision, form.block, accuracy_level=0)
    model = HashedModel(name)
    build_ort_graphs(model, tmp_path, exact)
    ids = tokens(24, model.spec.vocab, 8)
    logits, _ = ReferenceModel(Decoded(name, exact)).run(ids)
    assert np.abs(Slot(Graphs(tmp_path, model.spec)).advance(ids) - logits).max() < 1e-4


class Decoded(HashedModel):
    """The model whose matrices are what the quantized graphs store. A tied 4-bit head is kept apart."""

    def __init__(self, name, form):
        super().__init__(name)
        self.form = form
        if self.spec.tied_embeddings and form.precision == "int4":
            self.config = {**self.config, "tie_word_embeddings": False}
            self.spec = type(self.spec).from_config(self.config)
            self.tied_by_hand = True

    def tensor(self, name):
        tied = name == "lm_head.weight" and getattr(self, "tied_by_hand", False)
        value = super().tensor("embed_tokens.weight" if tied else name)
        if value.ndim != 2:
            return value
        sensitive = name.startswith("embed_tokens") or name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
        form = self.form.sensitive if sensitive else self.form.matrix("bf16")
        return form.decode(*form.encode(value), value.shape[1])


def test_draft_vocabulary_limits_the_mtp_head(tmp_path):
    model = HashedModel("odd-sizes")
    full, some = tmp_path / "full", tmp_path / "some"
    for folder in (full, some):
        folder.mkdir()
    allowed = [500, 3, 77, 200, 101, 6]
    build_ort_graphs(model, full, WeightFormat())
    build_ort_graphs(model, some, WeightFormat(), draft_vocab=allowed)
    ids = tokens(9, model.spec.vocab, 9)
    slots = [Slot(Graphs(folder, model.spec)) for folder in (full, some)]
    for slot in slots:
        slot.advance(ids)
    out = [slot.draft(ids[1:], slot.hidden[0, :-1], 0) for slot in slots]
    np.testing.assert_allclose(out[0]["hidden_out"], out[1]["hidden_out"], atol=1e-6)
    reference = ReferenceModel(model)
    _, hidden = reference.run(ids)
    for j in range(1, len(ids)):
        logits = reference.draft(hidden[j - 1], int(ids[j]), j - 1)[0][allowed]
        best = np.argsort(-logits)[:4]
        assert out[1]["topk_ids"][j - 1].tolist() == [allowed[i] for i in best]
        assert abs(out[1]["log_norm"][j - 1, 0] - np.log(np.exp(logits).sum())) < 1e-4


def test_progress_counts_every_tensor(tmp_path):
    seen = []
    build_ort_graphs(HashedModel("odd-sizes"), tmp_path, WeightFormat(), progress=lambda *call: seen.append(call))
    total = len(HashedModel("odd-sizes").spec.expected_tensors())
    assert seen == [("weights", done, total) for done in range(1, total + 1)]


def test_without_mtp(tmp_path):
    model = HashedModel("odd-sizes", mtp_num_hidden_layers=0)
    assert [path.name for path in build_ort_graphs(model, tmp_path, WeightFormat())][-2:] == [
        "commit.onnx",
        "weights.bin",
    ]
    assert [path.name for path in build_canonical(model, tmp_path)] == ["verify.onnx", "commit.onnx", "weights.bin"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"positions": 0}, "positions"),
        ({"positions": 4097}, "positions"),
        ({"draft_vocab": [1, 2, 3]}, "draft_vocab"),
        ({"draft_vocab": [1, 2, 3, 3]}, "draft_vocab"),
        ({"draft_vocab": [1, 2, 3, 509]}, "draft_vocab"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, named):
    with pytest.raises(ConfigError, match=named):
        build_ort_graphs(HashedModel("odd-sizes"), tmp_path, WeightFormat(), **arguments)


def test_a_weight_of_the_wrong_size_is_refused(tmp_path):
    with WeightFile(tmp_path / "weights.bin") as file:
        with pytest.raises(ValueError, match="takes 16 bytes but 12"):
            file.stream("w", np.float32, [4], lambda: [np.zeros(3, np.float32)])
        with pytest.raises(TypeError, match="declared float32"):
            file.stream("w", np.float32, [4], lambda: [np.zeros(4)])
        file.add("w", lambda: np.zeros(4, np.float32))
        with pytest.raises(ValueError, match="as many elements"):
            file.view("v", "w", [5])


class Quantized(Nvfp4Model):
    """The layers' matrices are NVFP4."""

    def kind(self, name):
        shape = self.spec.expected_tensors()[name]
        plain = len(shape) != 2 or shape[1] % 16 or name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
        return "f32" if plain or "layers." not in name else "nvfp4"


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_nvfp4_is_computed_exactly(tmp_path, name):
    """Sizes that are no multiple of 16 stay float32, beside NVFP4 in the same projections."""
    model = Quantized(name)
    assert "nvfp4" in {model.kind(tensor) for tensor, shape in model.spec.expected_tensors().items() if len(shape) == 2}
    build_ort_graphs(model, tmp_path, WeightFormat("nvfp4", accuracy_level=0))
    ids = tokens(24, model.spec.vocab, 8)
    logits, _ = ReferenceModel(model).run(ids)
    assert np.abs(Slot(Graphs(tmp_path, model.spec)).advance(ids) - logits).max() < 1e-4


def test_caches_hold_the_values_of_fp8(tmp_path):
    """Rows are E4M3 times the scale; before the first attention layer nothing changes, so its rows are rounded ones."""
    model = HashedModel("grouped-untied")
    first, scale = model.spec.full_layers[0], {"k": 0.05, "v": 0.01}
    scales = {f"{x}_{layer}": scale[x] for x in "kv" for layer in model.spec.full_layers} | {
        "mtp_k": 0.05,
        "mtp_v": 0.01,
    }
    ids = tokens(30, model.spec.vocab, 8)
    rows = []
    for name, kv_scales in (("plain", None), ("rounded", scales)):
        (tmp_path / name).mkdir()
        build_ort_graphs(model, tmp_path / name, WeightFormat(), kv_scales=kv_scales)
        slot = Slot(Graphs(tmp_path / name, model.spec))
        logits = slot.advance(ids)
        slot.draft(ids[1:], slot.hidden[0, :-1], 0)
        rows.append(({key: np.array(slot.state[key]) for key in scales}, logits))
    (plain, before), (rounded, after) = rows
    for key, factor in scales.items():
        codes = rounded[key] / np.float32(factor)
        assert np.abs(codes - codes.astype(E4M3).astype(np.float32)).max() < 1e-6 * np.abs(codes).max()
    for x in "kv":
        wanted = (plain[f"{x}_{first}"] / np.float32(scale[x])).astype(E4M3).astype(np.float32) * np.float32(scale[x])
        close = np.isclose(rounded[f"{x}_{first}"], wanted, rtol=1e-6)
        assert close.mean() > 0.999  # a product at the border between two codes may fall to the other side
    assert 0 < np.abs(after - before).max() < 0.5
