"""One optimizer step after another, with all that has to survive a restart in `Trainer.state`.

What must stay true: a step is a function of the state alone. Its batches are computed by threads of one core each (on
a CPU an operation split over cores waits for the slowest of them, at every operation) and their gradients are added in
the order of the batches, so the result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgetiny.batches import Batch, Sampler, Stream
from edgetiny.loss import losses, token_loss
from edgetiny.model import EdgeTiny
from edgetiny.muon import Muon
from edgetiny.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one run. All but the optimizer may change when it is resumed."""

    optimizer: str = "muon"  # of the matrices: muon or adamw
    rate: float = 2e-3
    muon_scale: float = 0.2  # root mean square of the entries of a Muon update, in learning rates; AdamW's is 0.2 to 1
    weight_decay: float = 0.1
    clip: float = 1.0
    micro_batches: int = 2  # per step
    micro_tokens: int = 4096
    longest: int = 2048
    draft_steps: int = 3
    repeat_weight: float = 0.3  # of the loss on prompt tokens that repeat (see `Batch`)
    draft_weight: float = 0.3  # of the mean loss of the draft steps


class Trainer:
    """Model, optimizers and position in the data."""

    def __init__(
        self,
        model: EdgeTiny,
        sample: Sampler,
        schedule: Schedule,
        settings: Settings,
        *,
        threads: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.schedule, self.settings = model, schedule, settings
        self.steps, self.tokens = 0, 0
        self._pool = ThreadPoolExecutor(threads)
        self._optimizers = _optimizers(model, settings, self._pool)
        position = None
        if state is not None:
            model.load_state_dict(state["model"])
            for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
                now = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
                optimizer.load_state_dict(kept)
                for group, options in zip(optimizer.param_groups, now, strict=True):
                    group.update(options)  # the settings win
            self.steps, self.tokens, position = state["steps"], state["tokens"], state["position"]
        self._stream = Stream(sample, size=settings.micro_tokens, longest=settings.longest, state=position)

    def state(self) -> dict[str, Any]:
        """Everything a step depends on. No random numbers are drawn while training: there is no generator to keep."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "steps": self.steps,
            "tokens": self.tokens,
            "position": self._stream.state(),
        }

    @property
    def stage(self) -> float:
        return self.schedule.stage(self.tokens)

    def step(self) -> dict[str, Any]:
        """One optimizer step; what it measured."""
        settings = self.settings
        batches = [self._stream.next(self.stage) for _ in range(settings.micro_batches)]
        rate = settings.rate * self.schedule.rate(self.tokens)
        results = list(self._pool.map(self._gradients, batches))
        learnt = sum(int(batch.mask[:, 1:].sum()) for batch in batches)
        for param, *grads in zip(self.model.parameters(), *(result[0] for result in results), strict=True):
            param.grad = torch.stack(grads).sum(0) / learnt
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient of step {self.steps} is not finite")
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.steps += 1
        self.tokens += sum(batch.tokens for batch in batches)
        sums = torch.tensor([result[1] for result in results]).sum(0) / learnt
        return {
            "step": self.steps,
            "tokens": self.tokens,
            "stage": round(self.stage, 4),
            "loss": round(float(sums[0]), 5),
            "mtp": [round(float(value), 5) for value in sums[1:]],
            "norm": round(float(norm), 4),
            "lr": round(rate, 8),
        }

    def _gradients(self, batch: Batch) -> tuple[Sequence[Tensor], list[float]]:
        """Gradients of the summed loss of one batch, and the sums: decoder, then each draft step."""
        model, settings = self.model, self.settings
        outputs = model(batch.ids, settings.draft_steps)
        base, drafts = losses(outputs, batch.ids, batch.mask, model.head, model.compute)
        total = base + sum(drafts, torch.zeros(())) * (settings.draft_weight / max(len(drafts), 1))
        if settings.repeat_weight:
            again = token_loss(outputs[0], batch.ids, batch.repeats, model.head, model.compute)
            total = total + settings.repeat_weight * again
        grads = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
        return grads, [float(part.detach()) for part in (base, *drafts)]


def _optimizers(model: EdgeTiny, settings: Settings, pool: ThreadPoolExecutor) -> list[torch.optim.Optimizer]:
    """Weight decay on matrices only. Muon leaves the embedding and very thin matrices to AdamW."""
    named = dict(model.named_parameters())
    matrices = {name for name, param in named.items() if param.ndim == 2}
    turned: set[str] = set()
    if settings.optimizer == "muon":
        turned = {name for name in matrices if "embed_tokens" not in name and min(named[name].shape) >= 32}
    groups = [
        {"params": [named[name] for name in named if name in matrices - turned], "weight_decay": settings.weight_decay},
        {"params": [named[name] for name in named if name not in matrices], "weight_decay": 0.0},
    ]
    found: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, settings.rate, betas=(0.9, 0.95))]
    if turned:
        params = [named[name] for name in named if name in turned]
        found.append(Muon(params, settings.rate, settings.weight_decay, settings.muon_scale, pool=pool))
    return found
