"""Cross entropy of rows against the tied head, with logits for no more than a few hundred rows at a time."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK: Final = 512


class _HeadLoss(torch.autograd.Function):
    """The gradients are made with the loss, while a block of logits is in the cache."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
        total = rows.new_zeros(())
        matrix = head.to(compute)
        row_grads, head_grad = torch.empty_like(rows), torch.zeros_like(head)
        for start in range(0, len(rows), _BLOCK):
            part, wanted = rows[start : start + _BLOCK].to(compute), targets[start : start + _BLOCK, None]
            logits = functional.linear(part, matrix).float()
            norm = logits.logsumexp(-1, keepdim=True)
            total += (norm - logits.gather(1, wanted)).sum()
            slope = logits.sub_(norm).exp_()
            slope.scatter_add_(1, wanted, slope.new_full(wanted.shape, -1.0))
            slope = slope.to(compute)
            row_grads[start : start + _BLOCK] = slope @ matrix
            head_grad += slope.t() @ part
        ctx.save_for_backward(row_grads, head_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        row_grads, head_grad = ctx.saved_tensors
        return row_grads * grads[0], head_grad * grads[0], None, None


def head_loss(rows: Tensor, head: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
    """Summed cross entropy of rows [n, hidden] against targets [n] under logits rows · head^T."""
    return cast(Tensor, _HeadLoss.apply(rows, head, targets, compute))


def token_loss(hidden: Tensor, ids: Tensor, mask: Tensor, head: Tensor, compute: torch.dtype) -> Tensor:
    """Summed loss of decoder rows [B, T, hidden] over the tokens of `mask` [B, T]; row p is about token p+1."""
    wanted = mask[:, 1:]
    return head_loss(hidden[:, :-1][wanted], head, ids[:, 1:][wanted], compute)


def draft_mask(mask: Tensor, step: int) -> Tensor:
    """Where draft step `step` (from 1) counts, [B, T-2] of a loss mask [B, T]: row p is about token p+2.

    These are the masked tokens whose draft has a masked root, `step` tokens before: all that a draft can meet.
    """
    wanted = mask[:, 2:].clone()
    wanted[:, : step - 1] = False
    wanted[:, step - 1 :] &= mask[:, 1 : mask.shape[1] - step]
    return wanted


def losses(
    outputs: tuple[Tensor, list[Tensor]], ids: Tensor, mask: Tensor, head: Tensor, compute: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Summed loss of the decoder over the tokens of `mask` [B, T], and that of each draft step.

    The sums of the steps are over fewer tokens than that of the decoder, by a few per sequence.
    """
    hidden, drafts = outputs
    steps = []
    for step, rows in enumerate(drafts, 1):
        wanted = draft_mask(mask, step)
        steps.append(head_loss(rows[:, :-1][wanted], head, ids[:, 2:][wanted], compute))
    return token_loss(hidden, ids, mask, head, compute), steps
