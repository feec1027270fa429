"""Compilation of a lowered model: options of a session as options of poprt's compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from poprt import CompilerOptions
from poprt.compile import MAIN_PROGRAM, Executable, compile_unreported, dry_run_executable
from simipu import CompileError, Direction, OutOfMemoryError
from simipu.errors import LoadTimeoutError

from popart.builder.placement import VIRTUAL_GRAPH
from popart.devices import DeviceInfo
from popart.enums import DeviceType, SubgraphCopyingStrategy, VirtualGraphMode
from popart.errors import popart_exception
from popart.options.session_options import SessionOptions

_MODES = {VirtualGraphMode.Manual: "manual", VirtualGraphMode.Auto: "auto"}
_PARTIALS = "partialsType"
_WHOLE = 100
"""Total that the compiler's callback gets."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of a compilation: an executable, or the reason why the model does not fit."""

    options: CompilerOptions
    executable: Executable | None = None
    out_of_memory: OutOfMemoryError | None = None


def compile_model(
    model: onnx.ModelProto,
    anchors: Sequence[str],
    options: SessionOptions,
    device: DeviceInfo,
    batches_per_step: int,
    num_ipus: int,
) -> Compiled:
    """Compile a lowered model.

    A model that does not fit into the device's memory is no error yet: prepareDevice raises it.

    Args:
        model: Model whose outputs are the anchors.
        anchors: Ids of the anchors.
        options: Options of the session.
        device: Device that the model is compiled for.
        batches_per_step: Number of batches of a step.
        num_ipus: Number of IPUs of a replica.

    Returns:
        The executable, or the reason why the model does not fit.

    Raises:
        popart_exception: If the model cannot be compiled.
    """
    chosen = make_compiler_options(options, device, batches_per_step, num_ipus)
    try:
        return Compiled(chosen, compile_unreported(model, list(anchors), chosen))
    except OutOfMemoryError as error:
        return Compiled(chosen, out_of_memory=error)
    except CompileError as error:
        raise popart_exception(str(error)) from error


def confirm(model: onnx.ModelProto, anchors: Sequence[str], compiled: Compiled) -> Executable:
    """Return the executable after a dry run.

    The dry run loads it and confirms that its rows are independent of each other. Where they are
    not, the model is compiled again, so that the executable says so.

    Args:
        model: Model whose outputs are the anchors.
        anchors: Ids of the anchors.
        compiled: What compile_model has returned.

    Returns:
        The executable.

    Raises:
        popart_exception: If the executable does not run.
    """
    options = replace(compiled.options, skip_dry_run=False, enable_engine_caching=False)
    try:
        executable = compiled.executable
        if (
            executable is not None
            and _returns(executable, anchors)
            and dry_run_executable(executable) is None
        ):
            return executable
        return compile_unreported(model, list(anchors), options)
    except (CompileError, LoadTimeoutError) as error:
        raise popart_exception(str(error)) from error


def compile_replicas(
    model: onnx.ModelProto, outputs: Sequence[str], options: CompilerOptions
) -> Executable:
    """Compile the model of all replicas, which is computed only.

    Args:
        model: Model of all replicas.
        outputs: Names of its outputs.
        options: Options that the model of one replica was compiled with, whose time and memory are
            modelled.

    Returns:
        The executable.

    Raises:
        popart_exception: If the model cannot be compiled.
    """
    options = replace(
        options,
        num_ipus=1,
        batches_per_step=1,
        num_io_tiles=0,
        virtual_graph_mode="off",
        virtual_graph_split_ratios=[],
        enable_pipelining=False,
        allow_out_of_memory=True,
        compilation_progress_logger=None,
    )
    try:
        return compile_unreported(model, list(outputs), options)
    except CompileError as error:
        raise popart_exception(str(error)) from error


def _returns(executable: Executable, anchors: Sequence[str]) -> bool:
    """Return whether an executable returns the anchors only, and nothing that effects act on."""
    streams = executable.executable.program(MAIN_PROGRAM).streams
    returned = {stream.tensor for stream in streams if stream.direction is Direction.DEVICE_TO_HOST}
    return returned == set(anchors)


