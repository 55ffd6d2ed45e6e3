"""The gated delta rule over whole sequences, chunked, with autograd.

Per value head and token: S <- e^g S; u = beta (v - S^T k); S <- S + k u^T; o = S^T q, from S = 0. Within a chunk the u
of all tokens solve one unit triangular system (the WY form); between chunks the state follows S <- M S + P, so the only
sequential part is one small matrix product per chunk.

What must stay true: float32 (or wider) throughout; no exponential of a positive number (g <= 0 everywhere, masked
entries are never exponentiated); the triangular system is solved by substitution, since powers of its matrix explode
when the keys of a chunk resemble each other. Tokens at the end (padding) influence nothing before them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

CHUNK: Final = 16


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = CHUNK) -> Tensor:
    """Outputs o [B, T, Hv, dv] of the rule.

    Args:
        q: [B, T, Hk, dk], normalised and scaled; each key head serves Hv / Hk consecutive value heads.
        k: [B, T, Hk, dk], normalised.
        v: [B, T, Hv, dv].
        g: [B, T, Hv], log decay, <= 0.
        beta: [B, T, Hv].
        chunk: tokens that are solved together; any length T is allowed.
    """
    batch, length, heads, width = v.shape
    q, k, v, g, beta = (_chunks(x, chunk) for x in (q, k, v, g[..., None], beta[..., None]))
    share = heads // k.shape[2]
    decay = g.cumsum(-2)  # [N, B, Hv, C, 1]
    ones = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device)
    gaps = (decay - decay.transpose(-1, -2)).masked_fill(~ones.tril(), -torch.inf).exp()
    inner = (q @ k.transpose(-1, -2)).repeat_interleave(share, 2) * gaps
    # The diagonal and what is above it are never read by the solver.
    system = (k @ k.transpose(-1, -2)).repeat_interleave(share, 2) * gaps * beta
    q, k = (x.repeat_interleave(share, 2) for x in (q, k))
    growth = decay.exp()
    right = torch.cat([v, k * growth], -1) * beta
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, memory = solved.split([width, k.shape[-1]], -1)
    last = decay[..., -1:, :]
    late = (k * (last - decay).exp()).transpose(-1, -2)
    states = _states(last.exp() * torch.eye(k.shape[-1], dtype=v.dtype) - late @ memory, late @ fresh)
    out = (q * growth) @ states + inner @ (fresh - memory @ states)
    return out.permute(1, 0, 3, 2, 4).reshape(batch, -1, heads, width)[:, :length]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, d] as [N, B, H, C, d]; zeros fill the last chunk."""
    batch, length, heads, width = x.shape
    x = functional.pad(x, (0, 0, 0, 0, 0, -length % chunk))
    return x.view(batch, -1, chunk, heads, width).permute(1, 0, 3, 2, 4).contiguous()


def _states(factors: Tensor, terms: Tensor) -> Tensor:
    """The state [N, B, H, dk, dv] before each chunk: S_0 = 0, S_(n+1) = factors_n S_n + terms_n."""
    state = torch.zeros_like(terms[0])
    states = [state]
    for factor, term in zip(factors[:-1].unbind(), terms[:-1].unbind(), strict=True):
        state = torch.baddbmm(term.flatten(0, 1), factor.flatten(0, 1), state.flatten(0, 1)).view_as(state)
        states.append(state)
    return torch.stack(states)
