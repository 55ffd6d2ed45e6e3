"""Muon: momentum whose matrix updates are made orthogonal by a Newton-Schulz iteration.

Every update has the same root mean square, whatever the shape, so that the rate is comparable with AdamW's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any, Final

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
    """For matrices. Entries of an update are about lr · scale. Matrices of one shape are one job of `pool`."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, scale: float, *, pool: Executor
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "scale": scale, "momentum": 0.95})
        self._pool = pool

    def step(self) -> None:
        shapes: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
        (group,) = self.param_groups
        for param in group["params"]:
            shapes[param.shape].append(param)
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        jobs = sorted(shapes.values(), key=lambda params: -len(params) * params[0].numel())  # the longest first
        for _ in self._pool.map(lambda params: self._update(params, group), jobs):
            pass

    @torch.no_grad()
    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """One step for matrices of one shape."""
        ahead = []
        for param in params:
            assert param.grad is not None
            mean = self.state[param]["momentum"].lerp_(param.grad, 1 - group["momentum"])
            ahead.append(param.grad.lerp(mean, group["momentum"]))
        size = group["scale"] * max(params[0].shape) ** 0.5 * group["lr"]
        for param, update in zip(params, orthogonal(torch.stack(ahead)), strict=True):
            param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)
