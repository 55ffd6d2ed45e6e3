"""The engines of a bundle: verify, prefill, commit and mtp, from a checkpoint and a recipe.

What must stay true: what cannot be built is refused before the checkpoint's weights are read: the module, its release,
the GPU, memory and disk are looked at first.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from edgellm.checkpoint.reader import Checkpoint
from edgellm.engine.manifest import Device
from edgellm.engine.recipe import Recipe, TensorRtRecipe
from edgellm.engine.trt.api import Api, check_capability, check_release, disable_side_by_side_fusion, load_api
from edgellm.engine.trt.compiler import Compiler
from edgellm.engine.trt.layer_list import LayerList
from edgellm.engine.trt.machine import find_gpu, stamp
from edgellm.engine.trt.memory_plan import check_room, existing, plan_build
from edgellm.engine.trt.plugins import PLUGIN_ENGINE, compile_plugins, planned_step
from edgellm.engine.trt.profiles import Sizes, point, step_sizes
from edgellm.engine.trt.split import device_layout, gpu_arch, segment_profiles, write_kernels
from edgellm.errors import ConfigError
from edgellm.graph.export import build_tensorrt_graphs, build_tensorrt_segments
from edgellm.graph.lowering.tensorrt import TensorRtForm
from edgellm.graph.segments import KERNEL_WEIGHTS, save_kernel_weights
from edgellm.kernels import nvrtc
from edgellm.progress import Progress

LAYERS_FILE: Final = "layers.json"
_SCRATCH: Final = "graphs"


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """A build that can start: made by `plan_engines`."""

    api: Api
    source: Checkpoint
    recipe: Recipe
    form: TensorRtRecipe
    context: int
    timing_cache: Path

    @property
    def ahead_of_time(self) -> bool:
        """Whether the GPU that runs the engines need not be here."""
        return self.recipe.target == "tensorrt-rtx"

    def write(self, folder: Path, progress: Progress | None) -> Device:
        """Write the engines (``verify.engine``, …) and `LAYERS_FILE` into `folder`, and in the split form the kernels;
        what they depend on.

        Raises:
            ConfigError: a matrix or a node of the graph is not taken; it is named.
            ExecutionError: TensorRT failed.
        """
        scratch = folder / _SCRATCH
        scratch.mkdir()
        graphs = self._graphs(scratch, progress)
        capability = self.form.compute_capability if self.ahead_of_time else None
        compiler = Compiler(self.api, capability=capability, timing_cache=self.timing_cache, progress=progress)
        layers: dict[str, LayerList] = {}
        for graph in graphs:
            layers[graph.stem] = compiler.compile(graph, folder / f"{graph.stem}.engine", self._profiles(graph))
        kernels = {} if self.form.form == "whole" else self._write_kernels(folder, scratch, compiler, layers, progress)
        shutil.rmtree(scratch)
        text = json.dumps({name: found.to_dict() for name, found in layers.items()}, separators=(",", ":"))
        (folder / LAYERS_FILE).write_text(text + "\n", encoding="utf-8")
        return stamp(self.api, self.form, self.ahead_of_time, kernels)

    def _write_kernels(
        self, folder: Path, scratch: Path, compiler: Compiler, layers: dict[str, LayerList], progress: Progress | None
    ) -> dict[str, str]:
        """Write what runs between the segments; the hashes of the kernels, and the layers of an engine with plugins."""
        spec, splits, arch = self.source.spec, self.form.splits, gpu_arch(self.form.compute_capability)
        layout = device_layout(self.recipe, spec, self.context)
        roomy = replace(layout, pages=2 * layout.pages)  # so that blocks are published and restored too
        positions = layout.max_pages * layout.page
        save_kernel_weights(self.source, folder / KERNEL_WEIGHTS, positions, self.source.kv_scales)
        if self.form.form == "split":
            return write_kernels(folder, spec, roomy, splits, arch, None, progress)
        step, made = planned_step(folder, spec, layout, splits), folder / f"{PLUGIN_ENGINE}.engine"
        layers[PLUGIN_ENGINE], hashes = compile_plugins(compiler, self.api, step, scratch, made, arch)
        return hashes | write_kernels(folder, spec, roomy, splits, arch, PLUGIN_ENGINE, progress)

    def _graphs(self, scratch: Path, progress: Progress | None) -> tuple[Path, ...]:
        form = TensorRtForm(self.form.activations)
        if self.form.form != "whole":
            return build_tensorrt_segments(self.source, scratch, form, progress=progress)
        *graphs, _ = build_tensorrt_graphs(
            self.source,
            scratch,
            form,
            prefill_chunk=self.recipe.prefill_chunk,
            positions=self.context,
            progress=progress,
        )
        return tuple(graphs)

    def precision(self) -> dict[str, str]:
        """Module → stored form, for the manifest."""
        half = self.form.activations
        return {
            "matrices": f"as in the checkpoint: NVFP4 (W4A4) and FP8 (W8A8) natively, others {half}",
            "embedding": half,
            "activations, residual stream": half,
            "norms, convolution, RoPE, logits": "f32",
            "recurrent state": "f32",
            "KV rows": "E4M3 with the checkpoint's scales, or 1" if self.recipe.kv == "fp8" else half,
        }

    def _profiles(self, graph: Path) -> list[Sizes]:
        if self.form.form != "whole":
            return segment_profiles(graph, self.form.profiles, self.recipe.prefill_chunk)
        steps = [step_sizes(tokens, point(tokens), self.context) for tokens in self.form.profiles]
        chunk = self.recipe.prefill_chunk
        prefill = step_sizes(chunk, (1, 1, chunk), self.context)
        match graph.stem:
            case "prefill":
                return [prefill]
            case "mtp":
                return [*steps, prefill]  # its cache is filled with the prompt too
        return steps


def plan_engines(source: Checkpoint, recipe: Recipe, context: int, out: Path) -> EnginePlan:
    """Look at everything that a build needs.

    Args:
        context: longest context in tokens.
        out: the bundle; kernel timings are kept beside it.

    Raises:
        ConfigError: something is missing, too old, too small or of another GPU; it is named.
    """
    form = recipe.tensorrt
    if form is None:
        raise TypeError(f"a recipe for {recipe.target} has no engines")
    if not form.side_by_side_fusion:
        disable_side_by_side_fusion()
    api = load_api(recipe.target)
    check_release(api, recipe.target, form.compute_capability)
    if recipe.target == "tensorrt":
        gpu = find_gpu()
        if gpu is None:
            raise ConfigError("target tensorrt builds on the device, and this machine shows no NVIDIA GPU")
        if gpu.capability != form.compute_capability:
            raise ConfigError(
                f"tensorrt.compute_capability is {form.compute_capability}, the GPU here, {gpu.name}, "
                f"is {gpu.capability}"
            )
    plan = EnginePlan(api, source, recipe, form, context, out.with_name(f"{out.name}.timing"))
    if plan.ahead_of_time:
        check_capability(api, form.compute_capability)
    if form.form != "whole":
        nvrtc.check_installed()
    needs = plan_build(source, context, ahead_of_time=plan.ahead_of_time, form=form.form)
    check_room(needs, existing(out.parent))
    return plan


def read_layers(path: Path) -> dict[str, LayerList]:
    """Engine → its layers, from a bundle's `LAYERS_FILE`."""
    return {name: LayerList.from_dict(values) for name, values in json.loads(path.read_text(encoding="utf-8")).items()}


def layer_report(path: Path) -> list[str]:
    """A line for each engine and profile of a bundle's `LAYERS_FILE`: how many layers, and what they are."""
    lines = []
    for name, found in read_layers(path).items():
        if found.unread:
            lines.append(f"{name}: {found.unread}")
        for profile in sorted({layer.subgraph for layer in found.layers}):
            counts = found.of_profile(profile).counts()
            told = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items())
            lines.append(f"{name}, profile {profile}: {told}")
    return lines
