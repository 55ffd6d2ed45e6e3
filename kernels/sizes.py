"""`Sizes`: every size a kernel is compiled for. Kernels take no run-time sizes: they get them by -D.

What must stay true: two equal `Sizes` give the same binary, so a size that changes while a model runs (the context, the
nodes of one tree) is not here but in the control block, a device tensor (`spec.CONTROL`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgellm.checkpoint.spec import ModelSpec

Io = Literal["bf16", "f16", "f32"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one model and one profile."""

    io: Io  # activations
    # attention
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    # Gated DeltaNet
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    rms_eps: float
    vocab: int
    # the profile
    rows: int  # tokens of one step: 1, the tree's nodes, or the prefill chunk
    tail: int  # draft rows that attention sees behind the pages; rows, or more where a tree grows (MTP)
    capsule: int  # nodes that a capsule has room for, whatever profile made it: the most of any tree
    # the cache
    page: int  # tokens of a KV page
    pages: int  # pages of a layer's pool; no macro: kernels over all layers are told at run time
    max_pages: int  # entries of a page table: pages of the longest context
    positions: int  # rows of the RoPE tables
    splits: int  # parts that a context is cut into for tree attention
    layers: int  # layers that a kernel over all layers handles (kv_commit, gdn_commit)
    top_k: int  # candidates per row of the top-k kernels

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: [q | k | v] of a DeltaNet layer."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def words(self) -> int:
        """32-bit words of an ancestor mask over the tail."""
        return -(-self.tail // 32)

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        io: Io,
        rows: int,
        max_pages: int,
        tail: int | None = None,
        capsule: int | None = None,
        page: int = 64,
        pages: int | None = None,
        splits: int = 1,
        layers: int = 1,
        top_k: int = 4,
    ) -> Sizes:
        """Sizes of `spec`; the RoPE tables have a row for every token of `max_pages` pages."""
        a, d = spec.attention, spec.linear
        return cls(
            io=io,
            heads=a.heads,
            kv_heads=a.kv_heads,
            head_dim=a.head_dim,
            rotary_dim=a.rotary_dim,
            key_heads=d.key_heads,
            value_heads=d.value_heads,
            key_dim=d.key_dim,
            value_dim=d.value_dim,
            conv_kernel=d.conv_kernel,
            rms_eps=spec.rms_eps,
            vocab=spec.vocab,
            rows=rows,
            tail=rows if tail is None else tail,
            capsule=rows if capsule is None else capsule,
            page=page,
            pages=max_pages if pages is None else pages,
            max_pages=max_pages,
            positions=max_pages * page,
            splits=splits,
            layers=layers,
            top_k=top_k,
        )
