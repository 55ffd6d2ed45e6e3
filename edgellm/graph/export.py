"""Write the graphs of a checkpoint into a folder.

`build_ort_graphs` writes what the ONNX Runtime executor runs: advance (a chain, committed in place), verify (a tree,
read-only), commit and, with MTP, mtp, over one weight file. `build_tensorrt_graphs` writes what TensorRT compiles.
`build_canonical` writes the standard-operator form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec
from edgellm.checkpoint.weights import Weight, WeightKind
from edgellm.errors import ConfigError
from edgellm.graph.builder import Dim, GraphBuilder
from edgellm.graph.commit import add_commit
from edgellm.graph.decoder import add_decoder
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.lowering.base import Lowering
from edgellm.graph.lowering.block_chain import BlockChain
from edgellm.graph.lowering.ort import Chain, OrtOps
from edgellm.graph.lowering.ort_attention import GroupedQuery
from edgellm.graph.lowering.standard import FunctionTree, MaskedAttention, StandardOps
from edgellm.graph.lowering.tensorrt import FloatDelta, TensorRtForm, TensorRtOps
from edgellm.graph.mtp import DRAFT_TOP_K, add_mtp
from edgellm.graph.rope import rope_tables
from edgellm.graph.segments import build_segments
from edgellm.graph.source import Source
from edgellm.graph.tree import InlineTree
from edgellm.graph.weight_file import WeightFile
from edgellm.progress import Progress

WEIGHTS: Final = "weights.bin"
DEFAULT_POSITIONS: Final = 262144


def build_ort_graphs(
    checkpoint: Source,
    out_dir: Path,
    weights: WeightFormat,
    *,
    positions: int | None = None,
    draft_vocab: Sequence[int] | None = None,
    kv_scales: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Write the graphs for ONNX Runtime into the existing folder `out_dir`.

    Args:
        checkpoint: an opened checkpoint.
        weights: stored forms of the matrices.
        positions: rows of the RoPE tables, the longest context that can run; the checkpoint's, at most 262144, by
            default.
        draft_vocab: token ids that the MTP head may propose; all by default.
        kv_scales: cache (``k_3``, ``mtp_v``) → scale, for all caches: their rows have the values of an FP8 cache. None:
            they are not rounded.
        progress: called with ("weights", tensors read, tensors in all).

    Returns:
        the graphs' paths and, last, the weight file's.

    Raises:
        ConfigError: an argument is out of range.
    """
    spec = checkpoint.spec
    rows = _positions(spec, positions)
    _check_vocab(draft_vocab, spec.vocab)
    ops = OrtOps(_Metered(checkpoint, progress) if progress else checkpoint, weights)
    paths = [out_dir / f"{name}.onnx" for name in ("advance", "verify", "commit", "mtp")[: 3 + spec.mtp_layers]]
    with WeightFile(out_dir / WEIGHTS) as file:
        g = GraphBuilder("advance", file)
        attention = _grouped(g, spec, "B", rows, kv_scales, tree=False)
        add_decoder(g, Lowering(ops, attention, Chain.declare(g, spec.linear)), "B")
        g.save(paths[0])

        g = GraphBuilder("verify", file)
        attention = _grouped(g, spec, 1, rows, kv_scales, tree=True)
        add_decoder(g, Lowering(ops, attention, InlineTree.declare(g, spec.linear)), 1)
        g.save(paths[1])

        g = GraphBuilder("commit", file)
        add_commit(g, spec)
        g.save(paths[2])

        if spec.mtp_layers:
            g = GraphBuilder("mtp", file)
            attention = _grouped(g, spec, 1, rows, kv_scales, tree=True, cache="mtp_k")
            add_mtp(g, Lowering(ops, attention), draft_vocab)
            g.save(paths[3])
    return (*paths, file.path)


def _grouped(
    g: GraphBuilder,
    spec: ModelSpec,
    batch: Dim,
    positions: int,
    kv_scales: Mapping[str, float] | None,
    *,
    tree: bool,
    cache: str | None = None,
) -> GroupedQuery:
    """The attention form; `cache` names one of the graph's caches, by default the first layer's."""
    if cache is None and spec.full_layers:
        cache = f"k_{spec.full_layers[0]}"
    rope = rope_tables(g, spec.attention, positions)
    return GroupedQuery.declare(g, spec.attention, batch, rope, tree=tree, cache=cache, kv_scales=kv_scales)


