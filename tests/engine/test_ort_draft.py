"""Draft steps against the MTP graph itself, run whole and without any of the executor's bookkeeping."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from edgellm.engine.base import Chunk, DraftNodes, TokenTree
from edgellm.engine.bundle import Bundle
from edgellm.engine.ort import OrtExecutor

F32 = NDArray[np.float32]


class Graphs:
    """advance and mtp as plain functions from zero state."""

    def __init__(self, bundle: Bundle) -> None:
        self.spec = bundle.manifest.spec
        names = ("advance", "mtp")
        self.sessions = {name: onnxruntime.InferenceSession(bundle.file(f"{name}.onnx")) for name in names}

    def hidden(self, tokens: list[int]) -> F32:
        size, linear = len(tokens), self.spec.linear
        feeds: dict[str, Any] = self._common(tokens) | {"logit_rows": np.zeros(0, np.int64)}
        for i in self.spec.linear_layers:
            feeds[f"conv_{i}"] = np.zeros((1, linear.conv_kernel - 1, linear.conv_channels), np.float32)
            shape = (1, linear.value_heads, linear.key_dim, linear.value_dim)
            feeds[f"state_{i}"] = np.zeros(shape, np.float32)
        for i in self.spec.full_layers:
            feeds |= {f"k_{i}": self._rows(size), f"v_{i}": self._rows(size)}
        return np.asarray(self.sessions["advance"].run(["hidden"], feeds)[0][0])

    def draft(self, tokens: list[int], chain: list[int]) -> tuple[F32, F32]:
        """Top ids and their logits after the chain; the chain's hidden rows are fed back one by one."""
        hidden = list(self.hidden(tokens))
        for count in range(1, len(chain) + 1):
            below = [*tokens[1:], *chain[:count]]
            size = len(below)
            feeds = self._common(below) | {
                "hidden_in": np.asarray(hidden)[None],
                "attn_bias": np.where(np.tri(size) > 0, 0, -1e30).astype(np.float32)[None, None],
                "logit_rows": np.array([size - 1]),
                "mtp_k": self._rows(size),
                "mtp_v": self._rows(size),
            }
            names = [value.name for value in self.sessions["mtp"].get_outputs()]
            found = dict(zip(names, self.sessions["mtp"].run(names, feeds), strict=True))
            hidden.append(found["hidden_out"][0, -1])
        logprobs = found["topk_logprobs"] if "topk_logprobs" in found else found["topk_logits"] - found["log_norm"]
        return found["topk_ids"][0], logprobs[0]

    def _common(self, tokens: list[int]) -> dict[str, Any]:
        size = len(tokens)
        return {
            "input_ids": np.array([tokens]),
            "positions": np.arange(size)[None],
            "seqlens_k": np.array([size - 1], np.int32),
            "total_seqlen": np.array(size, np.int32),
        }

    def _rows(self, size: int) -> F32:
        attention = self.spec.attention
        return np.zeros((1, attention.kv_heads, size, attention.head_dim), np.float32)


@pytest.fixture(scope="module")
def graphs(bundle: Bundle) -> Graphs:
    return Graphs(bundle)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_every_node_of_a_draft_tree(executor: OrtExecutor, graphs: Graphs, tokens: list[int], length: int) -> None:
    executor.advance([Chunk(2, tokens[:length], False)])
    root, rest = tokens[length], tokens[length + 1 :]
    parents = {1: [0, 0], 2: [1, 2, 2], 3: [3, 5, 4]}
    paths, used = [[root]], 0
    results = [executor.draft([DraftNodes(2, [root], [-1])])[0]]
    for above in parents.values():
        new = rest[used : used + len(above)]
        used += len(new)
        paths += [[*paths[parent], token] for parent, token in zip(above, new, strict=True)]
        results.append(executor.draft([DraftNodes(2, new, above)])[0])
    ids = np.concatenate([result.token_ids for result in results])
    logprobs = np.concatenate([result.logprobs for result in results])
    for node, path in enumerate(paths):
        expected_ids, expected = graphs.draft(tokens[:length], path)
        np.testing.assert_array_equal(ids[node], expected_ids)
        np.testing.assert_allclose(logprobs[node], expected, atol=1e-4)


def test_drafting_goes_on_after_commits(executor: OrtExecutor, graphs: Graphs, tokens: list[int]) -> None:
    """Draft, verify and commit in turn: the root is kept, replaced, or only the first of an accepted path."""
    held = tokens[:9]
    executor.advance([Chunk(0, held, False)])
    steps = [([0], True), ([0, 1], True), ([0, 2, 3], False), ([0, 2], True), ([0, 1], False)]
    for at, (path, same_root) in enumerate(steps):
        root, other, *below = tokens[20 + 8 * at : 28 + 8 * at]
        found = executor.draft([DraftNodes(0, [root], [-1])])[0]
        ids, logprobs = graphs.draft(held, [root])
        np.testing.assert_array_equal(found.token_ids[0], ids)
        np.testing.assert_allclose(found.logprobs[0], logprobs, atol=1e-4)
        executor.draft([DraftNodes(0, below[:2], [0, 0])])
        tree = [root if same_root else other, *below[:3]]
        executor.verify(TokenTree(0, tree, [-1, 0, 0, 2]))
        executor.commit(0, path)
        held += [tree[node] for node in path]