def make_compiler_options(
    options: SessionOptions, device: DeviceInfo, batches_per_step: int, num_ipus: int
) -> CompilerOptions:
    """Return the compiler's options that stand for a session's.

    Partial sums of products in half are float by default, as in PopART.

    Args:
        options: Options of the session.
        device: Device that the model is compiled for.
        batches_per_step: Number of batches of a step.
        num_ipus: Number of IPUs of a replica.

    Returns:
        The options.

    Raises:
        popart_exception: For a value that the compiler rejects.
    """
    mode = _MODES.get(options.virtualGraphMode, "off")
    try:
        return CompilerOptions(
            num_ipus=num_ipus,
            ipu_version=device.target.name,
            batches_per_step=batches_per_step,
            partials_type=find_partials_type(options),
            num_io_tiles=options.numIOTiles,
            enable_prefetch_datastreams=options.enablePrefetchDatastreams,
            stream_buffering_depth=options.defaultBufferingDepth,
            engine_options=_make_engine_options(options),
            show_compilation_progress_bar=False,
            compilation_progress_logger=_scale_progress(options),
            enable_outlining=options.enableOutlining,
            outline_threshold=options.outlineThreshold,
            group_host_sync=options.groupHostSync,
            rearrange_streams_on_host=options.rearrangeStreamsOnHost,
            rearrange_anchors_on_host=options.rearrangeAnchorsOnHost,
            enable_non_stable_softmax=options.enableNonStableSoftmax,
            enable_pipelining=options.enablePipelining and mode != "off",
            enable_engine_caching=options.enableEngineCaching and device.canCompileOffline,
            cache_path=options.cachePath,
            constant_weights=options.constantWeights,
            subgraph_copying_strategy=int(
                options.subgraphCopyingStrategy is SubgraphCopyingStrategy.JustInTime
            ),
            virtual_graph_mode=mode,
            virtual_graph_split_ratios=options.virtualGraphSplitRatios if mode == "auto" else [],
            time_limit_scheduler=options.timeLimitScheduler,
            swap_limit_scheduler=float(options.swapLimitScheduler),
            transitive_closure_optimization_threshold=options.transitiveClosureOptimizationThreshold,
            enable_efficient_overlap_io_topo_cons=options.enableEfficientOverlapIOTopoCons,
            allow_out_of_memory=_has_no_limit(options, device),
            # A session always runs whole batches. `export` confirms that rows are independent.
            skip_dry_run=True,
        )
    except CompileError as error:
        raise popart_exception(str(error)) from error


def find_num_ipus(options: SessionOptions, device: DeviceInfo, model: onnx.ModelProto) -> int:
    """Return the number of IPUs of one replica.

    Args:
        options: Options of the session.
        device: Device that the model is compiled for; a CPU stands for as many IPUs as the model
            uses.
        model: The model, as the builder made it.

    Returns:
        The number of IPUs.

    Raises:
        popart_exception: If the replicas do not divide the device's IPUs.
    """
    replicas = options.num_replicas
    if device.type is DeviceType.Cpu:
        return max(1, len(_find_used_ipus(options, model)))
    if device.numIpus % replicas:
        raise popart_exception(
            "For replicated graphs, the number of IPUs must be divisible by the replication factor."
        )
    return device.numIpus // replicas


def count_program_ipus(model: onnx.ModelProto, options: SessionOptions, num_ipus: int) -> int:
    """Return the number of IPUs that the program of a replica is compiled for.

    A model may name IPUs that the device lacks; prepareDevice rejects it then.
    """
    if options.virtualGraphMode not in _MODES:
        return 1
    return max([num_ipus, *(number + 1 for number in _find_used_ipus(options, model))])


def _find_used_ipus(options: SessionOptions, model: onnx.ModelProto) -> set[int]:
    """Return the numbers of the IPUs that operators are assigned to."""
    if options.virtualGraphMode is not VirtualGraphMode.Manual:
        return set()
    return {
        entry.i
        for node in model.graph.node
        for entry in node.attribute
        if entry.name == VIRTUAL_GRAPH
    }


def find_partials_type(options: SessionOptions) -> str:
    """Return "half" if products in half may have partial sums in half, else "float"."""
    partials = [
        options.partialsTypeMatMuls,
        options.matmulOptions.get(_PARTIALS, ""),
        options.convolutionOptions.get(_PARTIALS, ""),
    ]
    return "half" if "half" in [partials_type.lower() for partials_type in partials] else "float"


def _make_engine_options(options: SessionOptions) -> dict[str, str]:
    """Return the engine's options; floating-point checks are two of them."""
    chosen: dict[str, str] = dict(options.engineOptions)
    if options.enableFloatingPointChecks:
        chosen["debug.floatPointOpException"] = "true"
        chosen["debug.nanOverflowException"] = "true"
    return chosen


def _has_no_limit(options: SessionOptions, device: DeviceInfo) -> bool:
    """Return whether the memory is not limited: a CPU's is not, and users can say so."""
    allowed = str(options.engineOptions.get("debug.allowOutOfMemory", "false")).lower()
    return device.type is DeviceType.Cpu or allowed == "true"


def _scale_progress(options: SessionOptions) -> Callable[[int, int], Any] | None:
    """Return a callback of the compiler that calls the session's."""
    report, total = options.compilationProgressLogger, options.compilationProgressTotal
    if report is None:
        return None
    return lambda done, whole: report(done * total // (whole or _WHOLE), total)


def changed_texts(options: SessionOptions) -> Mapping[str, str]:
    """Return the options that are not at their default, as texts."""
    return {name: str(value) for name, value in sorted(options.changed().items())}
