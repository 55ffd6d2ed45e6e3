"""Write the graphs of a checkpoint: `advance`, `verify`, `commit` and, with MTP, `mtp`, over one weight file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgellm.checkpoint.reader import Checkpoint
from edgellm.graph.builder import GraphBuilder, WeightFile
from edgellm.graph.commit import build_commit
from edgellm.graph.layers import Layers, WeightFormat
from edgellm.graph.model import build_decoder
from edgellm.graph.mtp import build_mtp

WEIGHTS = "weights.bin"
GRAPHS = ("advance", "verify", "commit", "mtp")


def build_ort_graphs(
    checkpoint: Checkpoint,
    out: Path,
    weights: WeightFormat,
    *,
    positions: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Path]:
    """Write the graphs into the existing folder `out` and return their paths, the weight file last.

    Args:
        positions: rows of the RoPE tables: the longest context the bundle can be opened with.
        progress: called with ("weights", matrices done, matrices in all).
    """
    spec = checkpoint.spec
    total = 4 * len(spec.layers) + 1 + 5 * spec.mtp_layers
    done = 0

    def report(_: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("weights", done, total)

    paths = []
    with WeightFile(out / WEIGHTS) as file:
        for name in GRAPHS[: 3 + spec.mtp_layers]:
            g = GraphBuilder(name, file)
            layers = Layers(g, checkpoint, weights, report)
            if name == "commit":
                build_commit(g, spec)
            elif name == "mtp":
                build_mtp(g, layers, positions=positions)
            else:
                build_decoder(g, checkpoint, layers, tree=name == "verify", positions=positions)
            g.save(out / f"{name}.onnx")
            paths.append(out / f"{name}.onnx")
    return [*paths, out / WEIGHTS]
