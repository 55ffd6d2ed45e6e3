"""Quantized checkpoints as they are published: values bit for bit, and everything inconsistent named (cases F)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from quantized_files import Tensors, nvfp4, put_compressed_nvfp4, put_fp8, put_fp8_blocks, put_nvfp4

from edgellm.checkpoint.nvfp4 import E2M1, Nvfp4, pack, unpack
from edgellm.checkpoint.quantized_weights import Fp8Weight, Nvfp4Weight
from edgellm.checkpoint.reader import Checkpoint
from edgellm.errors import CheckpointError

Edit = Callable[[Path, Callable[[Any], None]], None]
PREFIX = "model.language_model."
GDN = ("in_proj_qkv", "in_proj_z", "out_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
MODULES = [
    *(f"layers.0.linear_attn.{part}" for part in GDN),
    *(f"layers.1.self_attn.{part}" for part in ATTENTION),
    *(f"layers.{layer}.mlp.{part}" for layer in (0, 1) for part in MLP),
]
EXCLUDED = ["lm_head", f"{PREFIX}layers.0.linear_attn.conv1d", "mtp*", "*.in_proj_a", "*.in_proj_b"]
NVFP4: dict[str, Any] = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": EXCLUDED}


class Draft:
    """A copy of a checkpoint whose tensors are being changed."""

    def __init__(self, folder: Path, edit: Edit) -> None:
        self.folder, self._edit = folder, edit
        self.values: dict[str, Any] = {}

    def put(self, put: Callable[..., Any], *modules: str, prefix: str = PREFIX, **options: Any) -> None:
        def change(tensors: Tensors) -> None:
            for module in modules:
                self.values[module] = put(tensors, prefix + module, **options)

        self._edit(self.folder / "model.safetensors", change)

    def change(self, change: Callable[[Tensors], None]) -> None:
        self._edit(self.folder / "model.safetensors", change)

    def claim(self, quantization: dict[str, Any] | None = None, **config: Any) -> None:
        """Write hf_quant_config.json, and `quantization_config` fields into config.json."""
        if quantization is not None:
            (self.folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
        if config:
            file = self.folder / "config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config}))

    def open(self) -> Checkpoint:
        return Checkpoint.open(self.folder)

    def checked(self) -> Checkpoint:
        """Opened, and every changed matrix has exactly the expected values."""
        checkpoint = self.open()
        for module, values in self.values.items():
            weight = checkpoint.weight(f"{module}.weight")
            assert weight.shape == values.shape
            np.testing.assert_array_equal(weight.to_float32(), values)
            np.testing.assert_array_equal(weight.to_float32(slice(3, 9)), values[3:9])
            with pytest.raises(CheckpointError, match="is quantized"):
                checkpoint.tensor(f"{module}.weight")
        return checkpoint

    def refused(self, named: str) -> None:
        with pytest.raises(CheckpointError, match=named):
            self.open()


@pytest.fixture
def draft(small: Path, tmp_path: Path, edit_tensors: Edit) -> Draft:
    return Draft(Path(shutil.copytree(small, tmp_path / "quantized")), edit_tensors)


# -- values


def test_modelopt_nvfp4(draft: Draft) -> None:
    draft.put(put_nvfp4, *MODULES)
    draft.claim(NVFP4)
    checkpoint = draft.checked()
    assert checkpoint.warnings == ()
    weight = checkpoint.weight("layers.0.mlp.up_proj.weight")
    assert isinstance(weight, Nvfp4Weight)
    assert (weight.kind, weight.input_scale) == ("nvfp4", np.float32(0.01))
    assert checkpoint.weight("lm_head.weight").kind == "bf16"


def test_weights_only_nvfp4(draft: Draft) -> None:
    draft.put(put_nvfp4, *MODULES, activations=False)
    draft.claim({**NVFP4, "quant_algo": "W4A16_NVFP4"})
    weight = draft.checked().weight("layers.0.mlp.up_proj.weight")
    assert isinstance(weight, Nvfp4Weight)
    assert weight.input_scale is None


def test_compressed_tensors(draft: Draft) -> None:
    """F17: global scales are reciprocals and differ within a fused group."""
    for part, divisor in zip(ATTENTION, (12343, 5334, 8001, None), strict=True):
        draft.put(put_compressed_nvfp4, f"layers.1.self_attn.{part}", divisor=divisor)
    ignored = ["re:.*mlp.*", "re:.*linear_attn.*", "lm_head", "re:.*visual.*", "re:mtp.*"]
    draft.claim(quant_method="compressed-tensors", format="nvfp4-pack-quantized", ignore=ignored)
    checkpoint = draft.checked()
    assert checkpoint.warnings == ()
    weight = checkpoint.weight("layers.1.self_attn.q_proj.weight")
    assert isinstance(weight, Nvfp4Weight)
    assert weight.input_scale == np.float32(0.01)


@pytest.mark.parametrize("per_row", [False, True])
def test_fp8(draft: Draft, per_row: bool) -> None:
    draft.put(put_fp8, *MODULES, per_row=per_row)
    draft.claim({**NVFP4, "quant_algo": "FP8"})
    weight = draft.checked().weight("layers.0.mlp.up_proj.weight")
    assert isinstance(weight, Fp8Weight)
    assert len(weight.scales) == (32 if per_row else 1)


def test_fp8_in_blocks(draft: Draft) -> None:
    draft.put(put_fp8_blocks, *MODULES, tile=(24, 16))
    excluded = ["lm_head", "layers.0.linear_attn.in_proj_a", "layers.0.linear_attn.in_proj_b", "mtp"]
    config = {"quant_method": "fp8", "weight_block_size": [24, 16], "modules_to_not_convert": excluded}
    draft.claim(**config)
    assert draft.checked().warnings == ()
    draft.claim(**{**config, "weight_block_size": [32, 16]})
    with pytest.raises(CheckpointError, match=r"weight_scale_inv' has shape .* with tiles of"):
        draft.open().weight("layers.0.mlp.up_proj.weight").to_float32()


def test_mixed_precision(draft: Draft) -> None:
    """F12: names with the file's prefix; the KV setting stands in one file only."""
    mlp = [module for module in MODULES if ".mlp." in module]
    others = [module for module in MODULES if ".mlp." not in module]
    draft.put(put_nvfp4, *mlp)
    draft.put(put_nvfp4, "lm_head", prefix="")
    draft.put(put_fp8, *others)
    scale = np.array(0.02, np.float32)
    draft.change(lambda t: t.update({f"{PREFIX}layers.1.self_attn.{x}_proj.{x}_scale": scale for x in "kv"}))
    layers = {PREFIX + module: {"quant_algo": "NVFP4", "group_size": 16} for module in mlp}
    layers |= {PREFIX + module: {"quant_algo": "FP8"} for module in others}
    layers["lm_head"] = {"quant_algo": "NVFP4", "group_size": 16}
    claim = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    draft.claim(claim, quant_algo="MIXED_PRECISION", quant_method="modelopt", quantized_layers=layers)
    checkpoint = draft.checked()
    assert checkpoint.warnings == ()
    assert checkpoint.kv_scales == {"layers.1.self_attn": (np.float32(0.02), np.float32(0.02))}
    layers[f"{PREFIX}layers.7.mlp.up_proj"] = {"quant_algo": "NVFP4"}
    draft.claim(claim)
    draft.refused(r"lists 'layers\.7\.mlp\.up_proj': no module")


