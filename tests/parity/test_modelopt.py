"""NVFP4 as NVIDIA ModelOpt reads and writes it: the same values, bit for bit, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgellm.checkpoint.nvfp4 import Nvfp4
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.quantize.plan import named_recipe
from edgellm.quantize.rounding import round_to_nearest
from edgellm.quantize.writer import quantize_checkpoint

try:
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
except ImportError:
    pytest.skip("the quantize extra is not installed", allow_module_level=True)

pytestmark = pytest.mark.parity


def read_by_modelopt(matrix: Nvfp4) -> Any:
    """What ModelOpt makes of the stored tensors."""
    stored = NVFP4QTensor(torch.Size(matrix.shape), torch.float32, torch.from_numpy(np.array(matrix.packed)))
    scales = torch.from_numpy(np.array(matrix.block_scales).view(np.uint8)).view(torch.float8_e4m3fn)
    factor = torch.tensor(float(matrix.global_scale))
    return stored.dequantize(scale=scales, double_scale=factor, block_sizes={-1: 16}).numpy()


def test_modelopt_reads_what_is_written_here(tmp_path: Path) -> None:
    source = make_checkpoint("tiny", tmp_path / "source")
    modules = [error.module for error in quantize_checkpoint(source, tmp_path / "out", named_recipe("nvfp4-all"))]
    checkpoint = Checkpoint.open(tmp_path / "out")
    for module in modules:
        weight = checkpoint.weight(f"{module}.weight")
        assert isinstance(weight, Nvfp4Weight)
        np.testing.assert_array_equal(read_by_modelopt(weight.matrix), weight.to_float32())


@pytest.mark.parametrize("seed", range(5))
def test_modelopts_tensors_are_read_here(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = (rng.standard_t(4, (64, 128)) * 10.0 ** rng.integers(-4, 2)).astype(np.float32)
    plain[3, :16] = 0
    stored, scales, factor = NVFP4QTensor.quantize(torch.from_numpy(plain), 16, try_tensorrt=False)
    theirs = stored.dequantize(scale=scales, double_scale=factor, block_sizes={-1: 16}).numpy()
    blocks = scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    matrix = Nvfp4(stored._quantized_data.numpy(), blocks, np.float32(factor.item()))
    np.testing.assert_array_equal(matrix.to_float32(), theirs)
    np.testing.assert_array_equal(round_to_nearest(plain).to_float32(), theirs)
