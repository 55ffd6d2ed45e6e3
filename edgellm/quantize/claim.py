"""What a checkpoint that was quantized here says of itself, in both of ModelOpt's forms."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgellm.checkpoint.nvfp4 import BLOCK


@dataclass(frozen=True, slots=True)
class Claim:
    """Attributes:
    activations: the matrices have scales of their inputs (W4A4).
    kv: the attention layers have scales of an FP8 KV cache.
    spared: modules with a matrix that was left alone, as the files name them.
    """

    activations: bool
    kv: bool
    spared: Sequence[str]

    def hf_quant_config(self) -> dict[str, Any]:
        """``hf_quant_config.json``."""
        return {
            "producer": _producer(),
            "quantization": {
                "quant_algo": self._algorithm,
                "kv_cache_quant_algo": "FP8" if self.kv else None,
                "group_size": BLOCK,
                "exclude_modules": list(self.spared),
            },
        }

    def quantization_config(self) -> dict[str, Any]:
        """The same in the form of ``config.json``."""
        form = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
        group: dict[str, Any] = {"weights": form, "targets": ["Linear"]}
        if self.activations:
            group["input_activations"] = form
        kv = {"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}} if self.kv else {}
        return {
            "quant_method": "modelopt",
            "quant_algo": self._algorithm,
            "config_groups": {"group_0": group},
            **kv,
            "ignore": list(self.spared),
            "producer": _producer(),
        }

    @property
    def _algorithm(self) -> str:
        return "NVFP4" if self.activations else "W4A16_NVFP4"


def _producer() -> dict[str, str]:
    return {"name": "edgellm", "version": importlib.metadata.version("edgellm")}
