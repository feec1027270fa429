"""Compiler: turns a converted ONNX model into an executable with its metadata and any streamed
weights.

The steps are in `poprt.compile.steps`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto
from onnxgraph import (
    find_inputs,
    has_data,
    holding_few_pages,
    iter_bodies,
    remember_inferences,
    used_names,
)
from simipu import CompileError, OutOfMemoryError, Target, read_static
from simipu.chip.placement import place_nodes, read_places
from simipu.numerics import QUARTERS

from popef._tools.arrays import Array
from poprt import pipeline
from poprt.compile.engine_options import (
    add_engine_variable,
    find_report_folder,
    write_profiles,
)
from poprt.compile.executable import MAIN_PROGRAM, EngineCache, Executable
from poprt.compile.model_fusion import check_fusion, is_fused, split_models
from poprt.compile.steps import STEPS, Compilation, Member, cost_options, take_steps
from poprt.frontend.frontends import Model, read_model
from poprt.options import CompilerOptions, take_io_tiles
from poprt.passes.precision.floats import is_half
from poprt.rewrite.explanations import OF_SHAPES
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights
from poprt.terminal import show_progress

if TYPE_CHECKING:  # few compilations write a profile
    from poprt.performance import Profile

_WHOLE = 100
"""Total that `compilation_progress_logger` receives, as in the real tool."""
_REPORT_WIDTH = 140
"""Number of columns of a summary report."""


class Compiler:
    """Compiler with the real tool's interface: methods are static and take options last.

    Example:
        >>> import onnx
        >>> import poprt
        >>> converted = poprt.Converter(batch_size=4).convert(onnx.load("model.onnx"))
        >>> executable = poprt.Compiler.compile(converted, ["y"])
        >>> executable.batch_size
        4
        >>> executable.export("executable.popef")
    """

    @staticmethod
    def compile(
        model: Model,
        outputs: Collection[str] | None = None,
        options: CompilerOptions | None = None,
        *,
        batch_axis: int = 0,
        float_model: onnx.ModelProto | None = None,
        calibration_data: Mapping[str, Array] | None = None,
    ) -> Executable:
        """Compile a converted model, whose shapes are all static.

        A model in half is run once and compared with `float_model`. A warning lists nodes whose
        results overflow and outputs that differ.

        A fused model (MFConverter) is compiled model by model, with all their outputs, into one
        executable. With `enable_engine_caching` a cached executable is read instead of compiling
        again.

        POPLAR_ENGINE_OPTIONS overrides `engine_options`. If `autoReport.all` or another such option
        is true, `autoReport.directory`/inference gets profile.json and profile.pop, as modelled.

        Args:
            model: the model, its ONNX file or bytes.
            outputs: names of the outputs to keep; None keeps all.
            options: the options; None means the defaults.
            batch_axis: axis of the batch in all inputs.
            float_model: the same model before its precision was converted; None means the model
                itself without any rounding.
            calibration_data: rows by input name for the comparison; None means random inputs.

        Returns:
            The executable.

        Raises:
            CompileError: naming the node, its operator and the reason.
        """
        options = options or CompilerOptions()
        folder = find_report_folder(options.engine_options)
        loaded = read_model(model)
        how = batch_axis, float_model, calibration_data
        compiled = compile_unreported(loaded, outputs, options, *how)
        if folder is not None:
            write_profiles(folder, profile_executable(compiled, options, "", loaded))
        return compiled

    @staticmethod
    def compile_and_export(
        model: Model,
        outputs: Collection[str] | None,
        filename: str | Path,
        options: CompilerOptions | None = None,
    ) -> None:
        """Compile the model and write a PopEF file, including streamed weights.

        Args:
            model: the model, its ONNX file or bytes.
            outputs: names of the outputs to keep; None keeps all.
            filename: path of the PopEF file to write.
            options: the options; None means the defaults.

        Raises:
            CompileError: as `compile` does.
        """
        Compiler.compile(model, outputs, options).export(filename)

    @staticmethod
    def compile_and_get_summary_report(
        model: Model,
        outputs: Collection[str] | None = None,
        options: CompilerOptions | None = None,
        reset_profile: bool = True,  # noqa: ARG004
    ) -> str:
        """Compile the model and report the time and memory of a batch, by operator, cause and node.

        All figures are modelled; the real tool returns Poplar's text. A fused model gets a report
        for each of its models.

        Args:
            model: the model, its ONNX file or bytes.
            outputs: names of the outputs to keep; None keeps all.
            options: the options; None means the defaults.
            reset_profile: no effect: each compilation is profiled anew.

        Returns:
            The text of the report.

        Raises:
            CompileError: as `compile` does.
        """
        options = options or CompilerOptions()
        loaded = read_model(model)
        compiled = Compiler.compile(loaded, outputs, options)
        branches = compiled.executable.program(MAIN_PROGRAM).branches
        stem = Path(model).stem if isinstance(model, (str, Path)) and not branches else ""
        return summarize_executable(compiled, options, stem, loaded)


def compile_unreported(
    model: Model,
    outputs: Collection[str] | None,
    options: CompilerOptions,
    batch_axis: int = 0,
    float_model: onnx.ModelProto | None = None,
    calibration_data: Mapping[str, Array] | None = None,
) -> Executable:
    """Compile a model as `Compiler.compile` does, without a profile: PopART and PopTorch write
    their own.

    Returns:
        The executable.

    Raises:
        CompileError: as `Compiler.compile` does.
    """
    options = add_engine_variable(options)
    options.check()
    loaded = read_model(model)
    options = take_io_tiles(loaded, options)
    missing = next(
        (tensor.name for tensor in loaded.graph.initializer if not has_data(tensor)), None
    )
    if missing is not None:
        raise CompileError(
            f"weight {missing!r} has no data; a model without its weights can be profiled, but "
            "not compiled"
        )
    check_weights(loaded.graph, options.target(), allow_out_of_memory=options.allow_out_of_memory)
    light, weights = extract_weights(loaded, MIN_CONSTANT_BYTES if options.constant_weights else 0)
    cache = EngineCache.of(options, light, weights, outputs, batch_axis)
    if cache is not None and (cached := cache.find()) is not None:
        cached.appendOpaqueBlobs(options.opaque_blobs)
        return cached
    members = _split_members(light, outputs, options, float_model)
    compilation = Compilation(
        options, outputs, batch_axis, calibration_data, weights, members, is_fused(loaded)
    )
    with holding_few_pages(), remember_inferences(), _progress(options, len(members)) as on_step:
        executable = take_steps(compilation, on_step)
    if cache is not None:
        cache.keep(executable)
    return executable


def _split_members(
    model: onnx.ModelProto,
    outputs: Collection[str] | None,
    options: CompilerOptions,
    float_model: onnx.ModelProto | None,
) -> list[Member]:
    """Return the models of a fused one, each with its own in float, or the model alone."""
    models = split_models(model)
    check_fusion(models, outputs, options)
    if not models:
        return [Member(model, float_model)]
    floats = [None] * len(models) if float_model is None else split_models(float_model)
    return list(map(Member, models, floats))


def profile_executable(
    compiled: Executable,
    options: CompilerOptions,
    name: str = "",
    placed: onnx.ModelProto | None = None,
) -> list[Profile]:
    """Return the profiles of an executable.

    Args:
        compiled: the executable.
        options: the options that it was compiled with.
        name: name of the model; "" means the graph's own.
        placed: the model that was compiled, if its nodes name their IPUs: an executable's graph
            does not say it.

    Returns:
        A profile for each model: a fused executable has several.
    """
    from poprt.performance import make_profile

    main = compiled.executable.program(MAIN_PROGRAM)
    places = {} if placed is None else read_places(placed.graph)
    profiles = []
    for program in main.branches or [main]:
        graph = read_static(program)
        place_nodes(graph.graph, places)
        precision = "fp16" if is_half(graph) else "fp32"
        title = name or graph.graph.name or "model"
        target = compiled.executable.target
        profiles.append(make_profile(title, precision, graph, target, cost_options(options)))
    return profiles


def summarize_executable(
    compiled: Executable,
    options: CompilerOptions,
    name: str = "",
    placed: onnx.ModelProto | None = None,
) -> str:
    """Return the summary report of an executable.

    Args:
        compiled: the executable.
        options: the options that it was compiled with.
        name: name of the model; "" means the graph's own.
        placed: the model that was compiled, if its nodes name their IPUs.

    Returns:
        The text of the report, one part for each model of a fused one.
    """
    # Imported here: most compilations print no report.
    from rich.console import Console

    from poprt.performance import print_profile

    report = io.StringIO()
    console = Console(file=report, width=_REPORT_WIDTH, markup=False, emoji=False, highlight=False)
    for profile in profile_executable(compiled, options, name, placed):
        print_profile(profile, console)
    return report.getvalue()


@contextmanager
def _progress(options: CompilerOptions, models: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that reports each step of compiling `models` models.

    Progress is shown on a terminal and passed to `compilation_progress_logger`.
    """
    steps = models * len(pipeline.PREPARATION) + len(STEPS)
    done = 0
    hidden = not options.show_compilation_progress_bar
    with show_progress("Graph compilation", steps, disabled=hidden) as show:

        def on_step(step: str) -> None:
            nonlocal done
            show(step)
            if options.compilation_progress_logger is not None:
                options.compilation_progress_logger(_WHOLE * done // steps, _WHOLE)
            done += 1

        yield on_step
        if options.compilation_progress_logger is not None:
            options.compilation_progress_logger(_WHOLE, _WHOLE)


_BYTES = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.DOUBLE: 8,
    **dict.fromkeys(QUARTERS, 1),
}
"""Bytes of an element, of the types of weights that are counted."""
_BYTES_BY_PRECISION = {"fp32": 8, "fp16": 2, "fp8": 1, "fp8_weight": 1}
"""Maximum number of bytes of an element of a weight after conversion, by precision."""


