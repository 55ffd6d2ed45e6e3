"""Softmax attention for the CPU, with what a draft needs: keys that only one row sees.

Rows go in blocks, so that a block's scores stay in the cache and columns that no row of the block sees are never
computed. What must stay true: softmax in float32; every row sees something, a column or a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

_ROWS: Final = 64


def attend(q: Tensor, k: Tensor, v: Tensor, lag: int = 0, own: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
    """The context [B, H, T, d] of queries q.

    Args:
        q, k, v: [B, H, T, d]; row p sees columns 0 … p - lag.
        lag: see above.
        own: pairs like (k, v) of which row p sees row p only.
    """
    parts = [x.flatten(0, 1) for x in (q, k, v, *(key for key, _ in own), *(value for _, value in own))]
    return cast(Tensor, _Attention.apply(lag, *parts)).view_as(q)


def _blocks(rows: int, lag: int) -> Iterator[tuple[slice, int]]:
    """Blocks of rows, each with the number of columns that its last row sees."""
    for start in range(0, rows, _ROWS):
        end = min(start + _ROWS, rows)
        yield slice(start, end), max(end - lag, 0)


class _Attention(torch.autograd.Function):
    """Over [B·H, T, d]. The weights are kept for the backward pass, in the type of the queries."""

    @staticmethod
    def forward(ctx: Any, lag: int, q: Tensor, k: Tensor, v: Tensor, *own: Tensor) -> Tensor:
        keys, values = own[: len(own) // 2], own[len(own) // 2 :]
        q = q * q.shape[-1] ** -0.5
        out, kept = torch.empty_like(q), []
        for rows, seen in _blocks(q.shape[1], lag):
            part = q[:, rows]
            scores = torch.cat(
                [part @ k[:, :seen].transpose(1, 2), *((part * key[:, rows]).sum(-1, keepdim=True) for key in keys)], -1
            ).float()
            column, row = torch.arange(seen), torch.arange(rows.start, rows.stop)
            scores[..., :seen].masked_fill_(column > row[:, None] - lag, -torch.inf)
            weights = scores.softmax(-1).to(q.dtype)
            context = weights[..., :seen] @ v[:, :seen]
            for n, value in enumerate(values, seen):
                context.addcmul_(weights[..., n : n + 1], value[:, rows])
            out[:, rows] = context
            kept.append(weights)
        ctx.lag = lag
        ctx.save_for_backward(q, k, v, *own, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        blocks = list(_blocks(grad.shape[1], ctx.lag))
        q, k, v, *rest = ctx.saved_tensors
        own, kept = rest[: len(rest) - len(blocks)], rest[len(rest) - len(blocks) :]
        keys, values = own[: len(own) // 2], own[len(own) // 2 :]
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_keys, grad_values = [torch.empty_like(x) for x in keys], [torch.empty_like(x) for x in values]
        for (rows, seen), weights in zip(blocks, kept, strict=True):
            part, slope = q[:, rows], grad[:, rows]
            grad_v[:, :seen] += weights[..., :seen].transpose(1, 2) @ slope
            pulls = torch.cat(
                [slope @ v[:, :seen].transpose(1, 2), *((slope * x[:, rows]).sum(-1, keepdim=True) for x in values)], -1
            ).float()
            pulls = weights * (pulls - (weights * pulls).sum(-1, keepdim=True))
            pulls = pulls.to(q.dtype)
            grad_k[:, :seen] += pulls[..., :seen].transpose(1, 2) @ part
            turned = pulls[..., :seen] @ k[:, :seen]
            for n, key in enumerate(keys):
                pull, weight = (x[..., seen + n : seen + n + 1] for x in (pulls, weights))
                turned.addcmul_(pull, key[:, rows])
                grad_keys[n][:, rows] = pull * part
                grad_values[n][:, rows] = weight * slope
            grad_q[:, rows] = turned
        return None, grad_q * q.shape[-1] ** -0.5, grad_k, grad_v, *grad_keys, *grad_values
