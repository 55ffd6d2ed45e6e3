"""Power mode, clocks, temperatures and throttling: what a speed means nothing without.

Sources: `nvpmodel -q`; /sys/class/devfreq (gpu-gpc-0 and bwmgr on Thor, in Hz, readable by all) and cpufreq (kHz), and
where those lack a clock `jetson_clocks --show`, which wants root; thermal zones in millidegrees; the over-current
counters of soctherm_oc and the throttle alerts among the cooling devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edgellm.jetson.host import Host

_DEVFREQ: Final = (("gpu", ("gpu-gpc-0", "*.gpu")), ("memory", ("bwmgr",)))
_SHOWN: Final = re.compile(r"^(GPU|EMC)\s+MinFreq=(\d+)\s+MaxFreq=(\d+)\s+CurrentFreq=(\d+)", re.MULTILINE)
_MODE: Final = re.compile(r"NV Power Mode:\s*(.+)")


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock in MHz: now, and the range that it may move in."""

    name: str
    mhz: float
    lowest_mhz: float
    highest_mhz: float

    @property
    def pinned(self) -> bool:
        """Whether it cannot move, as after `jetson_clocks`."""
        return self.lowest_mhz == self.highest_mhz


@dataclass(frozen=True, slots=True)
class Power:
    """The state of a machine while something is measured on it.

    Attributes:
        mode: name of the power mode, e.g. "MAXN"; None: nvpmodel is not there or does not answer.
        temperatures: zone → degrees Celsius.
        throttling: counter or alert → its value, those that are not 0. Counters count since the machine was started.
    """

    mode: str | None
    clocks: tuple[Clock, ...]
    temperatures: dict[str, float]
    throttling: dict[str, int]


def read_power(host: Host) -> Power:
    """Ask `host` now."""
    return Power(_mode(host), tuple(_clocks(host)), _temperatures(host), _throttling(host))


def _mode(host: Host) -> str | None:
    answer = host.run(["nvpmodel", "-q"])
    found = None if answer is None else _MODE.search(answer)
    return None if found is None else found[1].strip()


def _clocks(host: Host) -> Iterator[Clock]:
    found = []
    for name, patterns in _DEVFREQ:
        folders = [folder for pattern in patterns for folder in host.find(f"sys/class/devfreq/{pattern}")]
        values = [host.number(f"{folders[0]}/{which}_freq") for which in ("cur", "min", "max")] if folders else []
        clock = _clock(name, values, 1e6)
        if clock is not None:
            found.append(clock)
    if len(found) < len(_DEVFREQ):
        known = {clock.name for clock in found}
        found += [clock for clock in _shown(host) if clock.name not in known]
    yield from found
    cores = [_core(host, folder) for folder in host.find("sys/devices/system/cpu/cpu[0-9]*/cpufreq")]
    fastest = max((core for core in cores if core is not None), key=lambda core: core.highest_mhz, default=None)
    if fastest is not None:
        yield fastest


def _core(host: Host, folder: str) -> Clock | None:
    return _clock("cpu", [host.number(f"{folder}/scaling_{which}_freq") for which in ("cur", "min", "max")], 1e3)


def _shown(host: Host) -> list[Clock]:
    rows = _SHOWN.findall(host.run(["jetson_clocks", "--show"]) or "")
    names = {"GPU": "gpu", "EMC": "memory"}
    return [Clock(names[name], int(now) / 1e6, int(low) / 1e6, int(high) / 1e6) for name, low, high, now in rows]


def _clock(name: str, values: list[int | None], unit: float) -> Clock | None:
    """From (now, lowest, highest) in 1/`unit` MHz; None when one of them could not be read."""
    known = [value / unit for value in values if value is not None]
    return Clock(name, *known) if len(known) == 3 else None


def _temperatures(host: Host) -> dict[str, float]:
    zones: dict[str, float] = {}
    for folder in host.find("sys/class/thermal/thermal_zone*"):
        name, value = host.text(f"{folder}/type"), host.number(f"{folder}/temp")
        if name and value is not None:  # a zone whose part is switched off cannot be read
            zones[name] = value / 1000
    return zones


def _throttling(host: Host) -> dict[str, int]:
    counted: dict[str, int] = {}
    for folder in host.find("sys/class/hwmon/hwmon*"):
        if host.text(f"{folder}/name") == "soctherm_oc":
            for path in host.find(f"{folder}/oc*_event_cnt"):
                counted[path.rpartition("/")[2].removesuffix("_event_cnt")] = host.number(path) or 0
    for folder in host.find("sys/class/thermal/cooling_device*"):
        name = host.text(f"{folder}/type") or ""
        if "throttle" in name:
            counted[name] = host.number(f"{folder}/cur_state") or 0
    return {name: value for name, value in counted.items() if value}