def check_weights(
    graph: onnx.GraphProto,
    target: Target,
    precision: str = "fp32",
    *,
    allow_out_of_memory: bool = False,
) -> None:
    """Check that the chip's memory can hold the weights.

    Only weights that meet data unknown at compile time are counted: folding may shrink everything
    else.

    Args:
        graph: the graph with the weights.
        target: the chip and the number of its copies.
        precision: the precision after conversion.
        allow_out_of_memory: whether to skip the check.

    Raises:
        OutOfMemoryError: for weights that are larger than all of the chip's memory.
    """
    sizes = {
        tensor.name: _count_bytes(tensor, precision)
        for tensor in graph.initializer
        if tensor.data_type in _BYTES
    }
    heavy = sorted(_find_held(graph) & sizes.keys(), key=lambda name: -sizes[name])
    num_bytes = sum(sizes[name] for name in heavy)
    there = target.num_ipus * target.tiles_per_ipu * target.bytes_per_tile
    if num_bytes <= there or allow_out_of_memory:
        return
    raise OutOfMemoryError(
        f"Out of memory on tile 0: {-(-num_bytes // target.num_tiles)} bytes of weights alone: "
        f"they take {num_bytes} bytes in {precision}, {target.num_ipus} IPU(s) of {target.label} "
        f"have {there} (largest weight: {heavy[0]!r}, {sizes[heavy[0]]} bytes); use a smaller "
        "precision, more IPUs (num_ipus) or allow_out_of_memory"
    )


def _find_held(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a node reads together with a tensor that depends on the inputs."""
    dynamic = {value.name for value in find_inputs(graph)}
    read_beside = set()
    for node in graph.node:
        inner = set().union(*(used_names(body) for body in iter_bodies(node)))
        read_names = inner.union(node.input)
        if node.op_type not in OF_SHAPES and dynamic & read_names:
            dynamic.update(node.output)
            read_beside |= read_names
    return read_beside


def _count_bytes(tensor: TensorProto, precision: str) -> int:
    return math.prod(tensor.dims) * min(_BYTES[tensor.data_type], _BYTES_BY_PRECISION[precision])
