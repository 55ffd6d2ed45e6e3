"""Settings of an engine. Frozen; checked on construction with the setting named."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgellm.decode.params import SpeculationParams
from edgellm.errors import ConfigError

Speculation = SpeculationParams | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine. Budgets in bytes.

    `speculation` holds for requests that do not say: a shape, "auto" (chosen by measured cost), or None for off. It has
    no effect on an executor that cannot draft.
    """

    block_budget: int
    snapshot_budget: int
    speculation: Speculation = "auto"
    full_tree: SpeculationParams = field(default_factory=SpeculationParams)  # the largest shape that "auto" uses
    prefill_chunk: int = 512  # tokens prefilled between two decode rounds
    max_queue: int = 256  # requests that may wait for a slot
    cache_dir: Path | None = None  # shared prefixes survive a restart here
    retained_share: float = 0.5  # of either budget that may be retained above the default priority
    offload_bytes: int = 0  # of the second tier; 0: there is none
    offload_dir: Path | None = None  # where it is; None: in host memory
    warm_up: bool = False  # run every graph once before the first request

    def __post_init__(self) -> None:
        if (
            self.speculation is not None
            and self.speculation != "auto"
            and not isinstance(self.speculation, SpeculationParams)
        ):
            raise ConfigError(f'speculation: must be "auto", None or SpeculationParams, got {self.speculation!r}')
        for name, least in (
            ("block_budget", 0),
            ("snapshot_budget", 0),
            ("prefill_chunk", 1),
            ("max_queue", 1),
            ("offload_bytes", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.retained_share <= 1:
            raise ConfigError(f"retained_share: must be 0 to 1, got {self.retained_share}")
        if self.offload_dir is not None and self.offload_bytes == 0:
            raise ConfigError("offload_dir: nothing is offloaded while offload_bytes is 0")
