"""Random weights under which a model of the family behaves like one: logits vary, states neither die nor explode.

What must stay true: a tensor depends only on (seed, name, shape, dtype), not on the order or the other tensors.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.checkpoint.spec import ModelSpec

# Per-step decay of the recurrent state is exp(-A·softplus(a + dt_bias)); these A give memories of 1 to 200 tokens.
_A_RANGE = (0.02, 4.0)


class RandomWeights:
    """Weights of one random model.

    Args:
        spec: the model's shape.
        seed: of all tensors.
        follow: 0 for pure noise. Larger values let every token be followed, most of the time, by one of its two
            successors, in the model and in its MTP head alike: drafts are accepted, a tree more often than a chain,
            and text does not stop early. Needs an untied head. The successors are two random cycles through the
            first `ordinary` tokens.
        ordinary: number of leading token ids that are not special.
    """

    def __init__(self, spec: ModelSpec, seed: int, *, follow: float = 0.0, ordinary: int | None = None) -> None:
        self._spec = spec
        self._seed = seed
        self._follow = 0.0 if spec.tied_embeddings else follow
        self._ordinary = spec.vocab if ordinary is None else ordinary

    def tensor(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Tensor `name` (canonical) of the shape the spec gives, as `dtype` (float32, float16 or bfloat16)."""
        return self._float32(name).astype(dtype)

    def _float32(self, name: str) -> NDArray[np.float32]:
        shape = self._spec.expected_tensors()[name]
        rng = np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(name.encode())]))
        if name.endswith(".A_log"):
            low, high = map(math.log, _A_RANGE)
            return rng.uniform(low, high, shape).astype(np.float32)
        values = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith(".dt_bias"):
            return values * np.float32(0.5) - np.float32(1)
        if name.endswith("linear_attn.norm.weight"):
            return values * np.float32(0.1) + np.float32(1)  # multiplies directly
        if "norm" in name:
            return values * np.float32(0.1)  # multiplies as 1 + w
        if name.endswith("conv1d.weight"):
            return values * np.float32(0.4)
        if name == "embed_tokens.weight" and not self._spec.tied_embeddings:
            return values
        values *= np.float32(shape[-1] ** -0.5)  # also a tied embedding: its logits then have unit variance
        if self._follow and name == "lm_head.weight":
            return self._following_head(values)
        if self._follow and name == "mtp.fc.weight":
            # Passes the embedding of the newest token on, which is what the successor rule reads.
            values[:, : shape[0]] += np.float32(self._follow) * np.eye(shape[0], dtype=np.float32)
        return values

    def _following_head(self, head: NDArray[np.float32]) -> NDArray[np.float32]:
        rng = np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(b"successors")]))
        embedding = self._float32("embed_tokens.weight")
        for share in (1.0, 0.9):  # close, so that the context decides between the two
            cycle = rng.permutation(self._ordinary)
            head[cycle] += np.float32(share * self._follow * self._spec.hidden**-0.5) * embedding[np.roll(cycle, 1)]
        head[self._ordinary :] *= np.float32(0.5)  # special tokens come up rarely
        return head
