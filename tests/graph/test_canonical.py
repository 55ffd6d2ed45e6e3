"""The standard-operator form computes the same as the ONNX Runtime form, and uses standard operators only."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_runner import CHAIN, CONFIGS, TREE, Slot, tokens

from edgellm.graph.builder import LOCAL, OPSET
from edgellm.graph.indices import attention_bias, tree_index

MODELS = sorted(CONFIGS)


@pytest.mark.parametrize("name", MODELS)
def test_standard_operators_and_one_function(canonical_graphs, name):
    graphs = canonical_graphs(name)
    for part in ("verify", "commit", "mtp"):
        path = graphs.folder / f"{part}.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path, load_external_data=False)
        assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET
        calls = [node for node in model.graph.node if node.domain]
        assert len(calls) == (len(graphs.spec.linear_layers) if part == "verify" else 0)
        assert {node.domain for node in calls} <= {LOCAL}
        assert all(not node.domain for function in model.functions for node in function.node)
        assert len(model.functions) == (part == "verify")


@pytest.mark.parametrize("parents", [TREE, CHAIN, (-1,)], ids=["tree", "chain", "root"])
@pytest.mark.parametrize("name", MODELS)
def test_verify_equals_the_onnxruntime_form(ort_graphs, canonical_graphs, name, parents):
    canonical = canonical_graphs(name)
    spec = canonical.spec
    slot = Slot(ort_graphs(name))
    slot.advance(tokens(40, spec.vocab, 5))
    ids = tokens(len(parents), spec.vocab, 6)
    index = tree_index(parents, spec.linear.conv_kernel)
    feeds = {
        "input_ids": ids[None],
        "positions": (40 + index.depths)[None],
        "attn_bias": attention_bias(40, index.mask),
        "tree_mask": index.mask[None, None],
        "conv_idx": index.conv,
        "logit_rows": np.arange(len(parents)),
    }
    for key, value in slot.state.items():
        if not key.startswith("mtp"):
            feeds[key] = value if key.startswith(("conv", "state")) else value[:, :, :40]
    names = [item.name for item in canonical["verify"].get_outputs()]
    got = dict(zip(names, canonical["verify"].run(None, feeds), strict=True))
    wanted = slot.graphs["verify"]
    slot.verify(ids, parents)
    for item in wanted.get_outputs():
        if "_out_" in item.name:
            rows = slot.state[item.name.replace("_out_", "_")][:, :, 40 : 40 + len(parents)]
            value = got.pop(item.name.replace("_out_", "_new_"))
        else:
            rows, value = slot._tree[item.name], got.pop(item.name)
        np.testing.assert_allclose(value, rows, atol=1e-4, err_msg=item.name)
    assert not got


@pytest.mark.parametrize("name", MODELS)
def test_mtp_equals_the_onnxruntime_form(ort_graphs, canonical_graphs, name):
    canonical = canonical_graphs(name)
    slot = Slot(ort_graphs(name))
    ids = tokens(12, canonical.spec.vocab, 7)
    slot.advance(ids)
    wanted = slot.draft(ids[1:], slot.hidden[0, :-1], 0)
    mask = np.where(np.tri(11) > 0, 0, -1e30).astype(np.float32)
    attention = canonical.spec.attention
    empty = np.zeros((1, attention.kv_heads, 0, attention.head_dim), np.float32)
    feeds = {
        "input_ids": ids[None, 1:],
        "hidden_in": slot.hidden[:, :-1],
        "positions": np.arange(11)[None],
        "attn_bias": attention_bias(0, mask),
        "logit_rows": np.arange(11),
        "mtp_k": empty,
        "mtp_v": empty,
    }
    outputs = ["hidden_out", "topk_logits", "log_norm"]
    for output, value in zip(outputs, canonical["mtp"].run(outputs, feeds), strict=True):
        np.testing.assert_allclose(value, wanted[output], atol=1e-4)
