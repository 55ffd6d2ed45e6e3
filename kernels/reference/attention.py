"""References of the attention and KV-cache kernels: one row, one head, one token at a time, in float64.

Keys and values are what their E4M3 codes stand for. Rows from COUNT on are left as they are.
"""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import CONTEXT, COUNT, FIRST, TAIL_START, Tensors

F64 = NDArray[np.float64]
NOTHING_SEEN: Final = -1e30


def to_e4m3(x: NDArray[Any], scale: np.float32) -> NDArray[Any]:
    """E4M3(x / scale), divided in float32, rounded to nearest even; what is too large becomes ±448."""
    codes: NDArray[Any] = np.clip(x.astype(np.float32) / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes


def attn_prep(sizes: Sizes, t: Tensors) -> None:
    """Per head x / sqrt(mean x² + eps) · norm, then RoPE on the first rotary_dim values: `graph.reference`'s.

    Values i and i + rotary_dim / 2 are one pair, turned by the angle of the row's position.
    """
    start, half = int(t["control"][TAIL_START]), sizes.rotary_dim // 2

    def prepared(x: NDArray[Any], norm: NDArray[Any], position: int) -> F64:
        x = x.astype(np.float64)
        x = x / math.sqrt(float(np.mean(x * x)) + sizes.rms_eps) * norm.astype(np.float64)
        cos, sin = (t[name][position].astype(np.float64) for name in ("cos", "sin"))
        a, b, rest = x[:half], x[half : 2 * half], x[2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest])

    for row in range(int(t["control"][COUNT])):
        position, node = int(t["position_ids"][row]), start + row
        q, k, v = (t[name][row].reshape(-1, sizes.head_dim) for name in ("q", "k", "v"))
        for head in range(sizes.heads):
            t["q_rotated"][row, head] = prepared(q[head], t["q_norm"], position)
        for head in range(sizes.kv_heads):
            t["tail_k"][node, head] = to_e4m3(prepared(k[head], t["k_norm"], position), t["kv_scale"][0])
            t["tail_v"][node, head] = to_e4m3(v[head], t["kv_scale"][1])


def tree_attn_partial(sizes: Sizes, t: Tensors) -> None:
    """Everything in split 0: with s = log2(e) q·k / sqrt(D) and w = 2^(s - highest s), the sums of w and of w·v.

    A kernel divides the tokens among the splits; only what `tree_attn_reduce` makes of all splits is comparable.
    """
    start, skipped, width = int(t["control"][TAIL_START]), int(t["control"][FIRST]), sizes.group
    t["part_ml"][...] = NOTHING_SEEN, 0
    t["part_o"][...] = 0
    for row in range(int(t["control"][COUNT])):
        mask = t["ancestors"][start + row].view(np.uint32)
        nodes = [node for node in range(sizes.tail) if int(mask[node // 32]) >> node % 32 & 1]
        for head in range(sizes.heads):
            kv_head, place = head // width, row * width + head % width
            keys, values = _context(sizes, t, kv_head, int(t["control"][CONTEXT]))
            keys, values = keys[skipped:], values[skipped:]
            keys = np.concatenate([keys, _decoded(t["tail_k"][nodes, kv_head], t["kv_scale"][0])])
            values = np.concatenate([values, _decoded(t["tail_v"][nodes, kv_head], t["kv_scale"][1])])
            scores = math.log2(math.e) * _scores(t["q"][row, head], keys)
            weights = np.exp2(scores - scores.max())
            t["part_ml"][0, kv_head, place] = scores.max(), weights.sum()
            t["part_o"][0, kv_head, place] = weights @ values


def tree_attn_reduce(sizes: Sizes, t: Tensors) -> None:
    """sum of 2^(m - M) o over sum of 2^(m - M) l, over the splits that saw a token (l > 0); M is the highest m."""
    for row in range(sizes.rows):
        for head in range(sizes.heads):
            kv_head, place = head // sizes.group, row * sizes.group + head % sizes.group
            found = t["part_ml"][:, kv_head, place].astype(np.float64)
            splits = [s for s in range(sizes.splits) if found[s, 1] != 0]
            highest = max((found[s, 0] for s in splits), default=0.0)
            above = np.zeros(sizes.head_dim)
            below = np.float64(0)
            for s in splits:
                factor = np.exp2(found[s, 0] - highest)
                above += factor * t["part_o"][s, kv_head, place].astype(np.float64)
                below += factor * found[s, 1]
            with np.errstate(invalid="ignore"):  # a row that saw nothing means nothing
                t["context"][row].reshape(sizes.heads, -1)[head] = above / below


def attn_prefill(sizes: Sizes, t: Tensors) -> None:
    """softmax(q·k / sqrt(D)) v; row i sees the tokens 0 … CONTEXT + i of the pages."""
    for row in range(int(t["control"][COUNT])):
        for head in range(sizes.heads):
            keys, values = _context(sizes, t, head // sizes.group, int(t["control"][CONTEXT]) + row + 1)
            scores = _scores(t["q"][row, head], keys)
            weights = np.exp(scores - scores.max())
            t["context"][row].reshape(sizes.heads, -1)[head] = weights / weights.sum() @ values


def kv_write(sizes: Sizes, t: Tensors) -> None:
    """Row i becomes token CONTEXT + i."""
    for row in range(int(t["control"][COUNT])):
        place = _place(sizes, t, int(t["control"][CONTEXT]) + row)
        t["k_pages"][place], t["v_pages"][place] = t["new_k"][row], t["new_v"][row]


def kv_commit(sizes: Sizes, t: Tensors) -> None:
    """The accepted rows, in ascending order, become the tokens CONTEXT, CONTEXT + 1, … of every layer."""
    accepted = [row for row in range(min(sizes.tail, 32)) if int(t["accepted"][0]) >> row & 1]
    for layer in range(sizes.layers):
        for step, row in enumerate(accepted):
            place = _place(sizes, t, int(t["control"][CONTEXT]) + step)
            t["k_pages"][layer][place] = t["tail_k"][layer, row]
            t["v_pages"][layer][place] = t["tail_v"][layer, row]


def kv_copy_page(sizes: Sizes, t: Tensors) -> None:
    """`copy` is (source, target, pages of a layer): page `target` of every layer becomes page `source`."""
    source, target, _ = (int(page) for page in t["copy"])
    for name in ("k_pages", "v_pages"):
        for layer in range(sizes.layers):
            t[name][layer, target] = t[name][layer, source]


def _place(sizes: Sizes, t: Tensors, token: int) -> tuple[int, int]:
    """(page, row in it) of a token."""
    return int(t["page_table"][token // sizes.page]), token % sizes.page


def _decoded(codes: NDArray[Any], scale: np.float32) -> F64:
    return codes.astype(np.float64) * float(scale)


def _context(sizes: Sizes, t: Tensors, kv_head: int, tokens: int) -> tuple[F64, F64]:
    """Keys and values [tokens, head_dim] of one head."""
    places = [_place(sizes, t, token) for token in range(tokens)]
    keys, values = (
        np.array([pages[page, row, kv_head] for page, row in places], ml_dtypes.float8_e4m3fn)
        for pages in (t["k_pages"], t["v_pages"])
    )
    shape = (tokens, sizes.head_dim)
    return _decoded(keys.reshape(shape), t["kv_scale"][0]), _decoded(values.reshape(shape), t["kv_scale"][1])


def _scores(q: NDArray[Any], keys: F64) -> F64:
    scores: F64 = keys @ q.astype(np.float64) / math.sqrt(keys.shape[1])
    return scores