def test_mixed_precision_of_compressed_tensors(draft: Draft) -> None:
    """Its groups name classes of modules, not their forms in our words: the tensors decide."""
    draft.put(put_compressed_nvfp4, *(module for module in MODULES if ".mlp." in module))
    draft.put(put_fp8, *(module for module in MODULES if ".mlp." not in module), per_row=True)
    draft.claim(quant_method="compressed-tensors", format="mixed-precision", ignore=["lm_head"])
    assert draft.checked().warnings == ()


@pytest.mark.parametrize("kind", ["zeros", "one huge", "tiny", "every code"])
def test_adversarial_matrices(kind: str) -> None:
    """Against ml_dtypes' 4-bit and 8-bit floats, bit for bit."""
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((48, 64)).astype(np.float32)
    if kind == "zeros":
        matrix[:] = 0
    elif kind == "one huge":
        matrix[5, 7] = 3e30
    elif kind == "tiny":
        matrix *= np.float32(1e-38)
    packed, scales, factor, values = nvfp4(matrix)
    if kind == "every code":  # every code with every E4M3 scale that is a number, denormal ones included
        packed = rng.integers(0, 256, (256, 32), dtype=np.uint8)
        scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4, 1).view(ml_dtypes.float8_e4m3fn)
        scales = np.where(np.isnan(scales.astype(np.float32)), scales[:1], scales).astype(ml_dtypes.float8_e4m3fn)
        nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(256, 64)
        whole = scales.astype(np.float32) * factor
        codes = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        values = (codes.reshape(256, 4, 16) * whole[..., None]).reshape(256, 64)
    got = Nvfp4(packed, scales, factor).to_float32()
    np.testing.assert_array_equal(got.view(np.uint32), values.view(np.uint32))


