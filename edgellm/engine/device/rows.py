"""What all steps share: the model on a device, buffers for a number of rows, and the segments in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from edgellm.checkpoint.spec import ModelSpec
from edgellm.engine.device.base import Buffer, Device, Operation, Run
from edgellm.engine.device.memory import IO_DTYPES, Layout, Pool
from edgellm.graph.mtp import DRAFT_TOP_K
from edgellm.graph.segments import EMBED, HEAD, mixer_widths, segment_name, side_of
from edgellm.kernels.sizes import Sizes

# The query heads of one row make blocks of a single warp, of which a multiprocessor holds several.
_SINGLE: Final = 3
_MOST_SPLITS: Final = 64

Mixed = tuple[Buffer, list[Operation]]  # the result of a layer's mixing and what makes it


@dataclass(frozen=True, slots=True)
class Model:
    """What all steps share."""

    device: Device
    spec: ModelSpec
    layout: Layout
    constants: Mapping[str, Buffer]
    pool: Pool
    splits: int  # parts that the context of a tree is cut into

    @property
    def tokens(self) -> int:
        """Tokens that a slot can hold; positions are below it."""
        return self.layout.max_pages * self.layout.page

    def sizes(self, rows: int, tail: int) -> Sizes:
        """Sizes of the kernels of a step of `rows` rows that sees `tail` draft rows."""
        layout = self.layout
        return Sizes.of(
            self.spec,
            io=layout.io,
            rows=rows,
            tail=tail,
            capsule=layout.nodes,
            page=layout.page,
            pages=layout.pages,
            max_pages=layout.max_pages,
            splits=self.splits if rows > 1 else min(_SINGLE * self.splits, _MOST_SPLITS),
            top_k=DRAFT_TOP_K,
        )

    def zeros(self, *shape: int, dtype: DTypeLike | None = None) -> Buffer:
        """New memory; of the activations' dtype by default."""
        return self.device.zeros(shape, IO_DTYPES[self.layout.io] if dtype is None else dtype)


class Rows:
    """What steps of `rows` tokens read and make, whatever they are steps of. Two sets of projections take turns: a
    segment writes its own while it reads ``side`` of the one before."""

    def __init__(self, model: Model, rows: int, scored: int) -> None:
        spec = model.spec
        self.input_ids = model.zeros(1, rows, dtype=np.int64)
        self.parents = model.zeros(rows, dtype=np.int32)
        self.positions = model.zeros(rows, dtype=np.int32)
        self.logit_rows = model.zeros(scored, dtype=np.int64)
        self.embedded = model.zeros(1, rows, spec.hidden)
        self.residual = (model.zeros(1, rows, spec.hidden), model.zeros(1, rows, spec.hidden))
        self.logits = model.zeros(scored, spec.vocab, dtype=np.float32)
        self.best = model.zeros(scored, DRAFT_TOP_K, dtype=np.int32)
        self.best_values = model.zeros(scored, DRAFT_TOP_K, dtype=np.float32)
        self.log_norm = model.zeros(scored, 1, dtype=np.float32)
        kinds: dict[str, int | None] = {spec.layers[layer]: layer for layer in range(len(spec.layers))}
        if model.layout.mtp:
            kinds.setdefault("full_attention", None)
        self._projections = [
            {kind: _named(model, rows, mixer_widths(spec, layer)) for kind, layer in kinds.items()} for _ in range(2)
        ]
        a, d = spec.attention, spec.linear
        self.q_rotated = model.zeros(rows, a.heads, a.head_dim)
        self.context = model.zeros(rows, a.heads * a.head_dim)
        self.delta = {
            "q": model.zeros(rows, d.key_heads, d.key_dim),
            "k": model.zeros(rows, d.key_heads, d.key_dim),
            "v": model.zeros(rows, d.value_heads, d.value_dim),
            "log_decay": model.zeros(rows, d.value_heads, dtype=np.float32),
            "beta": model.zeros(rows, d.value_heads, dtype=np.float32),
        }
        self.y = model.zeros(rows, d.value_heads, d.value_dim)

    def projections(self, kind: str, turn: int) -> dict[str, Buffer]:
        """What a segment makes for the mixing of a layer of `kind`."""
        return self._projections[turn % 2][kind]


def _named(model: Model, rows: int, widths: Mapping[str, int]) -> dict[str, Buffer]:
    return {name: model.zeros(1, rows, width) for name, width in widths.items()}


def through_layers(
    model: Model, rows: Rows, hidden: Buffer, mix: Callable[[int, Mapping[str, Buffer]], Mixed]
) -> list[Operation]:
    """All segments of the decoder with `mix` between them; `hidden` gets the rows [S, H] after the final norm."""
    spec = model.spec
    made, residual = rows.projections(spec.layers[0], 0), rows.embedded
    operations: list[Operation] = [embed(rows), Run(segment_name(0), {"residual": residual, **made})]
    for layer in range(len(spec.layers)):
        mixed, launches = mix(layer, {name: flat(value) for name, value in made.items()})
        tensors = {
            "residual": residual,
            "mixed": mixed.reshape(1, mixed.shape[0], -1),
            "side": made[side_of(spec, layer)],
        }
        if layer + 1 < len(spec.layers):
            made = rows.projections(spec.layers[layer + 1], layer + 1)
            residual = rows.residual[layer % 2]
            tensors |= {"residual_out": residual, **made}
        else:
            tensors |= {"hidden": hidden.reshape(1, *hidden.shape)}
        operations += [*launches, Run(segment_name(layer + 1), tensors)]
    return [*operations, score(rows, hidden)]


def embed(rows: Rows) -> Run:
    """The embedding of a step's tokens."""
    return Run(EMBED, {"input_ids": rows.input_ids, "embedded": rows.embedded})


def score(rows: Rows, hidden: Buffer) -> Run:
    """Logits of the rows of `hidden` [S, H] that are wanted."""
    tensors = {"hidden": hidden.reshape(1, *hidden.shape), "logit_rows": rows.logit_rows, "logits": rows.logits}
    return Run(HEAD, tensors)


def flat(value: Buffer) -> Buffer:
    """[1, S, width] as [S, width]."""
    return value.reshape(*value.shape[1:])
