"""The quantization that a checkpoint claims against the one that its tensors show.

The tensors decide; a claim that differs is told, one that cannot be meant is an error.
"""

from __future__ import annotations

from collections.abc import Collection

from edgellm.checkpoint.assembly import Assembly, some
from edgellm.checkpoint.module_patterns import canonical, check_patterns, fused_name, matches
from edgellm.checkpoint.quant_config import QuantConfig
from edgellm.errors import CheckpointError


def check_claim(claim: QuantConfig | None, assembly: Assembly, tensors: Collection[str], warnings: list[str]) -> None:
    """Compare.

    Args:
        claim: None when the checkpoint makes none.
        tensors: canonical names of all tensors of the files, those of other models (vision) included.
        warnings: gets what differs.

    Raises:
        CheckpointError: tensors are quantized and nothing says so; a pattern or a listed layer means no module.
    """
    quantized = assembly.quantized
    if claim is None:
        if quantized:
            raise CheckpointError(
                f"{some(sorted(quantized))} are quantized, but neither hf_quant_config.json nor "
                "config.json.quantization_config says so"
            )
        return
    modules = {name.rpartition(".")[0] for name in tensors} | {"lm_head"}
    check_patterns(claim.excluded, modules, claim.where)
    listed = {canonical(name): form for name, form in claim.layers.items()}
    if unknown := [name for name in listed if name not in modules and name not in map(fused_name, modules)]:
        raise CheckpointError(f"{claim.where} lists {some(unknown)}: no module of the checkpoint has such a name")
    if claim.kind is None and not listed:
        return  # mixed precision, and nothing says of what
    surplus, lacking, other = [], [], []
    for name, matrix in assembly.matrices.items():
        module = name.removesuffix(".weight")
        if any(matches(pattern, module) for pattern in claim.excluded):
            wanted = None
        else:
            wanted = claim.kind or listed.get(module) or listed.get(fused_name(module))
        form = matrix.kind
        if matrix.form == "plain":
            if wanted is not None and _linear(name, matrix.shape):
                lacking.append(module)
        elif wanted is None:
            surplus.append(module)
        elif form != wanted:
            other.append(f"{module} ({form})")
    for names, problem in (
        (surplus, "quantized although {where} does not say so"),
        (lacking, "not quantized although {where} says so"),
        (other, "quantized in another form than {where} says"),
    ):
        if names:
            warnings.append(f"{some(names)}: {problem.format(where=claim.where)}; the tensors decide")
    if claim.kv is not None and not assembly.kv_scales:
        warnings.append(f"{claim.where} asks for an FP8 KV cache but the checkpoint has no k_scale and v_scale: 1.0")
    if claim.kv is None and assembly.kv_scales:
        warnings.append(f"the checkpoint has KV scales although {claim.where} does not ask for an FP8 KV cache")


def _linear(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name != "embed_tokens.weight"
