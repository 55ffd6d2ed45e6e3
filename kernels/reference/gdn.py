"""References of the Gated DeltaNet kernels: token by token, in float64, rounded where a kernel stores.

Sources: the model's definition (`edgellm.graph.reference`); a capsule holds, for every node of a tree, its key k, its
update u = beta (v - S^T k) and the total G of the log decays on its path. What must stay true: rows from COUNT on and
capsule nodes that were not accepted are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import COUNT, Tensors

F64 = NDArray[np.float64]


def gdn_prep(sizes: Sizes, t: Tensors) -> None:
    """Commit the accepted nodes' rows to conv_state, then make the operands of the tree's nodes.

    cap_c io(capsule, C) becomes the rows of this step. See `_operands` for q, k, v, log_decay and beta.
    """
    count = int(t["control"][COUNT])
    _commit_rows(t["conv_state"], t["cap_c"], accepted_nodes(t))
    t["cap_c"][:count] = t["qkv"][:count]
    for row, path in enumerate(_paths(t["parents"][:count].tolist())):
        _operands(sizes, t, row, [t["qkv"][node] for node in path])


def gdn_prep_chain(sizes: Sizes, t: Tensors) -> None:
    """The operands of COUNT consecutive tokens; the convolution continues conv_state."""
    count = int(t["control"][COUNT])
    for row in range(count):
        _operands(sizes, t, row, list(t["qkv"][: row + 1]))


def gdn_tree_verify(sizes: Sizes, t: Tensors) -> None:
    """Commit the accepted path to the state, then run the delta rule along every node's path.

    y io(rows, Hv, dv), new_cap_k io(capsule, Hk, dk), new_cap_u f32(capsule, Hv, dv), new_cap_g f32(capsule, Hv).
    """
    nodes = accepted_nodes(t)
    committed = t["state"].astype(np.float64)
    if nodes:
        committed = _commit(committed, nodes, t["cap_k"], t["cap_u"], t["cap_g"])
        t["state"][...] = committed
    count = int(t["control"][COUNT])
    states: list[F64] = []
    totals: list[F64] = []
    for node in range(count):
        mask = int(t["ancestors"][node, 0])
        parent = max((other for other in range(node) if mask >> other & 1), default=None)
        before, total = (committed, np.zeros(sizes.value_heads)) if parent is None else (states[parent], totals[parent])
        state, update, out = _step(before, t, node)
        states.append(state)
        totals.append(total + t["log_decay"][node])
        t["y"][node] = out
        t["new_cap_k"][node] = t["k"][node]
        t["new_cap_u"][node] = update
        t["new_cap_g"][node] = totals[node]


def gdn_commit(sizes: Sizes, t: Tensors) -> None:
    """Commit the accepted path of every layer to state f32(layers, Hv, dk, dv) and conv_state io(layers, K-1, C)."""
    nodes = accepted_nodes(t)
    if not nodes:
        return
    for layer in range(sizes.layers):
        capsule = (t[name][layer] for name in ("cap_k", "cap_u", "cap_g"))
        t["state"][layer] = _commit(t["state"][layer].astype(np.float64), nodes, *capsule)
        _commit_rows(t["conv_state"][layer], t["cap_c"][layer], nodes)


def gdn_prefill(sizes: Sizes, t: Tensors) -> None:
    """The delta rule over COUNT consecutive tokens: y io(rows, Hv, dv) and both states moved on."""
    count = int(t["control"][COUNT])
    state = t["state"].astype(np.float64)
    for token in range(count):
        state, _, t["y"][token] = _step(state, t, token)
    t["state"][...] = state
    _commit_rows(t["conv_state"], t["qkv"], range(count))


def accepted_nodes(t: Tensors) -> list[int]:
    """Nodes of the bit mask accepted[0], ascending: a path, for parents come before their children."""
    return [node for node in range(32) if int(t["accepted"][0]) >> node & 1]


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """Each node's ancestors from the root on, and itself."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths


def _commit_rows(conv_state: NDArray[np.generic], rows: NDArray[np.generic], nodes: Sequence[int]) -> None:
    """conv_state becomes the last K-1 rows of [conv_state; rows[nodes]]."""
    conv_state[...] = np.concatenate([conv_state, rows[list(nodes)]])[len(nodes) :]


def _operands(sizes: Sizes, t: Tensors, row: int, path: list[NDArray[np.generic]]) -> None:
    """q, k io(rows, Hk, dk), v io(rows, Hv, dv), log_decay, beta f32(rows, Hv) of the last token of `path`.

    silu(causal depthwise convolution of [conv_state; path]); x / sqrt(sum x² + 1e-6) for the heads of q and k;
    decay * softplus(a + dt_bias); sigmoid(b).
    """
    recent = np.stack([*t["conv_state"], *path][-sizes.conv_kernel :]).astype(np.float64)
    mixed = _silu((recent * t["taps"].astype(np.float64)).sum(axis=0))
    width = sizes.key_heads * sizes.key_dim
    q, k, v = np.split(mixed, [width, 2 * width])
    for name, part in (("q", q), ("k", k)):
        heads = part.reshape(sizes.key_heads, sizes.key_dim)
        t[name][row] = heads / np.sqrt((heads * heads).sum(axis=-1, keepdims=True) + 1e-6)
    t["v"][row] = v.reshape(sizes.value_heads, sizes.value_dim)
    a, b = (t[name][row].astype(np.float64) for name in ("a", "b"))
    t["log_decay"][row] = t["decay"] * np.logaddexp(0, a + t["dt_bias"])
    t["beta"][row] = _sigmoid(b)


def _step(state: F64, t: Tensors, row: int) -> tuple[F64, F64, F64]:
    """(state after, u, output) of one token: S = e^g S, u = beta (v - S^T k), S = S + k u^T, y = S^T q / sqrt(dk)."""
    q, k, v, g, beta = (t[name][row].astype(np.float64) for name in ("q", "k", "v", "log_decay", "beta"))
    group = len(v) // len(k)
    q, k = np.repeat(q, group, axis=0), np.repeat(k, group, axis=0)
    state = state * np.exp(g)[:, None, None]
    u = beta[:, None] * (v - np.einsum("hkv,hk->hv", state, k))
    state = state + k[:, :, None] * u[:, None, :]
    return state, u, np.einsum("hkv,hk->hv", state, q) / np.sqrt(q.shape[-1])


def _commit(
    state: F64,
    nodes: Sequence[int],
    cap_k: NDArray[np.generic],
    cap_u: NDArray[np.generic],
    cap_g: NDArray[np.generic],
) -> F64:
    """The state after the nodes of a path, one after another: S = e^(G - G of the node before) S + k u^T."""
    total = np.zeros(len(state))
    for node in nodes:
        k, u, g = (values[node].astype(np.float64) for values in (cap_k, cap_u, cap_g))
        k = np.repeat(k, len(u) // len(k), axis=0)
        state = state * np.exp(g - total)[:, None, None] + k[:, :, None] * u[:, None, :]
        total = g
    return state


def _sigmoid(x: F64) -> F64:
    out: F64 = np.exp(-np.logaddexp(0, -x))
    return out


def _silu(x: F64) -> F64:
    return x * _sigmoid(x)
