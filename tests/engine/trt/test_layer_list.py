"""What TensorRT prints of an engine, in the forms of TensorRT-RTX 1.7 and of TensorRT 10."""

from __future__ import annotations

import json

import pytest

from edgellm.engine.trt.layer_list import LayerList, Tensor, parse_layers
from edgellm.errors import ExecutionError

LINEAR = "Format: (Linear) Row major linear format"


def rtx(name: str, dtype: str, shape: str, form: str = LINEAR) -> str:
    return (
        f"{{ Name: {name}, Dimensions: [{shape}], Strides: [1,1,1], StrideOrder: [2,1,0], Datatype: {dtype}, {form} }}"
    )


def layer(name: str, kind: str, inputs: str, constants: str, outputs: str, tactic: str) -> str:
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: [{inputs}], Constants: [{constants}], Outputs: [{outputs}], "
        f"TacticName: {tactic}, StreamId: 0, Metadata: [ONNX Layer: MatMul_24][ONNX Layer: Transpose_23]"
    )


SCALES = rtx("s_myl0", "FP8", "1,1,4,32,2,4", "Format: (Arbitrary) Format with stride order = [5,4,1,2,3,0]")
INPUTS = f" {rtx('x.1_31_myl0', 'FP4E2M1', '1,2,128')}, {SCALES}"
WEIGHT = rtx("w_myl0", "FP4E2M1", "1,128,384", "Format: (Transposed) Transposed format")
PRODUCT = layer(
    "MatMul_24_myl0_5", "gemm", INPUTS, f" {WEIGHT}", f" {rtx('y_myl0', 'BFloat16', '1,2,384')}", "__myelin_CASK_STUB"
)
ATTENTION = layer(
    "_gemm_mha_v2_myl1_84", "kgen", f" {rtx('k', 'BFloat16', '1,2,-1,64')}", "", "", "_gemm_mha_v2_0x701d"
)
SHAPES = layer("__mye18205_0_myl1_0", "shape_call", "", "", "", "")
RTX = f"Layers:\n{PRODUCT}\n{ATTENTION}\n{SHAPES}\n\nI/O Tensors:\n Name: positions, IOMode: Input, DataType: Int64\n"
HALF = "Format/Datatype: Half"
DEVICE = f"""Layers:
Name: fc + relu_myl0_1, LayerType: gemm, Inputs: [ {{ Name: a, Location: Device, Dimensions: [1,16], {HALF} }}, \
{{ Name: b, Location: Device, Dimensions: [16,8], {HALF} }}], Outputs: [ {{ Name: c, Location: Device, \
Dimensions: [1,8], {HALF} }}], TacticName: sm80_xmma_gemm, StreamId: 0, Metadata:

Bindings:
a
c
"""


def test_layers_of_two_profiles() -> None:
    found = parse_layers(RTX)
    product, attention, shapes = found.layers
    assert (product.name, product.kind, product.tactic) == ("MatMul_24_myl0_5", "gemm", "__myelin_CASK_STUB")
    assert product.inputs == (
        Tensor("x.1_31_myl0", "FP4E2M1", (1, 2, 128)),
        Tensor("s_myl0", "FP8", (1, 1, 4, 32, 2, 4)),
    )
    assert product.constants == (Tensor("w_myl0", "FP4E2M1", (1, 128, 384)),)
    assert product.outputs == (Tensor("y_myl0", "BFloat16", (1, 2, 384)),)
    assert product.is_fp4_product
    assert not product.is_attention
    assert attention.is_attention
    assert attention.inputs[0].shape == (1, 2, -1, 64)
    assert (shapes.inputs, shapes.outputs, shapes.tactic) == ((), (), "")
    assert found.of_profile(0).counts() == {"layers": 1, "attention": 0, "fp4_products": 1}
    assert found.of_profile(1).counts() == {"layers": 2, "attention": 1, "fp4_products": 0}


def test_the_form_of_tensorrt_10() -> None:
    (product,) = parse_layers(DEVICE).layers
    assert [tensor.dtype for tensor in product.inputs] == ["Half", "Half"]
    assert product.tactic == "sm80_xmma_gemm"
    assert not product.is_fp4_product


def test_a_product_that_decodes_its_weights_is_no_fp4_product() -> None:
    decoded = parse_layers(
        RTX.replace("Datatype: FP4E2M1, Format: (Transposed)", "Datatype: BFloat16, Format: (Transposed)")
    )
    assert not decoded.layers[0].is_fp4_product


def test_json_keeps_everything() -> None:
    found = parse_layers(RTX)
    assert LayerList.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    "line",
    [
        "Layer: a, LayerType: gemm",
        "Name: a, LayerType: gemm, Inputs: [], TacticName: x",
        "Name: a, LayerType: gemm, Inputs: [], Outputs: []",
    ],
)
def test_another_form_is_an_error(line: str) -> None:
    with pytest.raises(ExecutionError, match="in a form that is not known"):
        parse_layers(f"Layers:\n{line}\n")


def test_a_text_without_layers_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="in a form that is not known: Engine Layer Information"):
        parse_layers("Engine Layer Information:\nLayer(Myelin): a")
