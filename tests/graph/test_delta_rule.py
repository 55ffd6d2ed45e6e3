"""The tree form of the delta rule and its form by blocks against the token-by-token rule in float64; their stability
where keys are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graph_runner import CHAIN, CONFIGS, TREE, HashedModel, path_to, session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm.graph.builder import GraphBuilder
from edgellm.graph.commit import add_commit
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.indices import commit_rows, tree_index
from edgellm.graph.lowering.base import DeltaWeights
from edgellm.graph.lowering.block_chain import CHAIN_BLOCK, BlockChain
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.reference import delta_step
from edgellm.graph.tree import InlineTree
from edgellm.graph.weight_file import WeightFile

# One layer: 2 key heads, 6 value heads, key and value dims 32.
MODEL = HashedModel("grouped-untied", num_hidden_layers=1, full_attention_interval=2)
SPEC = MODEL.spec.linear
KEYS, RATIO = SPEC.key_heads * SPEC.key_dim, SPEC.value_heads // SPEC.key_heads
TAPS = np.linspace(-0.5, 1, 4).astype(np.float32)
DECAY, BIAS = np.linspace(-3, -0.01, SPEC.value_heads, dtype=np.float32), np.float32(0.1)


def add_layer(g, form):
    """One layer's mixing by `form`: inputs raw, b and a, output y."""
    heads, channels = SPEC.value_heads, SPEC.conv_channels
    weights = DeltaWeights(
        taps=tuple(g.const(np.full(channels, tap), np.float32) for tap in TAPS),
        decay=g.const(DECAY, np.float32),
        bias=g.const(np.full(heads, BIAS), np.float32),
    )
    raw = g.input("raw", np.float32, [1, "S", channels])
    if name := form.name_qkv(g, SPEC, 0):
        raw = g.op("Identity", [raw], output=name)
    b, a = (g.input(name, np.float32, [1, "S", heads]) for name in "ba")
    y = form.mix(g, OrtOps(MODEL, WeightFormat()), 0, raw, b, a, weights)
    g.op("Identity", [y], output=g.output("y", np.float32, [1, "S", heads * SPEC.value_dim]))


class Block:
    """Graphs of the tree block of one layer and of its commit."""

    def __init__(self, folder: Path) -> None:
        with WeightFile(folder / "weights.bin") as file:
            g = GraphBuilder("block", file)
            add_layer(g, InlineTree.declare(g, SPEC))
            g.save(folder / "block.onnx")
            g = GraphBuilder("commit", file)
            add_commit(g, MODEL.spec)
            g.save(folder / "commit.onnx")
        self._block, self._commit = session(folder / "block.onnx"), session(folder / "commit.onnx")

    def verify(self, parents, raw, b, a, conv, state):
        """Outputs by name; arguments have no batch dimension."""
        index = tree_index(parents, SPEC.conv_kernel)
        feeds = {
            "conv_idx": index.conv,
            "tree_mask": index.mask[None, None],
            "raw": raw[None],
            "b": b[None],
            "a": a[None],
        }
        feeds |= {"conv_0": conv[None], "state_0": state[None]}
        names = [item.name for item in self._block.get_outputs()]
        return dict(zip(names, self._block.run(None, feeds), strict=True))

    def commit(self, path, nodes, capsule, conv, state):
        """(conv, state) after the path."""
        accept = np.zeros((1, 1, 1, nodes, 1), np.float32)
        accept[0, 0, 0, path, 0] = 1
        feeds = {key: value for key, value in capsule.items() if key.startswith("cap_")}
        feeds |= {"accept": accept, "leaf": np.array([path[-1]]), "conv_rows": commit_rows(path, SPEC.conv_kernel)}
        outputs = self._commit.run(
            ["conv_out_0", "state_out_0"], {**feeds, "conv_0": conv[None], "state_0": state[None]}
        )
        return outputs[0][0], outputs[1][0]


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    return Block(tmp_path_factory.mktemp("block"))