def test_packing() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (5, 32), dtype=np.uint8)
    np.testing.assert_array_equal(unpack(pack(codes)), codes)
    every = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(every.view(np.uint32), E2M1.view(np.uint32))


# -- what the config says and what the tensors show


@pytest.mark.parametrize(
    "names",
    [
        ["layers.0.linear_attn.in_proj_qkv", "layers.0.linear_attn.in_proj_z"],
        ["layers.0.linear_attn.in_proj_qkvz"],
        ["re:.*linear_attn.in_proj_(qkv|z)"],
        [f"{PREFIX}layers.0.linear_attn.in_proj_qkvz"],
        ["model.layers.0.linear_attn.in_proj_qkv*", "model.layers.0.linear_attn.in_proj_z"],
    ],
)
def test_excluded_modules_in_any_spelling(draft: Draft, names: list[str]) -> None:
    """F01, F14."""
    draft.put(put_nvfp4, *(module for module in MODULES if "in_proj" not in module))
    others = ["*.in_proj_ba", "mtp*"]
    for head in ("lm_head", "language_model.lm_head", "model.lm_head"):
        draft.claim({**NVFP4, "exclude_modules": [*names, *others, head]})
        assert draft.checked().warnings == ()


@pytest.mark.parametrize(
    "name", ["layers.0.linear_atn.in_proj_qkv", "layers.9*", "re:.*lineer_attn.*", "model.lm_heads"]
)
def test_patterns_that_mean_nothing_are_errors(draft: Draft, name: str) -> None:
    """F01."""
    draft.put(put_nvfp4, *MODULES)
    draft.claim({**NVFP4, "exclude_modules": [*EXCLUDED, name]})
    draft.refused("no module of the checkpoint has such a name")


def test_half_of_a_fused_group_is_an_error(draft: Draft) -> None:
    """F01."""
    draft.put(put_nvfp4, *(module for module in MODULES if not module.endswith("in_proj_z")))
    draft.claim(NVFP4)
    draft.refused(r"layers\.0\.linear_attn is quantized in part: in_proj_qkv nvfp4, in_proj_z plain")


