"""Learning rate and curriculum as functions of the tokens trained on.

Warm-up, stable, decay: until the decay nothing depends on the length of the run, so a run can be extended from any
checkpoint before it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Over `tokens` tokens in all.

    Args:
        warmup: tokens of linear growth.
        decay: share of the run at its end over which the rate falls to `floor` of the peak.
        ripening: tokens until the curriculum stage is 1.
    """

    tokens: int
    warmup: int
    decay: float
    ripening: int
    floor: float = 0.02

    @property
    def decay_start(self) -> int:
        return int(self.tokens * (1 - self.decay))

    def rate(self, done: int) -> float:
        """Factor of the peak learning rate after `done` tokens."""
        grown = min(1.0, (done + 1) / max(self.warmup, 1))
        left = (self.tokens - done) / max(self.tokens - self.decay_start, 1)
        return grown * max(self.floor, min(1.0, left))

    def stage(self, done: int) -> float:
        """Curriculum stage after `done` tokens."""
        return min(1.0, done / max(self.ripening, 1))