def sequential(raw, b, a, conv, state):
    """(y [n, Hv*dv], conv rows, state) after the rows, one by one in float64."""
    rows, state, outputs = list(conv.astype(np.float64)), state.astype(np.float64), []
    for new, rate, gate in zip(*(x.astype(np.float64) for x in (raw, b, a)), strict=True):
        rows.append(new)
        mixed = sum(row * tap for row, tap in zip(rows[-4:], TAPS.astype(np.float64), strict=True))
        mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = np.split(mixed, [KEYS, 2 * KEYS])
        q, k = (x.reshape(SPEC.key_heads, SPEC.key_dim) for x in (q, k))
        q, k = (np.repeat(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), RATIO, axis=0) for x in (q, k))
        decay = np.exp(DECAY.astype(np.float64) * np.logaddexp(0, gate + BIAS))
        v = v.reshape(SPEC.value_heads, SPEC.value_dim)
        state, y = delta_step(state, q * SPEC.key_dim**-0.5, k, v, decay, 1 / (1 + np.exp(-rate)))
        outputs.append(y.ravel())
    return np.stack(outputs), np.stack(rows[-3:]), state


def check(block, parents, raw, b, a, conv, state, tolerance):
    """Every node's output equals the sequence of its path, and so does the committed state of every path."""
    out = block.verify(parents, raw, b, a, conv, state)
    assert all(np.isfinite(value).all() for value in out.values())
    for node in range(len(parents)):
        path = path_to(node, parents)
        y, rows, after = sequential(raw[path], b[path], a[path], conv, state)
        assert np.abs(out["y"][0, node] - y[-1]).max() < tolerance, node
        conv_out, state_out = block.commit(path, len(parents), out, conv, state)
        assert np.array_equal(conv_out, rows.astype(np.float32))
        assert np.abs(state_out - after).max() < tolerance, node


def random_rows(rng, nodes):
    raw = rng.standard_normal((nodes, SPEC.conv_channels)).astype(np.float32)
    b, a = (rng.standard_normal((nodes, SPEC.value_heads)).astype(np.float32) * 2 for _ in "ba")
    conv = rng.standard_normal((3, SPEC.conv_channels)).astype(np.float32)
    state = rng.standard_normal((SPEC.value_heads, SPEC.key_dim, SPEC.value_dim)).astype(np.float32)
    return raw, b, a, conv, state


@st.composite
def trees(draw):
    size = draw(st.integers(1, 16))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parents=trees(), seed=st.integers(0, 2**32 - 1))
def test_random_trees(block, parents, seed):
    check(block, parents, *random_rows(np.random.default_rng(seed), len(parents)), tolerance=2e-5)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parents=trees(), seed=st.integers(0, 2**32 - 1))
def test_equal_keys_full_rate_and_no_decay(block, parents, seed):
    """The worst case of the triangular system: all its entries below the diagonal are 1."""
    raw, b, a, conv, state = random_rows(np.random.default_rng(seed), len(parents))
    raw[:] = conv[:] = raw[0]
    check(block, parents, raw, np.full_like(b, 20), np.full_like(a, -30), conv, state, tolerance=2e-5)


@pytest.mark.parametrize("parents", [CHAIN, TREE])
def test_alternating_keys_and_changing_values(block, parents):
    """Keys of opposite sign (entries -1) and values that differ."""
    rng = np.random.default_rng(0)
    raw, b, a, conv, state = random_rows(rng, 16)
    raw[:, : 2 * KEYS] = conv[:, : 2 * KEYS] = raw[0, : 2 * KEYS]
    raw[1::2, KEYS : 2 * KEYS] *= -3
    check(block, parents, raw, np.full_like(b, 20), np.full_like(a, -30), conv, state, tolerance=2e-5)


