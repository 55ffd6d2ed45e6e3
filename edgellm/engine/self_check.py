"""First tokens of a device against the same model on the CPU: a miscompiled engine shows here, not in a conversation.

The CPU side runs the same segments in ONNX Runtime, one loaded at a time, with the values that the device computes with
(NVFP4 activations, FP8 rows), and the kernels' references between them. What must stay true: both sides get the same
tokens, and the figures are the measured ones whether or not they pass.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.base import Chunk, Executor, TokenTree
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.opening import open_device, plan_layout
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.errors import ConfigError
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.segments import KERNEL_WEIGHTS, build_segments, save_kernel_weights

MOST_DIVERGENCE: Final = 0.05  # nats, mean over the rows
_TOKENS: Final = 16  # of the prompt and of the tree
_CONTEXT: Final = 256  # tokens that are more than enough for both


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What was measured over the rows of a prompt's end and of a tree.

    Attributes:
        divergence: mean KL divergence of the device from the CPU, in nats.
        agreement: share of rows whose best token is the same.
        largest: largest difference of logits, in standard deviations of the CPU's row.
    """

    divergence: float
    agreement: float
    largest: float

    @property
    def passed(self) -> bool:
        """Whether the divergence is a number below `MOST_DIVERGENCE`."""
        return self.divergence < MOST_DIVERGENCE


def check_bundle(path: Path, source: Checkpoint) -> SelfCheck:
    """Open the bundle `path` on this machine's GPU and compare it with `source`, from which it was built.

    Raises:
        BundleError, ConfigError: it cannot be opened here, or the disk has no room for the CPU's side.
        ExecutionError: a run failed.
    """
    bundle = Bundle.open(path)
    context = min(bundle.manifest.context, _CONTEXT)
    layout = plan_layout(bundle, 1, context, speculation=True, cache_bytes=0)
    needed, free = _cpu_bytes(source), shutil.disk_usage(path).free
    if free < needed:
        raise ConfigError(f"{path}: the self-check needs {needed} bytes of disk for a while, {free} are free")
    executor = open_device(bundle, slots=1, context=context, speculation=True, cache_bytes=0)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.check-") as scratch:
            return check_device(executor, source, layout, Path(scratch))
    finally:
        executor.close()


def check_device(executor: Executor, source: Checkpoint, layout: Layout, scratch: Path) -> SelfCheck:
    """Compare `executor` with the CPU; its slot 0 is left empty.

    Args:
        source: the checkpoint that it was built from.
        layout: of the device.
        scratch: an empty folder on a disk with room for the model in 8-bit codes (1.25 bytes a weight).
    """
    build_segments(OrtOps(source, WeightFormat("nvfp4", accuracy_level=0, activations="nvfp4")), scratch, np.float32)
    save_kernel_weights(source, scratch / KERNEL_WEIGHTS, layout.max_pages * layout.page, source.kv_scales)
    small = replace(layout, io="f32", slots=1, pages=layout.max_pages)
    cpu = DeviceExecutor(
        EmulatedDevice(scratch, sessions=1), scratch, source.spec, small, splits=1, fingerprint="self-check"
    )
    try:
        expected, found = (_rows(made, source.spec.vocab) for made in (cpu, executor))
    finally:
        cpu.close()
    return compare(expected, found)


def compare(expected: NDArray[np.float32], found: NDArray[np.float32]) -> SelfCheck:
    """Of logits [rows, vocab] each."""
    p, q = (_log_softmax(rows.astype(np.float64)) for rows in (expected, found))
    spread = expected.std(axis=1, keepdims=True)
    return SelfCheck(
        divergence=float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        agreement=float((expected.argmax(axis=1) == found.argmax(axis=1)).mean()),
        largest=float((np.abs(expected - found) / spread).max()),
    )


def _cpu_bytes(source: Checkpoint) -> int:
    """Of the model as the CPU's side stores it: NVFP4 in 8-bit codes with a float32 scale for 16, else float32."""
    shapes = source.spec.expected_tensors()
    return sum(int(math.prod(shape) * (1.25 if _is_nvfp4(source, name) else 4)) for name, shape in shapes.items())


def _is_nvfp4(source: Checkpoint, name: str) -> bool:
    return name in source.matrices and source.kind(name) == "nvfp4"


def _rows(executor: Executor, vocab: int) -> NDArray[np.float32]:
    """Logits after a prompt and of every node of a tree behind it."""
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, vocab, 2 * _TOKENS)]
    size = min(_TOKENS, executor.info.max_tree)
    parents = [-1, *(max(0, node - 1 - node % 3) for node in range(1, size))]
    executor.reset(0)
    last = executor.advance([Chunk(0, tokens[:_TOKENS], True)]).row(0)
    tree = executor.verify(TokenTree(0, tokens[_TOKENS : _TOKENS + size], parents))
    rows = np.stack([last, *(tree.row(node) for node in range(size))])
    executor.reset(0)
    return rows


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        shifted = rows - rows.max(axis=1, keepdims=True)
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
