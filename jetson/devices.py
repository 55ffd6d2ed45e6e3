"""The devices that `edgellm plan` knows: memory, bandwidth and where each figure comes from.

What must stay true: a figure here is a data sheet's or was read on such a device, and `source` says which; nothing is
scaled from another device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from edgellm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One box whose processor and GPU share its memory.

    Attributes:
        architecture: of the GPU, as compilers name it.
        memory_bytes: what Linux reports as MemTotal where that is known, else the data sheet's size.
        peak_gb_s: memory bandwidth of the data sheet, 10^9 bytes per second.
        read_gb_s: best read bandwidth that was measured on such a device; None: no figure.
        source: where the figures come from.
    """

    name: str
    title: str
    architecture: str
    memory_bytes: int
    peak_gb_s: float
    read_gb_s: float | None
    source: str


_KNOWN: Final = (
    Device(
        "thor",
        "Jetson AGX Thor (T5000), 128 GB",
        "sm_110",
        125_772 << 20,
        273.0,
        257.0,
        "data sheet; MemTotal from tegrastats on developer kits (125772 MB); read bandwidth as others measured it",
    ),
    Device(
        "thor-t4000",
        "Jetson T4000, 64 GB",
        "sm_110",
        64 << 30,
        273.0,
        None,
        "data sheet alone: Linux sees less memory",
    ),
    Device(
        "spark",
        "DGX Spark (GB10), 128 GB",
        "sm_121",
        128 << 30,
        273.0,
        None,
        "data sheet alone: Linux sees less memory",
    ),
    Device(
        "orin-agx",
        "Jetson AGX Orin, 64 GB",
        "sm_87",
        64 << 30,
        204.8,
        None,
        "data sheet alone: Linux sees less memory; no FP4 or FP8 arithmetic",
    ),
)
DEVICES: Final[Mapping[str, Device]] = MappingProxyType({device.name: device for device in _KNOWN})


def find_device(name: str) -> Device:
    """The device called `name`.

    Raises:
        ConfigError: there is none of that name; the message lists those there are.
    """
    if name not in DEVICES:
        raise ConfigError(f"device: {name!r} is not one of {', '.join(DEVICES)}")
    return DEVICES[name]