def build_tensorrt_segments(
    checkpoint: Source, out_dir: Path, form: TensorRtForm, *, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Write the model cut where tokens are mixed (see `graph.segments`) into the existing folder `out_dir`.

    Returns:
        the graphs' paths.

    Raises:
        ConfigError: a matrix is stored in a form that cannot be multiplied.
    """
    ops = TensorRtOps(_Metered(checkpoint, progress) if progress else checkpoint, form)
    return build_segments(ops, out_dir, form.dtype)


def build_tensorrt_graphs(
    checkpoint: Source,
    out_dir: Path,
    form: TensorRtForm,
    *,
    prefill_chunk: int,
    positions: int | None = None,
    draft_vocab: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Write the graphs for TensorRT, for one sequence, into the existing folder `out_dir`.

    `verify`, `commit` and `mtp` have the inputs and outputs of the canonical form, `prefill` those of `BlockChain` in
    place of the tree's; rows and biases of attention are of the activations' dtype, everything else float32. In float16
    a bias hides by -3e4: -1e30 is infinite there.

    Args:
        checkpoint: an opened checkpoint.
        form: dtypes and the form of quantized matrices.
        prefill_chunk: tokens of one run of `prefill`, a multiple of 64.
        positions, draft_vocab, progress: see `build_ort_graphs`.

    Returns:
        the paths of verify, prefill, commit and, with MTP, mtp, and, last, the weight file's.

    Raises:
        ConfigError: an argument is out of range, or a matrix is stored in a form that cannot be multiplied.
    """
    spec = checkpoint.spec
    rows = _positions(spec, positions)
    _check_vocab(draft_vocab, spec.vocab)
    ops = TensorRtOps(_Metered(checkpoint, progress) if progress else checkpoint, form)
    paths = [out_dir / f"{name}.onnx" for name in ("verify", "prefill", "commit", "mtp")[: 3 + spec.mtp_layers]]
    with WeightFile(out_dir / WEIGHTS) as file:

        def attention(g: GraphBuilder) -> MaskedAttention:
            return MaskedAttention.declare(g, rope_tables(g, spec.attention, rows), form.dtype)

        g = GraphBuilder("verify", file)
        add_decoder(g, Lowering(ops, attention(g), FloatDelta(InlineTree.declare(g, spec.linear))), 1)
        g.save(paths[0])

        g = GraphBuilder("prefill", file, {"S": prefill_chunk})
        chain = BlockChain.declare(g, spec.linear, prefill_chunk)
        add_decoder(g, Lowering(ops, attention(g), FloatDelta(chain)), 1)
        g.save(paths[1])

        g = GraphBuilder("commit", file)
        add_commit(g, spec)
        g.save(paths[2])

        if spec.mtp_layers:
            g = GraphBuilder("mtp", file)
            add_mtp(g, Lowering(ops, attention(g)), draft_vocab)
            g.save(paths[3])
    return (*paths, file.path)


def build_canonical(checkpoint: Source, out_dir: Path, *, positions: int | None = None) -> tuple[Path, ...]:
    """Write the standard-operator form into the existing folder `out_dir`: verify, commit and, with MTP, mtp.

    The graphs take one sequence. `verify` and `mtp` take the past rows of the attention caches as inputs of any length
    and return the new rows; `commit` is the same graph as the one for ONNX Runtime.

    Returns:
        the graphs' paths and, last, the weight file's.

    Raises:
        ConfigError: `positions` is out of range.
    """
    spec = checkpoint.spec
    rows, ops = _positions(spec, positions), StandardOps(checkpoint)
    paths = [out_dir / f"{name}.onnx" for name in ("verify", "commit", "mtp")[: 2 + spec.mtp_layers]]
    with WeightFile(out_dir / WEIGHTS) as file:
        g = GraphBuilder("verify", file)
        attention = MaskedAttention.declare(g, rope_tables(g, spec.attention, rows))
        add_decoder(g, Lowering(ops, attention, FunctionTree.declare(g, spec.linear)), 1)
        g.save(paths[0])

        g = GraphBuilder("commit", file)
        add_commit(g, spec)
        g.save(paths[1])

        if spec.mtp_layers:
            g = GraphBuilder("mtp", file)
            attention = MaskedAttention.declare(g, rope_tables(g, spec.attention, rows))
            add_mtp(g, Lowering(ops, attention))
            g.save(paths[2])
    return (*paths, file.path)


def _positions(spec: ModelSpec, wanted: int | None) -> int:
    if wanted is None:
        return min(spec.max_positions, DEFAULT_POSITIONS)
    if not 1 <= wanted <= spec.max_positions:
        raise ConfigError(f"positions must be between 1 and {spec.max_positions}, not {wanted}")
    return wanted


def _check_vocab(ids: Sequence[int] | None, vocab: int) -> None:
    if ids is not None and not (len(ids) == len(set(ids)) >= DRAFT_TOP_K and all(0 <= token < vocab for token in ids)):
        raise ConfigError(f"draft_vocab must be at least {DRAFT_TOP_K} different token ids below {vocab}")


class _Metered:
    """A source that reports the first reading of every tensor."""

    def __init__(self, source: Source, progress: Progress) -> None:
        self._source, self._progress = source, progress
        self._unread = set(source.spec.expected_tensors())
        self._total = len(self._unread)

    @property
    def spec(self) -> ModelSpec:
        return self._source.spec

    def tensor(self, name: str) -> NDArray[Any]:
        self._read(name)
        return self._source.tensor(name)

    def weight(self, name: str) -> Weight:
        self._read(name)
        return self._source.weight(name)

    def kind(self, name: str) -> WeightKind:
        return self._source.kind(name)

    def _read(self, name: str) -> None:
        if name in self._unread:
            self._unread.remove(name)
            self._progress("weights", self._total - len(self._unread), self._total)