def test_tensors_decide(draft: Draft) -> None:
    """F02, F06, F07: a quantized head that is excluded, plain MTP matrices that are not."""
    draft.put(put_nvfp4, *MODULES)
    draft.put(put_nvfp4, "lm_head", prefix="")
    draft.claim({**NVFP4, "exclude_modules": ["lm_head", "mtp.layers.0*", "*.in_proj_ba"]})
    surplus, lacking = draft.checked().warnings
    assert surplus.startswith("'lm_head': quantized although hf_quant_config.json")
    assert lacking.startswith("'mtp.fc': not quantized although")
    draft.claim({"quant_algo": "FP8", "exclude_modules": ["*.in_proj_ba", "mtp*"]})
    (warning,) = draft.checked().warnings
    assert "quantized in another form" in warning


@pytest.mark.parametrize(("gate", "up"), [(1e-4, 2.1e-4), (3e-4, 3e-4)])
def test_fused_parts_keep_their_own_scales(draft: Draft, gate: float, up: float) -> None:
    """F10, F18: scalar scales of parts that others fuse are kept apart."""
    draft.put(put_nvfp4, *(m for m in MODULES if not m.endswith(("0.mlp.gate_proj", "0.mlp.up_proj"))))
    draft.put(put_nvfp4, "layers.0.mlp.gate_proj", global_scale=gate)
    draft.put(put_nvfp4, "layers.0.mlp.up_proj", global_scale=up)
    draft.claim(NVFP4)
    draft.checked()


@pytest.mark.parametrize(
    "spelling", [("k_proj.k_scale", "v_proj.v_scale"), ("attn.k_scale", "attn.v_scale"), ("k_scale", "v_scale")]
)
def test_kv_scales(draft: Draft, spelling: tuple[str, str]) -> None:
    """F04."""
    draft.put(put_nvfp4, *MODULES)
    scales = {f"{PREFIX}layers.1.self_attn.{name}": np.array([n + 1], np.float32) for n, name in enumerate(spelling)}
    draft.change(lambda t: t.update(scales))
    draft.claim({**NVFP4, "kv_cache_quant_algo": "FP8"})
    assert draft.checked().kv_scales == {"layers.1.self_attn": (1, 2)}
    draft.claim(NVFP4)
    assert any("has KV scales although" in warning for warning in draft.open().warnings)
    (draft.folder / "hf_quant_config.json").unlink()
    for scheme in ({"dynamic": False, "num_bits": 8, "type": "float"}, "FP8"):
        draft.claim(None, quant_algo="NVFP4", quant_method="modelopt", kv_cache_scheme=scheme, ignore=EXCLUDED)
        assert draft.checked().warnings == ()
    draft.change(lambda t: t.pop(f"{PREFIX}layers.1.self_attn.{spelling[1]}"))
    draft.refused(r"only the k scale of layers\.1\.self_attn")


def test_unknown_spellings_of_kv_scales_are_errors(draft: Draft) -> None:
    """F04."""
    draft.put(put_nvfp4, *MODULES)
    draft.claim({**NVFP4, "kv_cache_quant_algo": "FP8"})
    assert any("no k_scale and v_scale" in warning for warning in draft.open().warnings)
    draft.change(lambda t: t.update({f"{PREFIX}layers.1.self_attn.k_cache_scale": np.ones((), np.float32)}))
    draft.refused("does not account for: .*k_cache_scale")


def test_the_two_files_contradict_each_other(draft: Draft) -> None:
    """F12."""
    draft.put(put_nvfp4, *MODULES)
    draft.claim(
        {**NVFP4, "kv_cache_quant_algo": "FP8"}, quant_algo="NVFP4", quant_method="modelopt", ignore=["lm_head"]
    )
    assert any("exclude different modules" in warning for warning in draft.open().warnings)
    draft.claim(None, quant_algo="FP8", quant_method="modelopt")
    draft.refused("hf_quant_config.json.quantization and config.json.quantization_config contradict each other")


def test_nothing_says_that_tensors_are_quantized(draft: Draft) -> None:
    draft.put(put_nvfp4, *MODULES)
    draft.refused("are quantized, but neither")


