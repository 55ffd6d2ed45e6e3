"""First tokens of a device against the same model on the CPU: a miscompiled engine shows here, not in a conversation.

The CPU side runs the same segments in ONNX Runtime, one loaded at a time, with the values that the device computes with
(NVFP4 activations, FP8 rows), and the kernels' references between them. What must stay true: both sides get the same
tokens, and the figures are the measured ones whether or not they pass. How far rounding alone may take a device is
measured too: by a second run of the CPU's side whose activations have the device's width.
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
from edgellm.engine.base import Chunk, DraftNodes, Executor, TokenTree
from edgellm.engine.bundle import Bundle
from edgellm.engine.device.emulated import EmulatedDevice
from edgellm.engine.device.memory import Layout
from edgellm.engine.device.opening import open_device
from edgellm.engine.tensorrt import DeviceExecutor
from edgellm.errors import ConfigError
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.ort import OrtOps
from edgellm.graph.segments import KERNEL_WEIGHTS, build_segments, save_kernel_weights
from edgellm.kernels.sizes import Io

MOST_DIVERGENCE: Final = 0.05  # nats, mean over the rows, or, where that is more, as often what rounding makes:
_ROUNDING: Final = 3
_SINGLE: Final = 8  # draft nodes that are added one by one
_CANDIDATES: Final = 0.5  # share of the draft candidates of what rounding leaves the same
_TOKENS: Final = 8  # that the prompt is longer than a tree, and single tokens behind it
_CONTEXT: Final = 256  # tokens that are more than enough for both


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What was measured over rows of every kind of step.

    Attributes:
        divergence: mean KL divergence of the device from the CPU, in nats.
        agreement: share of rows whose best token is the same.
        largest: largest difference of logits, in standard deviations of the CPU's row.
        drafts: share of draft candidates that are the CPU's too, in the worst of the kinds of draft steps.
        limit: of the divergence, in nats.
        least_drafts: limit of `drafts`.
    """

    divergence: float
    agreement: float
    largest: float
    drafts: float = 1.0
    limit: float = MOST_DIVERGENCE
    least_drafts: float = _CANDIDATES

    @property
    def passed(self) -> bool:
        """Whether the divergence is a number below the limit, and enough drafts are what the CPU drafts."""
        return self.divergence < self.limit and self.drafts >= self.least_drafts


def check_bundle(path: Path, source: Checkpoint) -> SelfCheck:
    """Open the bundle `path` on this machine's GPU and compare it with `source`, from which it was built.

    Raises:
        BundleError, ConfigError: it cannot be opened here, or the disk has no room for the CPU's side.
        ExecutionError: a run failed.
    """
    bundle = Bundle.open(path)
    context = min(bundle.manifest.context, _CONTEXT)
    needed, free = _cpu_bytes(source), shutil.disk_usage(path).free
    if free < needed:
        raise ConfigError(f"{path}: the self-check needs {needed} bytes of disk for a while, {free} are free")
    executor = open_device(bundle, slots=1, context=context, speculation=True, cache_bytes=0, snapshot_bytes=0)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.check-") as scratch:
            return check_device(executor, source, executor.model.layout, Path(scratch))
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

    def rows_on_cpu(io: Io) -> _Measured:
        small = replace(layout, io=io, slots=1, pages=layout.max_pages, snapshots=0)
        device = EmulatedDevice(scratch, sessions=1)
        cpu = DeviceExecutor(device, scratch, source.spec, small, splits=1, fingerprint="self-check")
        try:
            return _rows(cpu, source.spec.vocab)
        finally:
            cpu.close()

    expected, found = rows_on_cpu("f32"), _rows(executor, source.spec.vocab)
    rounded = rows_on_cpu(layout.io) if layout.io != "f32" else expected
    return replace(
        compare(expected.logits, found.logits),
        drafts=_share(expected.drafts, found.drafts),
        limit=max(MOST_DIVERGENCE, _ROUNDING * compare(expected.logits, rounded.logits).divergence),
        least_drafts=_CANDIDATES * _share(expected.drafts, rounded.drafts),
    )


def set_aside(bundle: Path) -> Path:
    """Rename a bundle that must not be used to the first of ``NAME.failed``, ``NAME.failed2``, … that is free."""
    names = (bundle.with_name(f"{bundle.name}.failed{number or ''}") for number in (0, *range(2, 1 << 20)))
    return bundle.rename(next(name for name in names if not name.exists()))


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


@dataclass(frozen=True, slots=True)
class _Measured:
    logits: NDArray[np.float32]  # [rows, vocab]
    drafts: list[NDArray[np.int64]]  # for each kind of step [draft nodes, k], best first


def _rows(executor: Executor, vocab: int) -> _Measured:
    """A prompt by prefill, single tokens, drafts, a tree, the step that commits its path, and drafts behind it.

    What the draft layer makes of a prompt only its later rows read: a fault there shows when it is gross.
    """
    nodes = executor.info.max_tree
    prompt = nodes + _TOKENS
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, vocab, prompt + _TOKENS + nodes)]
    parents = [-1, *(max(0, node - 1 - node % 3) for node in range(1, nodes))]
    executor.reset(0)
    rows = [executor.advance([Chunk(0, tokens[:prompt], True)]).row(0)]
    rows += [executor.advance([Chunk(0, [token], True)]).row(0) for token in tokens[prompt : prompt + _TOKENS]]
    tree = tokens[prompt + _TOKENS :]
    drafts = _drafts(executor, tree)
    verified = executor.verify(TokenTree(0, tree, parents))
    rows += [verified.row(node) for node in range(nodes)]
    executor.commit(0, [0])
    rows.append(executor.advance([Chunk(0, tokens[:2], True)]).row(0))
    drafts += _drafts(executor, tree)
    executor.reset(0)
    return _Measured(np.stack(rows), drafts)


def _drafts(executor: Executor, tree: list[int]) -> list[NDArray[np.int64]]:
    """Candidates below a root, then below nodes that are added one by one, and all the other nodes of the tree."""
    if not executor.info.draft_top_k:
        return []
    single = [(tree[node : node + 1], [node - 1]) for node in range(min(_SINGLE, len(tree)))]
    steps = [*single, (tree[_SINGLE:], [0] * len(tree[_SINGLE:]))]
    made = [executor.draft([DraftNodes(0, tokens, parents)])[0].token_ids for tokens, parents in steps if tokens]
    return [np.concatenate(made[: len(single)]), *made[len(single) :]]


def _share(expected: list[NDArray[np.int64]], found: list[NDArray[np.int64]]) -> float:
    """Of candidates that are among the expected ones, in the worst part; 1 when there are none."""
    parts = zip(expected, found, strict=True)
    return min((float((a[:, :, None] == b[:, None]).any(axis=1).mean()) for a, b in parts), default=1.0)


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        shifted = rows - rows.max(axis=1, keepdims=True)
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
