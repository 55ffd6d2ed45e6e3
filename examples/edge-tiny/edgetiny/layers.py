"""The blocks of the network, with the family's parameter names.

What must stay true: for equal parameters every block computes what transformers' Qwen3.5 blocks compute (a parity test
compares the whole network). Matrix products run in `compute` (bfloat16 or float32), norms, decays and the delta rule in
float32.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgellm.checkpoint.spec import ModelSpec
from edgetiny.attention import attend
from edgetiny.delta_rule import gated_delta_rule


class Norm(nn.Module):
    """RMSNorm; `centred` ones multiply by 1 + weight."""

    def __init__(self, size: int, eps: float, centred: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if centred else torch.ones(size))
        self._eps, self._centred = eps, centred

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + self.weight if self._centred else self.weight
        return functional.rms_norm(x.float(), scale.shape, scale, self._eps)


class Linear(nn.Module):
    """A matrix without bias, [out, in]; `std` of its initial entries."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)


def project(x: Tensor, *layers: Linear, compute: torch.dtype) -> tuple[Tensor, ...]:
    """The outputs of several matrices on the same input, from one product."""
    weights = [layer.weight.to(compute) for layer in layers]
    if len(weights) == 1:
        return (functional.linear(x.to(compute), weights[0]),)
    return functional.linear(x.to(compute), torch.cat(weights)).split([len(weight) for weight in weights], -1)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec, std: float, out_std: float) -> None:
        super().__init__()
        self.gate_proj = Linear(spec.hidden, spec.intermediate, std)
        self.up_proj = Linear(spec.hidden, spec.intermediate, std)
        self.down_proj = Linear(spec.intermediate, spec.hidden, out_std)

    def forward(self, x: Tensor, compute: torch.dtype) -> Tensor:
        gate, up = project(x, self.gate_proj, self.up_proj, compute=compute)
        return project(functional.silu(gate) * up, self.down_proj, compute=compute)[0]


class Rope:
    """Cosines and sines [T, rotary_dim] of positions 0 … T-1."""

    def __init__(self, spec: ModelSpec, length: int) -> None:
        size = spec.attention.rotary_dim
        rates = spec.attention.rope_theta ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(length).double(), rates).repeat(1, 2)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()

    def turn(self, x: Tensor) -> Tensor:
        """Turn the leading dims of heads x [B, H, T, d]."""
        size = self.cos.shape[1]
        lead, rest = x.split([size, x.shape[-1] - size], -1)
        low, high = lead.chunk(2, -1)
        return torch.cat([lead * self.cos + torch.cat([-high, low], -1) * self.sin, rest], -1)


class Attention(nn.Module):
    """Gated attention in two halves, between which MTP brings keys of its own."""

    def __init__(self, spec: ModelSpec, std: float, out_std: float) -> None:
        super().__init__()
        a = self._spec = spec.attention
        self.q_proj = Linear(spec.hidden, 2 * a.heads * a.head_dim, std)
        self.k_proj = Linear(spec.hidden, a.kv_heads * a.head_dim, std)
        self.v_proj = Linear(spec.hidden, a.kv_heads * a.head_dim, std)
        self.o_proj = Linear(a.heads * a.head_dim, spec.hidden, out_std)
        self.q_norm = Norm(a.head_dim, spec.rms_eps)
        self.k_norm = Norm(a.head_dim, spec.rms_eps)

    def forward(self, x: Tensor, rope: Rope, compute: torch.dtype) -> Tensor:
        q, k, v, gate = self.heads(x, rope, compute)
        return self.merge(attend(q, k, v), gate, compute)

    def heads(self, x: Tensor, rope: Rope, compute: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, T, d], all turned and with every key head repeated, and the gate."""
        a = self._spec
        q, k, v = project(x, self.q_proj, self.k_proj, self.v_proj, compute=compute)
        q, gate = q.unflatten(-1, (a.heads, 2 * a.head_dim)).chunk(2, -1)
        k, v = (part.unflatten(-1, (a.kv_heads, a.head_dim)) for part in (k, v))
        q = rope.turn(self.q_norm(q).transpose(1, 2)).to(compute)
        k = rope.turn(self.k_norm(k).transpose(1, 2)).to(compute)
        share = a.heads // a.kv_heads
        return q, k.repeat_interleave(share, 1), v.transpose(1, 2).repeat_interleave(share, 1), gate.flatten(2)

    def merge(self, context: Tensor, gate: Tensor, compute: torch.dtype) -> Tensor:
        """o_proj of the gated context [B, heads, T, d]."""
        return project(context.transpose(1, 2).flatten(2) * gate.sigmoid(), self.o_proj, compute=compute)[0]


class Conv(nn.Module):
    """Causal depthwise convolution over [B, T, channels], and silu."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        bound = kernel**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        length, kernel = x.shape[1], self.weight.shape[-1]
        padded = functional.pad(x, (0, 0, kernel - 1, 0))
        taps = self.weight[:, 0].to(x.dtype).unbind(-1)
        total = padded[:, :length] * taps[0]
        for j in range(1, kernel):
            total = torch.addcmul(total, padded[:, j : j + length], taps[j])
        return functional.silu(total)


