"""What an operator may set about admission. Frozen; checked on construction with the setting named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from edgellm.errors import ConfigError

_SHARES = ("pause_threshold", "soft_demote_threshold", "pause_target")
_SECONDS = ("resume_timeout_s", "interval_s", "retention_s")
_LEAST_INTERVAL_S = 0.01  # a tick looks at every program
_COUNTS = ("snapshots_per_session", "max_sessions", "max_waiting")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Shares are of the cache's capacity. Times in seconds. Names and defaults as in Dynamo's ThunderAgent router,
    but for `snapshots_per_session`, `acting_hold_s`, `idle_hold_s`, `patience_s`, `max_sessions` and `max_waiting`,
    which are ours.
    """

    pause_threshold: float = 0.95  # above this programs are paused; nothing new is admitted beyond it
    soft_demote_threshold: float = 0.80  # from here to the pause threshold new turns go behind others
    pause_target: float = 0.80  # pausing goes on until this
    resume_hysteresis: float = 0.10  # a paused program comes back when that much less than the threshold is then used
    soft_demote_priority: int = -2  # added to the priority of a demoted program's next turn
    resume_priority_boost: int = 1  # added to the priority of a turn that waited
    resume_timeout_s: float = 1800.0  # a turn that waited this long runs, whether it fits or not
    interval_s: float = 5.0  # between ticks
    acting_token_weight: float = 1.0  # of the tokens of a program between turns
    buffer_tokens: int = 100  # room kept for each program
    retention_s: float = 1800.0  # a program without a turn for this long is forgotten
    snapshots_per_session: int = 3  # recurrent snapshots that a program is counted with
    acting_hold_s: float = 5.0  # for this long a program between turns keeps its place against turns that wait
    idle_hold_s: float = 1.0  # the same while nothing runs
    patience_s: float = 60.0  # a turn that waited this long goes before others, and acting programs make room at once
    max_sessions: int = 10_000  # programs that are known; beyond it the one that was idle longest is forgotten
    max_waiting: int = 256  # turns that may wait

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ConfigError(f"{item.name}: must be a number, got {value!r}")
            if item.type == "int" and not isinstance(value, int):
                raise ConfigError(f"{item.name}: must be an integer, got {value!r}")
        for name in _SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}: must be above 0 and at most 1, got {getattr(self, name)}")
        for name in ("soft_demote_threshold", "pause_target"):
            if getattr(self, name) > self.pause_threshold:
                raise ConfigError(f"{name}: must not be above pause_threshold, got {getattr(self, name)}")
        if not 0 <= self.resume_hysteresis < self.pause_threshold:
            message = f"must be from 0 to less than pause_threshold, got {self.resume_hysteresis}"
            raise ConfigError(f"resume_hysteresis: {message}")
        if self.interval_s < _LEAST_INTERVAL_S:
            raise ConfigError(f"interval_s: must be at least {_LEAST_INTERVAL_S}, got {self.interval_s}")
        for name in _SECONDS:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: must be positive, got {getattr(self, name)}")
        for name in ("acting_hold_s", "idle_hold_s", "patience_s", "buffer_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must not be negative, got {getattr(self, name)}")
        if not 0 <= self.acting_token_weight <= 1:
            raise ConfigError(f"acting_token_weight: must be 0 to 1, got {self.acting_token_weight}")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")

    @classmethod
    def of(cls, given: Sequence[str]) -> AdmissionSettings:
        """From texts like ``pause_threshold=0.9``.

        Raises:
            ConfigError: there is no such setting, or its value is out of range.
        """
        kinds = {item.name: item.type for item in fields(cls)}
        values: dict[str, Any] = {}
        for text in given:
            name, _, value = text.partition("=")
            if name not in kinds:
                raise ConfigError(f"admission_set: {name!r} is no setting; there are {', '.join(kinds)}")
            whole = kinds[name] == "int"
            try:
                values[name] = int(value) if whole else float(value)
            except ValueError:
                raise ConfigError(f"{name}: must be {'an integer' if whole else 'a number'}, got {value!r}") from None
        return cls(**values)

    @property
    def resume_ceiling(self) -> float:
        """The most that may be used once a paused program is back."""
        return self.pause_threshold - self.resume_hysteresis
