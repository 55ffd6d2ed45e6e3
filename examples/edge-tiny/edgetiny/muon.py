"""Muon: momentum whose matrix updates are made orthogonal by a Newton-Schulz iteration.

Every update has the same root mean square, whatever the shape, so that the rate is comparable with AdamW's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

# The quintic that pushes singular values towards 1 fastest without leaving about [0.7, 1.2] (Jordan et al. 2024).
_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
_ROUNDS: Final = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with their singular values brought near 1."""
    x = matrices.transpose(1, 2) if matrices.shape[1] > matrices.shape[2] else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        gram = x @ x.transpose(1, 2)
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return (x.transpose(1, 2) if matrices.shape[1] > matrices.shape[2] else x).float()


class Muon(torch.optim.Optimizer):
    """For matrices; those of one shape are treated in one batch. Entries of an update are about lr · scale."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, scale: float, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "scale": scale, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            shapes: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
            for param in group["params"]:
                shapes[param.shape].append(param)
            for shape, params in shapes.items():
                grads = torch.stack([self._look_ahead(param, group["momentum"]) for param in params])
                updates = orthogonal(grads) * (group["scale"] * max(shape) ** 0.5 * group["lr"])
                for param, update in zip(params, updates, strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update)

    def _look_ahead(self, param: Tensor, momentum: float) -> Tensor:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        assert param.grad is not None
        mean: Tensor = state["momentum"].lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(mean, momentum)