class DeltaNet(nn.Module):
    """Gated DeltaNet. Initial decays give memories of about one to a thousand tokens."""

    def __init__(self, spec: ModelSpec, std: float, out_std: float) -> None:
        super().__init__()
        g = self._spec = spec.linear
        width = g.value_heads * g.value_dim
        self.in_proj_qkv = Linear(spec.hidden, g.conv_channels, std)
        self.in_proj_z = Linear(spec.hidden, width, std)
        self.in_proj_b = Linear(spec.hidden, g.value_heads, std)
        self.in_proj_a = Linear(spec.hidden, g.value_heads, std)
        self.conv1d = Conv(g.conv_channels, g.conv_kernel)
        self.A_log = nn.Parameter(torch.empty(g.value_heads).uniform_(1, 16).log())
        step = torch.empty(g.value_heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(step.expm1().log())  # softplus(dt_bias) = step
        self.norm = Norm(g.value_dim, spec.rms_eps, centred=False)
        self.out_proj = Linear(width, spec.hidden, out_std)

    def forward(self, x: Tensor, compute: torch.dtype) -> Tensor:
        g = self._spec
        layers = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        qkv, z, b, a = project(x, *layers, compute=compute)
        keys = g.key_heads * g.key_dim
        q, k, v = self.conv1d(qkv).float().split([keys, keys, g.value_heads * g.value_dim], -1)
        q, k = (_unit(part.unflatten(-1, (g.key_heads, g.key_dim))) for part in (q, k))
        v = v.unflatten(-1, (g.value_heads, g.value_dim))
        decay = -self.A_log.exp() * functional.softplus(a.float() + self.dt_bias)
        y = gated_delta_rule(q * g.key_dim**-0.5, k, v, decay, b.float().sigmoid())
        gated = self.norm(y).flatten(2).to(compute) * functional.silu(z)
        return project(gated, self.out_proj, compute=compute)[0]


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class Layer(nn.Module):
    """One decoder layer over the float32 residual stream."""

    def __init__(self, spec: ModelSpec, full: bool, std: float, out_std: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(spec.hidden, spec.rms_eps)
        if full:
            self.self_attn = Attention(spec, std, out_std)
        else:
            self.linear_attn = DeltaNet(spec, std, out_std)
        self.post_attention_layernorm = Norm(spec.hidden, spec.rms_eps)
        self.mlp = Mlp(spec, std, out_std)
        self._full = full

    def forward(self, x: Tensor, rope: Rope, compute: torch.dtype) -> Tensor:
        normed = self.input_layernorm(x)
        mixed = self.self_attn(normed, rope, compute) if self._full else self.linear_attn(normed, compute)
        return self.close(x + mixed, compute)

    def close(self, x: Tensor, compute: torch.dtype) -> Tensor:
        """The second half of the layer: x + mlp(norm(x))."""
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x), compute))