# -- damage


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t, m: t.pop(f"{m}.weight_scale"), r"is U8 but has no weight_scale$"),
        (lambda t, m: t.pop(f"{m}.weight_scale_2"), "is U8 but has no weight_scale_2"),
        (lambda t, m: t.pop(f"{m}.weight"), "lacks 'layers.0.mlp.up_proj.weight'"),
        (lambda t, m: t.update({f"{m}.weight_scale_inv": t[f"{m}.weight_scale_2"]}), "scale_inv' beside it has no"),
        (lambda t, m: t.update({f"{m}.weight": t[f"{m}.weight"][:, 1:]}), r"has shape \[32, 15\], config.json implies"),
        (lambda t, m: t.update({f"{m}.weight_scale": t[f"{m}.weight_scale"][1:]}), r"scale is F8_E4M3 \[31, 2\]"),
        (lambda t, m: t.update({f"{m}.weight_scale": t[f"{m}.weight_scale"].astype("f4")}), "weight_scale is F32"),
        (lambda t, m: t.update({f"{m}.weight": t[f"{m}.weight"].astype(np.int32)}), "is I32; readable are"),
        (lambda t, m: t.update({f"{m}.weight_zero": t[f"{m}.weight_scale"]}), "does not account for: .*weight_zero"),
        (lambda t, m: t.update({f"{PREFIX}norm.weight": t[f"{m}.weight"]}), "is U8 but has no"),
    ],
)  # fmt: skip
def test_damage_is_named(draft: Draft, change: Callable[[Tensors, str], Any], named: str) -> None:
    draft.put(put_nvfp4, *MODULES)
    draft.claim(NVFP4)
    draft.change(lambda tensors: change(tensors, f"{PREFIX}layers.0.mlp.up_proj"))
    draft.refused(named)


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, [1, 2]])
def test_scales_that_are_no_positive_number(draft: Draft, value: Any) -> None:
    draft.put(put_nvfp4, *MODULES)
    draft.claim(NVFP4)
    name = f"{PREFIX}layers.0.mlp.up_proj.weight_scale_2"
    draft.change(lambda tensors: tensors.update({name: np.array(value, np.float32)}))
    with pytest.raises(CheckpointError, match=r"up_proj.weight_scale_2' must be one positive number"):
        draft.open().weight("layers.0.mlp.up_proj.weight")


def test_a_plain_weight_with_scales(draft: Draft) -> None:
    draft.change(lambda t: t.update({f"{PREFIX}layers.0.mlp.up_proj.weight_scale": np.ones((), np.float32)}))
    draft.refused("is BF16: .*weight_scale' beside it has no meaning")


@pytest.mark.parametrize(
    ("claim", "config", "named"),
    [
        ({}, {}, "quant_algo is missing"),
        ({"quant_algo": "W4A8_MXFP4"}, {}, "quant_algo is 'W4A8_MXFP4'; known are"),
        ({"quant_algo": "NVFP4", "group_size": 32}, {}, "group_size is 32"),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "INT8"}, {}, "kv_cache_quant_algo is 'INT8'"),
        ({"quant_algo": "NVFP4", "exclude_modules": "lm_head"}, {}, "exclude_modules must be an array"),
        ({"quant_algo": "NVFP4", "exclude_modules": ["re:("]}, {}, "is no regular expression"),
        (None, {"quant_method": "awq"}, "quant_method is 'awq'; known are"),
        (None, {"bits": 4}, "quant_method is missing"),
        (None, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "format is 'pack-quantized'"),
        (None, {"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two"),
        (None, {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 4, "type": "int"}},
         "kv_cache_scheme.type must be float of 8 bits"),
    ],
)  # fmt: skip
def test_configs_that_are_not_understood(
    draft: Draft, claim: dict[str, Any] | None, config: dict[str, Any], named: str
) -> None:
    draft.claim(claim, **config)
    draft.refused(named)
