"""Choose the executor for a bundle."""

from __future__ import annotations

import os

import psutil

from edgellm.engine.base import Executor
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.opening import open_device
from edgellm.engine.ort import OrtExecutor
from edgellm.engine.trt.api import TENSORRT_TARGETS


def open_executor(
    bundle: Bundle,
    *,
    slots: int,
    context: int | None = None,
    threads: int | None = None,
    speculation: bool = True,
    cache_bytes: int | None = None,
    snapshot_bytes: int | None = None,
) -> Executor:
    """An executor for `bundle`, which `Bundle.open` has found to fit this machine.

    Args:
        slots: sequences that can run at the same time.
        context: tokens a sequence can hold; default: the bundle's context.
        threads: CPU threads; default: one for each physical core that this process may use. Of the CPU executor.
        speculation: whether verify and draft are needed; without them their graphs are not loaded.
        cache_bytes, snapshot_bytes: for published blocks and snapshots; default: from the free memory. Of a device,
            which takes them when it is opened.

    Raises:
        BundleError: no executor runs the bundle's engines.
        ConfigError: a setting is out of range, or the memory that it implies is not there.
    """
    length = bundle.manifest.context if context is None else context
    if bundle.manifest.target in TENSORRT_TARGETS:
        return open_device(
            bundle,
            slots=slots,
            context=length,
            speculation=speculation,
            cache_bytes=cache_bytes,
            snapshot_bytes=snapshot_bytes,
        )
    return OrtExecutor(
        bundle,
        slots=slots,
        context=length,
        threads=usable_cores() if threads is None else threads,
        speculation=speculation,
    )


def usable_cores() -> int:
    """Physical cores that this process may use (two hardware threads of a core share its vector units)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
