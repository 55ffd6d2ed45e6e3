"""The model in NumPy float64, token by token: the arithmetic that every graph is checked against.

Slow and simple on purpose: no cache layout, no fused step, no tree. What must stay true: it shares no code with the
graph builder beyond the tensor names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.graph.source import Source

F64 = NDArray[np.float64]


@dataclass(slots=True)
class _State:
    """One layer's memory of the tokens so far."""

    rows: list[F64] = field(default_factory=list)  # raw convolution inputs, newest last
    delta: F64 | None = None  # [Hv, dk, dv]
    keys: list[F64] = field(default_factory=list)  # [KV, head_dim] each
    values: list[F64] = field(default_factory=list)


class ReferenceModel:
    """One sequence. `step` takes the next token; `logits` and `hidden` are of the newest token."""

    def __init__(self, source: Source) -> None:
        self._source, self._spec = source, source.spec
        self._cache: dict[str, F64] = {}
        self._states = [_State() for _ in source.spec.layers]
        self._mtp = _State()
        self._position = 0

    def run(self, tokens: Sequence[int] | NDArray[Any]) -> tuple[F64, F64]:
        """Take tokens; (logits [n, vocab], hidden [n, hidden] after the final norm)."""
        hidden = np.stack([self._step(int(token)) for token in tokens])
        return hidden @ self._head().T, hidden

    def draft(self, hidden: F64, token: int, position: int) -> tuple[F64, F64]:
        """One MTP step: (logits [vocab], the row that feeds the next draft step [hidden])."""
        normed = [
            self._norm(self._tensor("embed_tokens.weight")[token], "mtp.pre_fc_norm_embedding.weight"),
            self._norm(hidden, "mtp.pre_fc_norm_hidden.weight"),
        ]
        x = self._tensor("mtp.fc.weight") @ np.concatenate(normed)
        x = self._norm(self._layer(x, "mtp.layers.0", self._mtp, position, full=True), "mtp.norm.weight")
        return self._head() @ x, x

    def _step(self, token: int) -> F64:
        x = self._tensor("embed_tokens.weight")[token]
        for i, kind in enumerate(self._spec.layers):
            x = self._layer(x, f"layers.{i}", self._states[i], self._position, full=kind == "full_attention")
        self._position += 1
        return self._norm(x, "norm.weight")

    def _layer(self, x: F64, name: str, state: _State, position: int, *, full: bool) -> F64:
        normed = self._norm(x, f"{name}.input_layernorm.weight")
        if full:
            x = x + self._attention(normed, f"{name}.self_attn", state, position)
        else:
            x = x + self._delta_net(normed, f"{name}.linear_attn", state)
        normed = self._norm(x, f"{name}.post_attention_layernorm.weight")
        gate, up, down = (self._tensor(f"{name}.mlp.{part}_proj.weight") for part in ("gate", "up", "down"))
        product: F64 = down @ (_silu(gate @ normed) * (up @ normed))
        return x + product

    def _attention(self, x: F64, name: str, state: _State, position: int) -> F64:
        spec = self._spec.attention
        q, gate = np.split((self._tensor(f"{name}.q_proj.weight") @ x).reshape(spec.heads, 2, spec.head_dim), 2, axis=1)
        k = (self._tensor(f"{name}.k_proj.weight") @ x).reshape(spec.kv_heads, spec.head_dim)
        v = (self._tensor(f"{name}.v_proj.weight") @ x).reshape(spec.kv_heads, spec.head_dim)
        q = self._rotate(self._norm(q[:, 0], f"{name}.q_norm.weight"), position)
        state.keys.append(self._rotate(self._norm(k, f"{name}.k_norm.weight"), position))
        state.values.append(v)
        group = spec.heads // spec.kv_heads
        keys = np.repeat(np.stack(state.keys, axis=1), group, axis=0)  # [heads, n, head_dim]
        values = np.repeat(np.stack(state.values, axis=1), group, axis=0)
        scores = np.einsum("hd,hnd->hn", q, keys) * spec.head_dim**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        context = np.einsum("hn,hnd->hd", weights, values) * _sigmoid(gate[:, 0])
        out: F64 = self._tensor(f"{name}.o_proj.weight") @ context.ravel()
        return out

    def _rotate(self, x: F64, position: int) -> F64:
        spec = self._spec.attention
        half = spec.rotary_dim // 2
        exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float32) / np.float32(spec.rotary_dim)
        # Frequencies and angles are float32 in the model's definition.
        angles = np.float32(position) * (np.float32(1) / np.power(np.float32(spec.rope_theta), exponents))
        cos, sin = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))
        a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def _delta_net(self, x: F64, name: str, state: _State) -> F64:
        spec = self._spec.linear
        state.rows.append(self._tensor(f"{name}.in_proj_qkv.weight") @ x)
        taps = self._tensor(f"{name}.conv1d.weight")[:, 0]  # [channels, kernel], oldest first
        recent = state.rows[-spec.conv_kernel :]
        mixed = _silu(np.sum([row * taps[:, -1 - back] for back, row in enumerate(reversed(recent))], axis=0))
        keys, group = spec.key_heads * spec.key_dim, spec.value_heads // spec.key_heads
        q, k, v = np.split(mixed, [keys, 2 * keys])
        q, k = (_unit(part.reshape(spec.key_heads, spec.key_dim)).repeat(group, axis=0) for part in (q, k))
        v = v.reshape(spec.value_heads, spec.value_dim)
        beta = _sigmoid(self._tensor(f"{name}.in_proj_b.weight") @ x)
        a = self._tensor(f"{name}.in_proj_a.weight") @ x + self._tensor(f"{name}.dt_bias")
        decay = np.exp(-np.exp(self._tensor(f"{name}.A_log")) * np.logaddexp(0, a))
        if state.delta is None:
            state.delta = np.zeros((spec.value_heads, spec.key_dim, spec.value_dim))
        state.delta, y = delta_step(state.delta, q * spec.key_dim**-0.5, k, v, decay, beta)
        y = y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + self._spec.rms_eps)
        y = (
            y
            * self._tensor(f"{name}.norm.weight")
            * _silu(self._tensor(f"{name}.in_proj_z.weight") @ x).reshape(y.shape)
        )
        out: F64 = self._tensor(f"{name}.out_proj.weight") @ y.ravel()
        return out

    def _norm(self, x: F64, name: str) -> F64:
        normed: F64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._spec.rms_eps)
        return normed * (1 + self._tensor(name))

    def _head(self) -> F64:
        return self._tensor("embed_tokens.weight" if self._spec.tied_embeddings else "lm_head.weight")

    def _tensor(self, name: str) -> F64:
        if name not in self._cache:
            self._cache[name] = np.asarray(self._source.tensor(name)).astype(np.float64)
        return self._cache[name]


def delta_step(state: F64, q: F64, k: F64, v: F64, decay: F64, beta: F64) -> tuple[F64, F64]:
    """One token of the gated delta rule: (new state, output).

    Args:
        state: [H, dk, dv].
        q, k: [H, dk]; q is scaled, k has length 1.
        v: [H, dv].
        decay: e^g, [H].
        beta: [H].
    """
    state = state * decay[:, None, None]
    u = beta[:, None] * (v - np.einsum("hkv,hk->hv", state, k))
    state = state + k[:, :, None] * u[:, None, :]
    out: F64 = np.einsum("hkv,hk->hv", state, q)
    return state, out


def _sigmoid(x: F64) -> F64:
    out: F64 = np.exp(-np.logaddexp(0, -x))
    return out


def _silu(x: F64) -> F64:
    return x * _sigmoid(x)


def _unit(x: F64) -> F64:
    out: F64 = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
    return out
