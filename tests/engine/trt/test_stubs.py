"""What is used of TensorRT exists: its stubs have every member of the protocols, with the same parameters."""

from __future__ import annotations

import ast
import inspect
import re
import zipfile
from typing import Any

import pytest
from fake_tensorrt import FOLDER

from edgellm.engine.trt import api

CLASSES = {
    api.Profile: "IOptimizationProfile",
    api.Config: "IBuilderConfig",
    api.Tensor: "ITensor",
    api.Layer: "ILayer",
    api.Shuffle: "IShuffleLayer",
    api.Network: "INetworkDefinition",
    api.Builder: "Builder",
    api.ParserError: "ParserError",
    api.Parser: "OnnxParser",
    api.Runtime: "Runtime",
    api.Engine: "ICudaEngine",
    api.Context: "IExecutionContext",
}
AHEAD_OF_TIME = {"num_compute_capabilities", "set_compute_capability", "ComputeCapability"}  # of TensorRT-RTX only
ON_DEVICE = {"add_plugin", "create_timing_cache", "set_timing_cache", "get_timing_cache"}  # not of TensorRT-RTX


def members(protocol: type[Any]) -> dict[str, list[str] | None]:
    """Name → parameters of a method, None for an attribute."""
    found: dict[str, list[str] | None] = {}
    for base in protocol.__mro__:
        if base.__module__ != api.__name__:
            continue
        found |= dict.fromkeys(getattr(base, "__annotations__", {}))
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                found[name] = list(inspect.signature(value).parameters)[1:]
            elif isinstance(value, property):
                found[name] = None
    return found


def parsed(text: str) -> ast.Module:
    """The stubs; signatures that are not Python take anything."""
    lines = text.split("\n")
    while True:
        try:
            return ast.parse("\n".join(lines))
        except SyntaxError as error:
            at = (error.lineno or 0) - 1
            line = lines[at]
            lines[at] = re.sub(r"\((self)?.*\) ->", "(self, *args) ->", line)
            if lines[at] == line:
                raise


@pytest.fixture(scope="module")
def stubs() -> dict[str, ast.ClassDef]:
    wheels = sorted(FOLDER.glob("tensorrt_stubs-*.whl"))
    if not wheels:
        pytest.skip("the stubs are not there: `make test` downloads them")
    text = zipfile.ZipFile(wheels[-1]).read("tensorrt_bindings/tensorrt.pyi").decode()
    return {node.name: node for node in parsed(text).body if isinstance(node, ast.ClassDef)}


def declared(stubs: dict[str, ast.ClassDef], name: str) -> dict[str, list[list[str]]]:
    """Member → parameters of each of its overloads; base classes too."""
    found: dict[str, list[list[str]]] = {}
    for node in stubs[name].body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append([argument.arg for argument in node.args.args[1:]])
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, [])
    for base in stubs[name].bases:
        if isinstance(base, ast.Name) and base.id in stubs:
            found = {**declared(stubs, base.id), **found}
    return found


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda protocol: protocol.__name__)
def test_protocols_are_what_tensorrt_has(stubs: dict[str, ast.ClassDef], protocol: type[Any]) -> None:
    there = declared(stubs, CLASSES[protocol])
    for name, parameters in members(protocol).items():
        if name in AHEAD_OF_TIME:
            continue
        assert name in there, f"{CLASSES[protocol]} has no {name}"
        if parameters is not None:
            fitting = [given for given in there[name] if given[: len(parameters)] == parameters or given == ["args"]]
            assert fitting, f"{CLASSES[protocol]}.{name} takes {there[name]}, not {parameters}"


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda protocol: protocol.__name__)
def test_protocols_are_what_tensorrt_rtx_has(protocol: type[Any]) -> None:
    module = pytest.importorskip("tensorrt_rtx_bindings", reason="needs the extra tensorrt-rtx")
    for name in members(protocol).keys() - ON_DEVICE:
        assert hasattr(getattr(module, CLASSES[protocol]), name), f"{CLASSES[protocol]} has no {name}"


def test_the_module_has_what_is_used_of_it(stubs: dict[str, ast.ClassDef]) -> None:
    for name in api.Api.__annotations__.keys() - AHEAD_OF_TIME:
        assert name.startswith("__") or name in stubs, f"tensorrt has no {name}"
