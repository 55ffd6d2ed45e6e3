"""`LayerList`: the kernels that TensorRT chose for an engine, read from what its builder prints.

TensorRT-RTX prints one line per layer and profile when profiling verbosity is DETAILED and the logger takes VERBOSE; an
engine inspector says the same, but only where there is a GPU. What must stay true: a line of another form is an error,
not a layer less.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from edgellm.errors import ExecutionError

START: Final = "Layers:\n"
FP4: Final = "FP4E2M1"
_END: Final = re.compile(r"^(?:I/O Tensors|Bindings):", re.MULTILINE)
_LINE: Final = re.compile(r"Name: (?P<name>.+?), LayerType: (?P<kind>\w+), Inputs: (?P<rest>.*)")
_TENSOR: Final = re.compile(r"\{ Name: (.*?), .*?Dimensions: \[([-\d,]*)\].*?Datatype: (\w+)")
_TACTIC: Final = re.compile(r", Tactic(?:Name|Value)?: ([^,]*)")
_SUBGRAPH: Final = re.compile(r"_myl(\d+)_\d+$")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that a layer reads or writes; -1 is a dimension that is not fixed."""

    name: str
    dtype: str  # as TensorRT names it: "BFloat16", "FP4E2M1"
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One launch."""

    name: str
    kind: str  # "gemm", "kgen" (a fused kernel), …
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tactic: str

    @property
    def subgraph(self) -> int:
        """Number of the compiled subgraph; an engine that is one subgraph has one per profile, in their order."""
        found = _SUBGRAPH.search(self.name)
        return int(found[1]) if found else 0

    @property
    def is_attention(self) -> bool:
        """Whether it is a fused attention kernel: scores, softmax and context in one."""
        return "mha" in self.tactic or "fmha" in self.kind

    @property
    def is_fp4_product(self) -> bool:
        """Whether it multiplies FP4 with FP4, without decoding either."""
        operands = Counter(tensor.dtype for tensor in (*self.inputs, *self.constants))
        return self.kind == "gemm" and operands[FP4] == 2


@dataclass(frozen=True, slots=True)
class LayerList:
    """Layers of one engine in the order in which they run, profile after profile; `unread` says why there are none."""

    layers: tuple[Layer, ...]
    unread: str = ""

    def of_profile(self, profile: int) -> LayerList:
        """Layers of one profile, for an engine whose profiles are one subgraph each."""
        return LayerList(tuple(layer for layer in self.layers if layer.subgraph == profile))

    def counts(self) -> dict[str, int]:
        """Layers, fused attention kernels, products of FP4 with FP4 (other products may be fused out of sight)."""
        return {
            "layers": len(self.layers),
            "attention": sum(layer.is_attention for layer in self.layers),
            "fp4_products": sum(layer.is_fp4_product for layer in self.layers),
        }

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerList:
        """Inverse of `to_dict`, also after JSON."""

        def tensors(items: Iterable[Mapping[str, Any]]) -> tuple[Tensor, ...]:
            return tuple(Tensor(item["name"], item["dtype"], tuple(item["shape"])) for item in items)

        def layer(item: Mapping[str, Any]) -> Layer:
            inputs, constants, outputs = (tensors(item[key]) for key in ("inputs", "constants", "outputs"))
            return Layer(item["name"], item["kind"], inputs, constants, outputs, item["tactic"])

        return cls(tuple(layer(item) for item in values["layers"]), values["unread"])


def parse_layers(message: str) -> LayerList:
    """The list in a text that starts with `START`.

    Raises:
        ExecutionError: it does not, or a line is not a layer.
    """
    if not message.startswith(START):
        raise ExecutionError(f"TensorRT prints layers in a form that is not known: {message:.200}")
    lines = _END.split(message.removeprefix(START))[0].splitlines()
    return LayerList(tuple(_layer(line) for line in lines if line.strip()))


def _layer(line: str) -> Layer:
    found = _LINE.match(line)
    tactic = _TACTIC.search(line)
    if found is None or tactic is None or ", Outputs: " not in found["rest"]:
        raise ExecutionError(f"TensorRT prints layers in a form that is not known: {line:.200}")
    inputs, outputs = found["rest"].split(", Outputs: ", 1)
    inputs, _, constants = inputs.partition(", Constants: ")
    outputs = outputs.split(tactic[0], 1)[0]
    return Layer(found["name"], found["kind"], _tensors(inputs), _tensors(constants), _tensors(outputs), tactic[1])


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, dtype, tuple(int(size) for size in shape.split(",") if size))
        for name, shape, dtype in _TENSOR.findall(text)
    )
