"""`Compiler`: one ONNX graph with its weights becomes one TensorRT engine file.

What must stay true: networks are strongly typed (TensorRT changes no dtype), TF32 is off (the recurrence is float32),
weights are read from the mapped file and not copied before TensorRT packs them, and whatever TensorRT has to complain
about becomes one error that names graph, node and operator.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from edgellm.engine.trt.api import Api, Builder, Config, Network, Parser, check_capability
from edgellm.engine.trt.layer_list import START, LayerList, parse_layers
from edgellm.engine.trt.profiles import Sizes, input_ranges
from edgellm.errors import ConfigError, ExecutionError
from edgellm.progress import Progress

_NODE: Final = re.compile(r"node (?:of type \w+ )?(\S+?)[.:)]?(?:\s|$)")

_NO_KERNEL: Final = "Attention operation was not supported by a dedicated kernel"


class Compiler:
    """Builds the engines of one bundle.

    Args:
        api: the module, see `load_api`.
        capability: compute capability to build for ("SM120") where the module builds ahead of time; None: of the GPU
            here.
        timing_cache: file of kernel timings that is read and extended; None: kernels are timed anew.
        progress: called with ("engine <name>", steps done, steps in all).
    """

    def __init__(
        self, api: Api, *, capability: str | None, timing_cache: Path | None = None, progress: Progress | None = None
    ) -> None:
        self._api, self._capability, self._timing_cache, self._progress = api, capability, timing_cache, progress
        self._errors: list[str] = []
        self._layers: list[str] = []
        self._logger = _subclass(api.ILogger, log=lambda _, severity, message: self._log(severity.name, message))
        self._builder: Builder = api.Builder(self._logger)

    def compile(
        self, graph: Path, out: Path, profiles: Sequence[Sizes], plugins: Callable[[Network], None] | None = None
    ) -> LayerList:
        """Build `graph` (its weights beside it) with `profiles` and write the engine to `out`.

        Args:
            plugins: puts plugins into the network when it has been parsed.

        Raises:
            ConfigError: this TensorRT does not take the graph.
            ExecutionError: the build failed.
        """
        self._errors.clear()
        self._layers.clear()
        kind = self._api.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        network = self._builder.create_network(1 << int(kind))
        parser = self._api.OnnxParser(network, self._logger)
        steps = _Steps(f"engine {graph.stem}", self._progress)
        with steps.stopped_by_interrupt():
            weights = self._parse(parser, graph)
            config = self._configure(graph, profiles)
            if plugins is not None:
                plugins(network)
                config.set_preview_feature(self._api.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
            config.progress_monitor = steps.monitor(self._api)
            engine = self._builder.build_serialized_network(network, config)
        del weights  # TensorRT refers to it up to here
        if steps.raised is not None:
            raise steps.raised
        if engine is None:
            raise ExecutionError(self._failure(graph, network))
        with out.open("wb") as file:
            file.write(memoryview(engine))
        self._keep_timings(config)
        return self._layer_list(engine)

    def _parse(self, parser: Parser, graph: Path) -> list[Any]:
        """Fill the parser's network; what is returned must outlive it."""
        text = graph.read_bytes()
        parser.load_model_proto(text, str(graph))
        mapped: dict[str, np.memmap[Any, Any]] = {}
        for tensor in onnx.ModelProto.FromString(text).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            place = {entry.key: entry.value for entry in tensor.external_data}
            file = place["location"]
            if file not in mapped:
                mapped[file] = np.memmap(graph.parent / file, mode="r")
            address = mapped[file].ctypes.data + int(place["offset"])
            if not parser.load_initializer(tensor.name, address, int(place["length"])):
                raise ConfigError(f"{graph.name}: TensorRT does not take the weight {tensor.name!r}")
        if not parser.parse_model_proto():
            raise ConfigError(f"{graph.name}: TensorRT {self._api.__version__} {self._refusal(parser)}")
        return list(mapped.values())

    def _refusal(self, parser: Parser) -> str:
        if parser.num_errors == 0:
            return "cannot read the graph"
        error = parser.get_error(0)
        return f"does not take node {error.node_name()!r} ({error.node_operator()}): {_one_line(error.desc())}"

    def _failure(self, graph: Path, network: Network) -> str:
        reason = _one_line(self._errors[0]) if self._errors else "no reason given"
        node = next((found[1] for text in self._errors if (found := _NODE.search(text))), None)
        where = f", node {node!r}" if node else ""
        if _NO_KERNEL in reason:
            reason += "; for a profile of one token it has one up to a context of some 20000 tokens: make it two"
        told = f"TensorRT {self._api.__version__} cannot build its {network.num_layers} layers"
        return f"{graph.name}{where}: {told}: {reason}"

    def _configure(self, graph: Path, profiles: Sequence[Sizes]) -> Config:
        api, config = self._api, self._builder.create_builder_config()
        config.profiling_verbosity = api.ProfilingVerbosity.DETAILED
        config.clear_flag(api.BuilderFlag.TF32)
        if hasattr(api.BuilderFlag, "REQUIRE_USER_ALLOCATION"):  # TensorRT-RTX: without it no graph can be captured
            config.set_flag(api.BuilderFlag.REQUIRE_USER_ALLOCATION)
        if self._capability is not None:
            known = check_capability(api, self._capability)
            config.num_compute_capabilities = 1
            config.set_compute_capability(known, 0)
        elif self._timing_cache is not None:
            held = self._timing_cache.read_bytes() if self._timing_cache.is_file() else b""
            config.set_timing_cache(config.create_timing_cache(held), False)
        for sizes in profiles:
            profile = self._builder.create_optimization_profile()
            for name, shapes in input_ranges(graph, sizes).items():
                profile.set_shape(name, shapes.least, shapes.best, shapes.most)
            if config.add_optimization_profile(profile) < 0:
                raise ExecutionError(f"{graph.name}: TensorRT does not take the profile {dict(sizes)}")
        return config

    def _layer_list(self, engine: Any) -> LayerList:
        """What was printed or, where nothing was, what an inspector says; it is no reason to throw an engine away."""
        try:
            return parse_layers(self._layers[-1] if self._layers else self._inspected(engine))
        except ExecutionError as error:
            return LayerList((), str(error))

    def _inspected(self, engine: Any) -> str:
        loaded = self._api.Runtime(self._logger).deserialize_cuda_engine(engine)
        if loaded is None:
            raise ExecutionError("the engine was built but does not load on this machine")
        return str(loaded.create_engine_inspector().get_engine_information(self._api.LayerInformationFormat.ONELINE))

    def _keep_timings(self, config: Config) -> None:
        if self._capability is None and self._timing_cache is not None:
            self._timing_cache.write_bytes(memoryview(config.get_timing_cache().serialize()))

    def _log(self, severity: str, message: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self._errors.append(message)
        elif message.startswith(START):
            self._layers.append(message)


class _Steps:
    """Steps of TensorRT's outermost phase, told to `progress`; what that raises stops the build, as Ctrl-C does."""

    def __init__(self, phase: str, progress: Progress | None) -> None:
        self._phase, self._progress = phase, progress
        self._outermost, self._total = "", 0
        self.raised: BaseException | None = None  # to be raised outside TensorRT, which knows no Python exceptions

    def monitor(self, api: Api) -> Any:
        """The object that TensorRT calls."""
        return _subclass(
            api.IProgressMonitor,
            phase_start=lambda _, name, parent, steps: self._start(name, parent, steps),
            step_complete=lambda _, name, step: self._step(name, step + 1),
            phase_finish=lambda _, name: self._step(name, self._total),
        )

    @contextmanager
    def stopped_by_interrupt(self) -> Iterator[None]:
        """SIGINT and SIGTERM are remembered: raised in one of TensorRT's calls of Python they would be swallowed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(*_: object) -> None:
            self.raised = KeyboardInterrupt()

        former = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _start(self, name: str, parent: str | None, steps: int) -> None:
        if parent is None:
            self._outermost, self._total = name, steps
            self._step(name, 0)

    def _step(self, name: str, done: int) -> bool:
        if name == self._outermost and self.raised is None and self._progress is not None:
            try:
                self._progress(self._phase, min(done, self._total), self._total)
            except BaseException as error:
                self.raised = error
        return self.raised is None


def _subclass(base: type[Any], **methods: Any) -> Any:
    """An object of a class made of functions: its base is known only once the module is loaded."""
    return type(f"Edgellm{base.__name__}", (base,), methods)()


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400]
