"""Open a bundle of the split or the plugin form on the GPU of this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from edgellm.engine.bundle import Bundle
from edgellm.engine.device.cuda import CudaDevice
from edgellm.engine.device.exercise import exercise
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.symbolic import SymbolicDevice
from edgellm.engine.manifest import Manifest
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.engine.trt.plugins import PLUGIN_ENGINE
from edgellm.engine.trt.runtime import TensorRtEngines
from edgellm.engine.trt.split import gpu_arch, kernel_binaries
from edgellm.errors import BundleError, ConfigError

logger = logging.getLogger(__name__)

_SHARE: Final = 0.4  # of the free memory, for what the cache keeps when nobody says how much
_PATHS: Final = 4  # and never more than so many full contexts
_SNAPSHOTS: Final = 8  # kept for each of them
_HEADROOM: Final = 4 << 30  # bytes for TensorRT's contexts and scratch, and to stay free: a system that runs out of
# unified memory does not recover


def open_device(
    bundle: Bundle,
    *,
    slots: int,
    context: int,
    speculation: bool,
    cache_bytes: int | None = None,
    snapshot_bytes: int | None = None,
    make: Callable[[Bundle], CudaDevice] | None = None,
) -> DeviceExecutor:
    """An executor on the first GPU.

    Args:
        slots: sequences that run at the same time.
        context: tokens that a sequence can hold; rounded up to whole pages.
        speculation: whether trees and drafts are needed.
        cache_bytes, snapshot_bytes: for published blocks and snapshots; None: from the free memory.
        make: makes the device; by default CUDA's with TensorRT's engines.

    Raises:
        BundleError: the bundle's form has no executor.
        ConfigError: a setting is out of range, or the memory that it implies is not there.
    """
    manifest = bundle.manifest
    if manifest.device is None or manifest.device.form == "whole":
        raise BundleError(f"{bundle.path} was built in the form that no executor runs: build it with form = 'split'")
    if not 1 <= context <= manifest.context:
        raise ConfigError(f"context {context} is outside 1 to {manifest.context}, what the bundle was built for")
    if slots < 1:
        raise ConfigError("slots must be at least 1")
    device = (make or _cuda)(bundle)
    try:
        layout = plan_layout(
            bundle,
            slots,
            context,
            speculation=speculation,
            cache_bytes=cache_bytes,
            snapshot_bytes=snapshot_bytes,
            free=device.free,
        )
        executor = _executor(device, bundle, layout)
        exercise(executor)
    except BaseException:
        device.close()
        raise
    return executor


def plan_layout(
    bundle: Bundle,
    slots: int,
    context: int,
    *,
    speculation: bool,
    cache_bytes: int | None,
    snapshot_bytes: int | None,
    free: int,
) -> Layout:
    """Pages for the slots and for published blocks, and snapshots, within the `free` bytes of memory.

    Raises:
        ConfigError: the slots alone do not fit; the message says what would.
    """
    manifest = bundle.manifest
    assert manifest.device is not None
    if manifest.device.form == "plugins":
        context = manifest.context  # the plugins' kernels are compiled for it
    max_pages = -(-context // manifest.block_tokens)
    base = _layout(manifest, slots, max_pages, slots * max_pages, 0, speculation)
    symbolic = SymbolicDevice()
    executor = _executor(symbolic, bundle, base)
    page, needed = executor.info.block_bytes, symbolic.used
    engines = sum(entry.bytes for entry in manifest.files if entry.name.endswith(".engine"))
    available = free - engines - _HEADROOM
    if needed > available:
        raise ConfigError(
            f"{slots} slots of {context} tokens need {needed / 2**30:.1f} GiB beside {engines / 2**30:.1f} GiB of "
            f"engines and {_HEADROOM / 2**30:.0f} GiB of headroom, and {max(available, 0) / 2**30:.1f} GiB are left: "
            f"ask for fewer slots{'' if manifest.device.form == 'plugins' else ' or a shorter context'}"
        )
    for flag, value in (("cache_bytes", cache_bytes), ("snapshot_bytes", snapshot_bytes)):
        if value is not None and value < 0:
            raise ConfigError(f"{flag}: {value} is negative")
    if cache_bytes == 0 or snapshot_bytes == 0:  # the cache is off
        return _layout(manifest, slots, max_pages, slots * max_pages, 0, speculation)
    kept, left = executor.info.snapshot_bytes, available - needed
    given = (cache_bytes or 0) + (snapshot_bytes or 0)
    if given > left:
        raise ConfigError(
            f"cache_bytes and snapshot_bytes: {cache_bytes or 0} and {snapshot_bytes or 0} bytes do not fit beside "
            f"{slots} slots of {context} tokens: {left} are left for both"
        )
    share = max(left * _SHARE - given, 0)
    path = (0 if cache_bytes else max_pages * page) + (0 if snapshot_bytes else _SNAPSHOTS * kept)
    paths = min(_PATHS, share / max(path, 1))
    spare = int(paths * max_pages) if cache_bytes is None else cache_bytes // page
    snapshots = int(paths * _SNAPSHOTS) if snapshot_bytes is None else snapshot_bytes // kept
    if spare < max_pages or snapshots < 2:
        logger.warning(
            "prefix cache: %d KV pages and %d snapshots fit beside %d slots of %d tokens, a sequence needs %d and 2: "
            "long prompts will not be cached",
            spare,
            snapshots,
            slots,
            context,
            max_pages,
        )
    if not snapshots:
        spare = 0  # nothing could be restored
    return _layout(manifest, slots, max_pages, slots * max_pages + spare, snapshots, speculation)


def _layout(manifest: Manifest, slots: int, max_pages: int, pages: int, snapshots: int, speculation: bool) -> Layout:
    assert manifest.device is not None
    return Layout(
        io=manifest.device.activations,
        slots=slots,
        page=manifest.block_tokens,
        pages=pages,
        max_pages=max_pages,
        snapshots=snapshots,
        nodes=manifest.tree_nodes,  # also without speculation: the kernels are compiled for it
        chunk=manifest.prefill_chunk,
        mtp=speculation and manifest.spec.mtp_layers > 0 and manifest.tree_nodes > 1,
    )


def _executor(device: CudaDevice | SymbolicDevice, bundle: Bundle, layout: Layout) -> DeviceExecutor:
    manifest = bundle.manifest
    assert manifest.device is not None
    return DeviceExecutor(
        device,
        bundle.path,
        manifest.spec,
        layout,
        splits=manifest.device.splits,
        fingerprint=f"{bundle.fingerprint}-{'mtp' if layout.mtp else 'plain'}",
        engine=PLUGIN_ENGINE if manifest.device.form == "plugins" else None,
    )


def _cuda(bundle: Bundle) -> CudaDevice:
    assert bundle.manifest.device is not None
    arch = gpu_arch(bundle.manifest.device.compute_capability)
    target = bundle.manifest.target
    return CudaDevice(
        lambda allocate: TensorRtEngines(bundle.path, target, allocate), kernel_binaries(bundle.path, arch)
    )