def test_decay_to_nothing_stays_finite(block):
    """Log decays of -1000 per token: e^(G_i - G_j) over- and underflows where it must not be used."""
    rng = np.random.default_rng(1)
    raw, b, a, conv, state = random_rows(rng, 16)
    a[:] = 400
    a[::3] = -30
    check(block, TREE, raw, b, a, conv, state, tolerance=2e-5)


@pytest.fixture(scope="module", params=[1, 4], ids=lambda blocks: f"{blocks}-blocks")
def chunk(tmp_path_factory, request):
    """A run of one layer over a chunk by blocks: (y, conv rows, state) after its tokens, which may be fewer."""
    folder, tokens = tmp_path_factory.mktemp("chunk"), request.param * CHAIN_BLOCK
    with WeightFile(folder / "weights.bin") as file:
        g = GraphBuilder("chunk", file, {"S": tokens})
        add_layer(g, BlockChain.declare(g, SPEC, tokens))
        g.save(folder / "chunk.onnx")
    graph = session(folder / "chunk.onnx")

    def run(raw, b, a, conv, state):
        def padded(x):
            return np.concatenate([x, np.full((tokens - len(x), x.shape[1]), 9, np.float32)])[None]

        feeds = {
            "raw": padded(raw),
            "b": padded(b),
            "a": padded(a),
            "live": (np.arange(tokens) < len(raw)).astype(np.float32)[None, :, None],
            "conv_rows": commit_rows(range(len(raw)), SPEC.conv_kernel),
            "conv_0": conv[None],
            "state_0": state[None],
        }
        y, conv_out, state_out = graph.run(["y", "conv_out_0", "state_out_0"], feeds)
        return y[0, : len(raw)], conv_out[0], state_out[0]

    run.tokens = tokens
    return run


def check_chunk(chunk, raw, b, a, conv, state, tolerance):
    got, wanted = chunk(raw, b, a, conv, state), sequential(raw, b, a, conv, state)
    assert np.array_equal(got[1], wanted[1].astype(np.float32))
    for value, other in ((got[0], wanted[0]), (got[2], wanted[2])):
        assert np.isfinite(value).all()
        assert np.abs(value - other).max() < tolerance


@pytest.mark.parametrize("padding", [0, 1, 37, 63])
def test_chunks_by_blocks(chunk, padding):
    check_chunk(chunk, *random_rows(np.random.default_rng(padding), chunk.tokens - padding), tolerance=1e-4)


def test_chunks_of_equal_keys_full_rate_and_no_decay(chunk):
    """Repeated squaring is off by 1e11 in blocks of 64 here."""
    raw, b, a, conv, state = random_rows(np.random.default_rng(2), chunk.tokens)
    raw[:] = conv[:] = raw[0]
    check_chunk(chunk, raw, np.full_like(b, 20), np.full_like(a, -30), conv, state, tolerance=1e-4)


def test_chunks_of_alternating_keys_and_changing_values(chunk):
    raw, b, a, conv, state = random_rows(np.random.default_rng(3), chunk.tokens)
    raw[:, : 2 * KEYS] = conv[:, : 2 * KEYS] = raw[0, : 2 * KEYS]
    raw[1::2, KEYS : 2 * KEYS] *= -3
    check_chunk(chunk, raw, np.full_like(b, 20), np.full_like(a, -30), conv, state, tolerance=2e-4)


def test_chunks_that_decay_to_nothing_stay_finite(chunk):
    raw, b, a, conv, state = random_rows(np.random.default_rng(4), chunk.tokens)
    a[:] = 400
    a[::3] = -30
    check_chunk(chunk, raw, b, a, conv, state, tolerance=1e-4)


def test_configs_cover_what_they_claim():
    ratios = {c["linear_num_value_heads"] // c["linear_num_key_heads"] for c in CONFIGS.values()}
    assert ratios == {1, 2, 3}
    assert {c["tie_word_embeddings"] for c in CONFIGS.values()} == {True, False}
