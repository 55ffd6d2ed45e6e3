"""Versions: which JetPack an L4T release is, which TensorRT and NVRTC fit, and how to compare them.

What must stay true: a release that is not in the table is said to be unknown, never taken for a near one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Release:
    """What one L4T release brings along."""

    jetpack: str
    cuda: str
    tensorrt: str


RELEASES: Final[Mapping[str, Release]] = MappingProxyType(
    {
        "38.2": Release("7.0", "13.0", "10.13.3.9"),
        "38.4": Release("7.1", "13.0", "10.13.3.9"),
        "39.2": Release("7.2", "13.2", "10.16.2.10"),
    }
)
TENSORRT_WANTED: Final = (10, 16)
TENSORRT_OLDEST: Final = (10, 13)
NVRTC_WANTED: Final = (13, 0)  # its PTX loads on the driver of every JetPack 7; newer PTX does not
# TensorRT 10.13 to 10.15 on sm_110 fuse matrix products of one row wrongly; this, set before a build, keeps it from it.
MISCOMPILES_BEFORE: Final = TENSORRT_WANTED
WORKAROUND_VARIABLE: Final = "__LUNOWUD"
WORKAROUND: Final = "-peep:fc_h_fusion=off -peep:match_dual_gemm=off"


def release_of(l4t: str) -> Release | None:
    """The release that "38.2.1" belongs to, by its first two numbers."""
    return RELEASES.get(".".join(l4t.split(".")[:2]))


def numbers(version: str) -> tuple[int, ...]:
    """(10, 13, 3, 9) of "10.13.3.9"; stops at the first piece that is no number."""
    found = re.match(r"\d+(\.\d+)*", version)
    return () if found is None else tuple(int(piece) for piece in found[0].split("."))
