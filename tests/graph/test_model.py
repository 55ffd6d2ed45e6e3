"""The ONNX Runtime graphs compute the model: against the float64 reference, which shares no code with them."""

from __future__ import annotations

import numpy as np
import pytest
from graph_runner import CHAIN, CONFIGS, TREE, HashedModel, Slot, leaves, path_to, tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.graph.reference import ReferenceModel

TOLERANCE = 1e-4
MODELS = sorted(CONFIGS)


def reference(name, ids):
    return ReferenceModel(HashedModel(name)).run(ids)


def prompts(name):
    vocab = CONFIGS[name]["vocab_size"]
    return {"random": tokens(120, vocab, 1), "repeated": np.full(200, vocab // 3)}


@pytest.mark.parametrize("kind", ["random", "repeated"])
@pytest.mark.parametrize("name", MODELS)
def test_prefill_in_one_piece_and_in_odd_chunks(ort_graphs, name, kind):
    ids = prompts(name)[kind]
    logits, hidden = reference(name, ids)
    whole = Slot(ort_graphs(name))
    assert np.abs(whole.advance(ids) - logits).max() < TOLERANCE
    assert np.abs(whole.hidden[0] - hidden).max() < TOLERANCE
    pieces = Slot(ort_graphs(name))
    got = [pieces.advance(part) for part in np.split(ids, [1, 2, 5, 6, 43, 44, 107])]
    assert np.abs(np.concatenate(got) - logits).max() < TOLERANCE


@pytest.mark.parametrize("kind", ["random", "repeated"])
@pytest.mark.parametrize("name", MODELS)
def test_every_tree_node_equals_the_sequence_of_its_path(ort_graphs, name, kind):
    prompt = prompts(name)[kind][:100]
    nodes = prompts(name)[kind][-16:]
    slot = Slot(ort_graphs(name))
    slot.advance(prompt)
    before = {key: value.copy() for key, value in slot.state.items() if key.startswith(("conv", "state"))}
    for parents in (TREE, CHAIN):
        logits = slot.verify(nodes, parents)
        for leaf in leaves(parents):
            path = path_to(leaf, parents)
            expected, _ = reference(name, np.concatenate([prompt, nodes[path]]))
            assert np.abs(logits[path] - expected[len(prompt) :]).max() < TOLERANCE
    assert all(np.array_equal(slot.state[key], value) for key, value in before.items()), "verify changed a state"


@pytest.mark.parametrize("path", [[0], [0, 3], [0, 1, 4, 7, 10, 13, 15]])
@pytest.mark.parametrize("name", MODELS)
def test_commit_equals_advancing_over_the_path(ort_graphs, name, path):
    prompt, nodes, rest = np.split(tokens(76, CONFIGS[name]["vocab_size"], 2), [50, 66])
    by_tree, by_chain = Slot(ort_graphs(name)), Slot(ort_graphs(name))
    by_tree.advance(prompt)
    by_tree.verify(nodes, TREE)
    by_tree.commit(path)
    by_chain.advance(prompt)
    by_chain.advance(nodes[path])
    for key, value in by_chain.state.items():
        rows = slice(None) if key.startswith(("conv", "state")) else slice(by_chain.length)
        assert np.abs(by_tree.state[key][:, :, rows] - value[:, :, rows]).max() < TOLERANCE, key
    assert np.abs(by_tree.advance(rest) - by_chain.advance(rest)).max() < TOLERANCE


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_trees_and_commits_in_a_row(ort_graphs, data):
    """A sequence that goes on by committed tree paths equals the same tokens in order."""
    name = data.draw(st.sampled_from(MODELS))
    vocab = CONFIGS[name]["vocab_size"]
    some = st.integers(0, vocab - 1) if data.draw(st.booleans()) else st.just(vocab // 2)
    sequence = data.draw(st.lists(some, min_size=0, max_size=40))
    slot = Slot(ort_graphs(name))
    if sequence:
        slot.advance(sequence)
    for _ in range(3):
        size = data.draw(st.integers(1, 16))
        parents = [-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, size))]
        nodes = data.draw(st.lists(some, min_size=size, max_size=size))
        logits = slot.verify(nodes, parents)
        path = path_to(data.draw(st.integers(0, size - 1)), parents)
        chain = Slot(ort_graphs(name))
        expected = chain.advance([*sequence, *(nodes[i] for i in path)])[-len(path) :]
        assert np.abs(logits[path] - expected).max() < TOLERANCE
        slot.commit(path)
        sequence += [nodes[i] for i in path]


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("name", MODELS)
def test_attention_folds_only_into_rows_that_are_there(ort_graphs, name, nodes):
    """Caches with any number of spare rows: same results, committed rows untouched, nothing written past the end."""
    graphs, vocab = ort_graphs(name), CONFIGS[name]["vocab_size"]
    prompt, ids = tokens(20, vocab, 21), tokens(16, vocab, 22)[:nodes]
    ratio = graphs.spec.attention.heads // graphs.spec.attention.kv_heads
    wanted = None
    for spare in (nodes, nodes + 1, ratio * nodes - 1, ratio * nodes, ratio * nodes + 1):
        slot = Slot(graphs, rows=len(prompt) + max(spare, nodes))
        guards = guard_ends(slot)
        slot.advance(prompt)
        before = {key: value[:, :, :20].copy() for key, value in slot.state.items() if key.startswith(("k_", "v_"))}
        tree, hidden = slot.verify(ids, TREE[:nodes]), slot.draft(ids, np.zeros((nodes, graphs.spec.hidden), "f"), 20)
        assert all(np.array_equal(slot.state[key][:, :, :20], value) for key, value in before.items())
        step = slot.advance(ids[:1])
        got = [tree, hidden["hidden_out"], step]
        wanted = wanted or got
        for value, first in zip(got, wanted, strict=True):
            np.testing.assert_allclose(value, first, atol=2e-5)
        assert all((guard == 7).all() for guard in guards)


def guard_ends(slot):
    """Move every cache to the front of a longer buffer; the rest of the buffers, filled with 7."""
    guards = []
    for key, value in slot.state.items():
        if key.startswith(("k_", "v_", "mtp")):
            flat = np.full(value.size + 4096, 7, np.float32)
            slot.state[key] = flat[: value.size].reshape(value.shape)
            slot.state[key][...] = 0
            guards.append(flat[value.size :])
    return guards


def test_a_batch_of_single_tokens_equals_its_sequences_alone(ort_graphs):
    """Sequences of different lengths in one step; every row of the batch is bit-equal to the step of its own."""
    graphs = ort_graphs("odd-sizes")
    lengths, vocab = (3, 40, 17), 509
    alone, feeds = [], []
    for row, length in enumerate(lengths):
        slot = Slot(graphs)
        slot.advance(tokens(length, vocab, row))
        feeds.append({key: value.copy() for key, value in slot.state.items()})
        alone.append(slot.advance([100 + row])[0])
    batch = Slot(graphs)
    batch.state = {key: np.concatenate([feed[key] for feed in feeds]) for key in batch.state}
    past = np.array(lengths)
    out = batch.run(
        "advance",
        {
            "input_ids": np.array([[100], [101], [102]]),
            "positions": past[:, None],
            "seqlens_k": past.astype(np.int32),
            "total_seqlen": np.array(past.max() + 1, np.int32),
            "logit_rows": np.array([2, 0, 1]),
        },
    )
    np.testing.assert_allclose(out["logits"][[1, 2, 0]], np.stack(alone), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_mtp_rows_and_best_tokens(ort_graphs, name):
    ids = tokens(30, CONFIGS[name]["vocab_size"], 3)
    model = ReferenceModel(HashedModel(name))
    _, hidden = model.run(ids)
    slot = Slot(ort_graphs(name))
    slot.advance(ids)
    first = slot.draft(ids[1:20], slot.hidden[0, :19], 0)
    second = slot.draft(ids[20:], slot.hidden[0, 19:29], 19)
    rows = np.concatenate([first["hidden_out"], second["hidden_out"]], axis=1)[0]
    for j in range(1, len(ids)):
        logits, row = model.draft(hidden[j - 1], int(ids[j]), j - 1)
        assert np.abs(rows[j - 1] - row).max() < TOLERANCE
        out, at = (first, j - 1) if j < 20 else (second, j - 20)
        best = np.argsort(-logits, kind="stable")[:4]
        norm = np.log(np.exp(logits - logits.max()).sum()) + logits.max()
        assert np.abs(out["topk_logits"][at] - logits[best]).max() < TOLERANCE
        assert np.abs(out["log_norm"][at, 0] - norm) < TOLERANCE
        clear = np.abs(np.diff(np.sort(logits)[-5:])).min() > 2 * TOLERANCE
        assert not clear or out["topk_ids"][at].tolist() == best.tolist()
