"""Checkpoints that ModelOpt's default recipe makes: what is quantized, to which values, and what is carried over."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.checkpoint.hub import resolve
from edgellm.checkpoint.quantized_weights import Nvfp4Weight
from edgellm.checkpoint.reader import QUANT_FILE, Checkpoint
from edgellm.checkpoint.safetensors_file import TensorFile, write_safetensors
from edgellm.checkpoint.synth import make_checkpoint
from edgellm.errors import CheckpointError, ConfigError
from edgellm.quantize.modelopt import quantize_with_modelopt
from edgellm.quantize.plan import chosen_modules, named_recipe
from edgellm.text.tokenizer import Tokenizer

try:
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    from transformers import AutoModelForCausalLM
except ImportError:
    pytest.skip("the parity and quantize extras are not installed", allow_module_level=True)

pytestmark = pytest.mark.parity

PROMPTS = ("What is the weather in Lisbon?", "<|im_start|>user\nfind the file named notes.txt<|im_end|>\n", "123 4.5")
LARGEST = np.float32(6 * 448)


@dataclass(frozen=True)
class Made:
    before: Checkpoint
    after: Checkpoint
    texts: list[list[int]]
    calls: list[tuple[str, int, int]]  # of the progress

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Modules that ought to be quantized, and those that share a global scale with each."""
        return chosen_modules(named_recipe("nvfp4"), self.before.spec.expected_tensors())


def rewrite(path: Path, changes: dict[str, Any]) -> None:
    file = TensorFile.open(path)
    tensors = {name: np.array(file.tensor(name)) for name in file.entries} | changes
    write_safetensors(path, {name: (array.dtype, array.shape) for name, array in tensors.items()}, tensors.values())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Multimodal names in three shards, with a tensor of the vision tower and a vector that is float32."""
    folder = make_checkpoint("tiny", tmp_path_factory.mktemp("source") / "plain", shards=3)
    name = "model.language_model.layers.0.linear_attn.A_log"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    path = folder / index["weight_map"][name]
    precise = np.log(np.linspace(1, 9, TensorFile.open(path).entries[name].shape[0], dtype=np.float32))
    vision = {"model.visual.proj.weight": np.arange(64, dtype=np.float32).reshape(4, 16)}
    rewrite(path, {name: precise, **vision})
    index["weight_map"] |= dict.fromkeys(vision, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module", params=["tiny", "edge-tiny"])
def made(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    source = tiny if request.param == "tiny" else resolve("edge-tiny")
    tokenizer = Tokenizer.load(source)
    texts = [tokenizer.encode(prompt, allow_special=True) for prompt in PROMPTS]
    out, calls = tmp_path_factory.mktemp("made") / "out", list[tuple[str, int, int]]()
    quantize_with_modelopt(source, out, texts, progress=lambda *call: calls.append(call))
    return Made(Checkpoint.open(source), Checkpoint.open(out), texts, calls)


def test_what_is_quantized(made: Made) -> None:
    assert made.after.warnings == ()
    assert made.after.spec == made.before.spec
    kinds = {name.removesuffix(".weight"): made.after.kind(name) for name in made.after.names}
    assert {module for module, kind in kinds.items() if kind == "nvfp4"} == set(made.groups)
    for name in made.before.names:
        if name.removesuffix(".weight") not in made.groups:
            before, after = made.before.tensor(name), made.after.tensor(name)
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_what_is_carried_over(made: Made) -> None:
    claim = json.loads((made.after.path / QUANT_FILE).read_text())
    assert claim["producer"]["name"] == "modelopt"
    assert claim["quantization"]["quant_algo"] == "NVFP4"
    excluded = claim["quantization"]["exclude_modules"]
    assert {"lm_head", "mtp.fc", "mtp.layers.0.mlp.up_proj"} <= set(excluded)
    assert len(set(excluded)) == len(excluded)
    config = json.loads((made.after.path / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == excluded
    assert config == made.before.config
    copied = [path for path in made.before.path.iterdir() if path.name.startswith(("tokenizer", "generation", "chat"))]
    assert len(copied) == 4
    assert all((made.after.path / path.name).read_bytes() == path.read_bytes() for path in copied)
    names = {path.name for path in made.before.weight_files}
    assert {path.name for path in made.after.path.glob("*.safetensors")} == names
    vision = [name for name in names if "model.visual.proj.weight" in TensorFile.open(made.before.path / name).entries]
    assert ("model.visual.proj" in excluded) == bool(vision)
    for name in vision:
        found = TensorFile.open(made.after.path / name).tensor("model.visual.proj.weight")
        np.testing.assert_array_equal(found, np.arange(64).reshape(4, 16))


def test_progress(made: Made) -> None:
    files = len(made.before.weight_files)
    wanted = [("calibrate", number, 3) for number in (1, 2, 3)]
    assert made.calls == wanted + [("write", number, files) for number in range(1, files + 1)]


def test_weights_are_those_of_modelopt(made: Made) -> None:
    plain = {
        module: torch.tensor(made.before.weight(f"{module}.weight").to_float32()).bfloat16() for module in made.groups
    }
    for module, group in made.groups.items():
        weight = made.after.weight(f"{module}.weight")
        assert isinstance(weight, Nvfp4Weight)
        factor = torch.stack([plain[part].abs().max() for part in group]).max().float() / (6 * 448)
        stored, scales, _ = NVFP4QTensor.quantize(plain[module], 16, weights_scaling_factor_2=factor)
        theirs = stored.dequantize(torch.float32, scale=scales, double_scale=factor, block_sizes={-1: 16})
        np.testing.assert_array_equal(weight.to_float32(), theirs.numpy())


def test_input_scales_are_those_of_the_inputs(made: Made) -> None:
    """Against the plain model of transformers, watched with hooks."""
    model = AutoModelForCausalLM.from_pretrained(made.before.path, dtype="auto")
    seen: dict[str, float] = {}

    def watch(module: str) -> Any:
        def hook(_: Any, inputs: Any) -> None:
            seen[module] = max(seen.get(module, 0.0), inputs[0].abs().max().item())

        return hook

    for module in made.groups:
        model.get_submodule(f"model.{module}").register_forward_pre_hook(watch(module))
    with torch.no_grad():
        for text in made.texts:
            model(torch.tensor([text]), use_cache=False)
    for module in made.groups:
        weight = made.after.weight(f"{module}.weight")
        assert isinstance(weight, Nvfp4Weight)
        assert weight.input_scale == np.float32(seen[module]) / LARGEST, module


def test_what_cannot_be_done_leaves_nothing(tiny: Path, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is quantized already: layers\.0"):
        quantize_with_modelopt(made.after.path, tmp_path / "out", [[1, 2]])
    zeros = make_checkpoint("tiny", tmp_path / "zeros")
    name = "model.language_model.layers.1.mlp.down_proj.weight"
    path = zeros / "model.safetensors"
    rewrite(path, {name: np.zeros_like(TensorFile.open(path).tensor(name))})
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight_scale_2.* positive"):
        quantize_with_modelopt(zeros, tmp_path / "out", [[1, 2]])
    assert [entry.name for entry in tmp_path.iterdir()] == ["zeros"]
