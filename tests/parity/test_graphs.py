"""The graphs against transformers, every position and every vocabulary entry; MTP against PyTorch layers.

Weights are random, which amplifies float32 noise more than trained ones do: on some seeds the reference is off the
exact (float64) result by 1e-4 itself. The seed in use is one where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_runner import CHAIN, CONFIGS, TREE, Graphs, HashedModel, Slot, leaves, path_to, tokens

from edgellm.graph.encodings import WeightFormat
from edgellm.graph.export import build_ort_graphs

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="the parity extra is not installed")
pytest.importorskip("transformers", reason="the parity extra is not installed")

TOLERANCE = 1e-4
MODELS = sorted(CONFIGS)
Forward = Callable[[Any], Any]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> HashedModel:
    return HashedModel(request.param)


@pytest.fixture(scope="module")
def graphs(model: HashedModel, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    folder = tmp_path_factory.mktemp("graphs")
    build_ort_graphs(model, folder, WeightFormat())
    return Graphs(folder, model.spec)


@pytest.fixture(scope="module")
def causal_lm(model: HashedModel) -> Any:
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    config = Qwen3_5TextConfig(**{key: value for key, value in model.config.items() if key != "model_type"})
    config._attn_implementation = "eager"
    made = Qwen3_5ForCausalLM(config).eval().float()
    names = [name for name in model.spec.expected_tensors() if not name.startswith("mtp.")]
    weights = {
        name if name == "lm_head.weight" else f"model.{name}": torch.tensor(model.tensor(name)) for name in names
    }
    missing, unexpected = made.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if model.spec.tied_embeddings else set())
    return made


@pytest.fixture(scope="module")
def forward(causal_lm: Any) -> Forward:
    def run(ids: Any) -> Any:
        with torch.no_grad():
            return causal_lm(torch.tensor(np.asarray(ids)[None])).logits[0].numpy()

    return run


def prompt(model: HashedModel, kind: str) -> Any:
    vocab = model.spec.vocab
    return tokens(200, vocab, 11) if kind == "random" else np.full(512, vocab // 3)


@pytest.mark.parametrize("kind", ["random", "repeated"])
def test_prefill_chunks_decode_tree_commit(model: HashedModel, graphs: Graphs, forward: Forward, kind: str) -> None:
    vocab, ids = model.spec.vocab, prompt(model, kind)
    decoded, rest = tokens(50, vocab, 12), tokens(20, vocab, 13)
    nodes = tokens(16, vocab, 14) if kind == "random" else ids[:16]
    errors: dict[str, float] = {}

    def compare(name: str, got: Any, wanted: Any) -> None:
        errors[name] = max(errors.get(name, 0.0), float(np.abs(got - wanted).max()))

    wanted = forward(ids)
    compare("prefill", Slot(graphs).advance(ids), wanted)
    slot = Slot(graphs)
    pieces = np.split(ids, [37, 38, 101, 104])
    compare("chunks", np.concatenate([slot.advance(piece) for piece in pieces]), wanted)

    def trees(start: Any) -> None:
        for shape in (TREE, CHAIN):
            logits = slot.verify(nodes, shape)
            for leaf in leaves(shape):
                path = path_to(leaf, shape)
                compare("tree", logits[path], forward(np.concatenate([start, nodes[path]]))[len(start) :])

    trees(ids)
    start = np.concatenate([ids, decoded])
    compare("decode", np.concatenate([slot.advance([token]) for token in decoded]), forward(start)[len(ids) :])
    trees(start)
    slot.verify(nodes, TREE)
    path = path_to(13, TREE)
    slot.commit(path)
    start = np.concatenate([start, nodes[path]])
    compare("commit", slot.advance(rest), forward(np.concatenate([start, rest]))[len(start) :])
    print(model.config["vocab_size"], kind, {name: f"{error:.1e}" for name, error in errors.items()})
    assert max(errors.values()) <= TOLERANCE, errors


def test_decoding_with_the_references_cache(model: HashedModel, graphs: Graphs, causal_lm: Any) -> None:
    """The reference's own recurrent path, 50 tokens that each follows from the reference's greedy choice."""
    ids, slot = tokens(40, model.spec.vocab, 15), Slot(graphs)
    got = slot.advance(ids)[-1]
    with torch.no_grad():
        out = causal_lm(torch.tensor(ids[None]), use_cache=True)
        for _ in range(50):
            logits = out.logits[0, -1].numpy()
            assert np.abs(got - logits).max() <= TOLERANCE
            token = int(logits.argmax())
            got = slot.advance([token])[0]
            out = causal_lm(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)


def test_mtp(model: HashedModel, graphs: Graphs, causal_lm: Any) -> None:
    """The wiring of the MTP layer, written with the reference's own attention layer, norms and MLP.

    fc(concat(norm(embedding), norm(hidden))) -> decoder layer -> norm -> head.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

    spec, functional = model.spec, torch.nn.functional
    get = {name: torch.tensor(model.tensor(name)) for name in spec.expected_tensors() if name.startswith("mtp.")}
    layer = Qwen3_5DecoderLayer(causal_lm.config, spec.full_layers[0]).eval()
    inner = {name.removeprefix("mtp.layers.0."): get[name] for name in get if name.startswith("mtp.layers.0.")}
    layer.load_state_dict(inner)

    def norm(name: str, x: Any) -> Any:
        module = Qwen3_5RMSNorm(spec.hidden, eps=spec.rms_eps)
        module.load_state_dict({"weight": get[f"mtp.{name}.weight"]})
        return module(x)

    ids = tokens(60, spec.vocab, 16)
    slot = Slot(graphs)
    slot.advance(ids)
    with torch.no_grad():
        embedding = causal_lm.model.embed_tokens(torch.tensor(ids[None, 1:]))
        hidden = causal_lm.model(torch.tensor(ids[None])).last_hidden_state[:, :-1]
        both = torch.cat([norm("pre_fc_norm_embedding", embedding), norm("pre_fc_norm_hidden", hidden)], dim=-1)
        x = functional.linear(both, get["mtp.fc.weight"])
        positions = torch.arange(x.shape[1])[None]
        mask = torch.full((x.shape[1], x.shape[1]), -1e30).triu(1)[None, None]
        rope = causal_lm.model.rotary_emb(x, positions)
        out = layer(x, position_embeddings=rope, attention_mask=mask, position_ids=positions)
        rows = norm("norm", out[0] if isinstance(out, tuple) else out)
        logits = causal_lm.lm_head(rows)[0]
        best = torch.topk(logits, 4, dim=-1).values.numpy()
        log_norm = torch.logsumexp(logits, dim=-1).numpy()
    got = slot.draft(ids[1:], slot.hidden[0, :-1], 0)
    assert np.abs(got["hidden_out"] - rows.numpy()).max() <= TOLERANCE
    assert np.abs(got["topk_logits"] - best).max() <= TOLERANCE
    assert np.abs(got["log_norm"][:, 0] - log_norm).max() <= TOLERANCE
