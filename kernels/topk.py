"""Kernels that choose candidates among the logits."""

from __future__ import annotations

from collections.abc import Mapping

from edgellm.kernels.reference import topk as reference
from edgellm.kernels.sizes import Sizes
from edgellm.kernels.spec import Kernel, Param


def _threads(s: Sizes) -> int:
    return min(1024, -(-s.vocab // 128) * 32)  # four logits each at least


def _defines(s: Sizes) -> Mapping[str, int]:
    return {"VOCAB": s.vocab, "TOP_K": s.top_k, "THREADS": _threads(s)}


def _refuses(s: Sizes) -> str | None:
    return f"a vocabulary of {s.vocab} has no {s.top_k} candidates" if s.top_k > s.vocab else None


_PARAMS = (
    Param("logits", "f32", "in", lambda s: (s.rows, s.vocab)),
    Param("ids", "i32", "out", lambda s: (s.rows, s.top_k)),  # best first; of equal logits the lowest id
    Param("values", "f32", "out", lambda s: (s.rows, s.top_k)),  # their logits
)

DRAFT_TOPK = Kernel(
    name="draft_topk",
    source="row_topk.cu",
    params=(*_PARAMS, Param("log_norm", "f32", "out", lambda s: (s.rows, 1))),  # logsumexp of the row
    grid=lambda s: (s.rows, 1, 1),
    threads=_threads,
    defines=lambda s: {**_defines(s), "LOG_NORM": 1},
    reference=reference.draft_topk,
    refuses=_refuses,
    plugin=False,
)

SAMPLE_TOPK = Kernel(
    name="sample_topk",
    source="row_topk.cu",
    params=_PARAMS,
    grid=lambda s: (s.rows, 1, 1),
    threads=_threads,
    defines=_defines,
    reference=reference.sample_topk,
    refuses=_refuses,
    plugin=False,
)

KERNELS = (DRAFT_TOPK, SAMPLE_TOPK)
