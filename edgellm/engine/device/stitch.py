"""A program as one network: which tensor of an operation is which tensor of another, or comes from outside.

What must stay true: a tensor is what was last written to its buffer; a buffer that nobody wrote is an input, and what
nobody reads afterwards, or is to be kept, is an output. Names depend on the program alone, so that the one who builds
an engine and the one who binds its buffers agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from edgellm.engine.device.base import Buffer, Launch, Operation, Run
from edgellm.engine.device.symbolic import buffer_bytes
from edgellm.graph.segments import is_result

_LAYER: Final = re.compile(r"segment_(\d+)")


@dataclass(frozen=True, slots=True)
class Node:
    """One operation; its tensors by parameter name."""

    operation: Launch | Run
    inputs: dict[str, str]
    outputs: dict[str, str]  # of a kernel also those changed in place


@dataclass(frozen=True, slots=True)
class Network:
    """Nodes in order, and the buffers of what goes in and out by tensor name."""

    nodes: tuple[Node, ...]
    inputs: dict[str, Buffer]
    outputs: dict[str, Buffer]


def stitch(operations: Sequence[Operation], keep: Collection[Buffer]) -> Network:
    """The network of `operations`; `keep` are buffers whose content is wanted although an operation reads it too.

    A buffer has a shape of its own in every operation: same bytes are the same tensor.
    """
    kept = {buffer_bytes(buffer) for buffer in keep}
    known: dict[tuple[int, int], str] = {}  # bytes → the tensor that they hold
    made: dict[str, Buffer] = {}
    in_place: set[str] = set()
    read: set[str] = set()
    inputs: dict[str, Buffer] = {}
    nodes: list[Node] = []
    layer = ""
    for operation in operations:
        if isinstance(operation, Run):
            found = _LAYER.match(operation.engine)
            layer = f".{int(found[1])}" if found else ""
            ours = operation.engine.partition("_")[0]
            results = {name for name in operation.tensors if is_result(operation.engine, name)}
            taken = operation.tensors.keys() - results
        elif isinstance(operation, Launch):
            ours, params = operation.kernel.name, operation.kernel.params
            results = {param.name for param in params if param.role != "in"}
            taken = {param.name for param in params if param.role != "out"}
        else:
            raise TypeError(f"a copy between {operation.source} and {operation.target} is no part of a network")
        node = Node(operation, {}, {})
        for name in sorted(taken):
            key = buffer_bytes(operation.tensors[name])
            if key not in known:
                known[key] = f"{name}{layer}"
                if known[key] in inputs:
                    raise ValueError(f"two buffers would be the input {known[key]!r}")
                inputs[known[key]] = operation.tensors[name]
            node.inputs[name] = known[key]
            read.add(known[key])
        for name in sorted(results):
            tensor = f"{ours}{layer}.{name}"
            made[tensor] = operation.tensors[name]
            if name in taken:
                in_place.add(tensor)
            known[buffer_bytes(operation.tensors[name])] = node.outputs[name] = tensor
        nodes.append(node)
    last = set(known.values())
    wanted = {name for name in made if name in in_place or name not in read or buffer_bytes(made[name]) in kept}
    return Network(tuple(nodes), inputs, {name: made[name] for name in made if name in last & wanted})
