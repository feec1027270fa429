"""Compilation of a captured model: PopTorch's options as popart's and poprt's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import onnx
import popart
from popart.session.compilation import Compiled, compile_replicas, confirm, make_compiler_options
from popart.session.ir_log import log_model
from poprt import CompilerOptions
from poprt.compile import MAIN_PROGRAM, Executable, compile_unreported
from simipu import CompileError, OutOfMemoryError
from simipu.chip.placement import Place, place_nodes

from poptorch._logging import logger
from poptorch.errors import Error
from poptorch.operators.placement import Placement
from poptorch.options.strategies import PipelinedExecution

if TYPE_CHECKING:
    from poptorch.capture.capture import Captured
    from poptorch.options.model_options import Options

_DEFAULT_PROPORTION = 0.6
"""Share of a tile's memory that products may use, unless the options say otherwise."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compiled model, with what compiling it again needs."""

    model: onnx.ModelProto
    outputs: Sequence[str]
    compiled: Compiled
    joint: Executable | None = None
    """The program of all replicas, if they depend on each other."""

    @property
    def executable(self) -> Executable:
        """The executable."""
        assert self.compiled.executable is not None
        return self.compiled.executable

    def confirm(self) -> Executable:
        """Return the executable after a dry run, which servers rely on.

        Returns:
            The executable; it says whether its rows depend on each other.

        Raises:
            Error: If it does not run.
        """
        try:
            return confirm(self.model, self.outputs, self.compiled)
        except popart.popart_exception as error:
            raise _compile_error(error) from error


def compile_model(
    captured: Captured,
    options: Options,
    device: popart.DeviceInfo,
    num_ipus: int,
    executable: Executable | None = None,
) -> Compilation:
    """Compile a captured model. Its weights are streamed, so that a model can replace them.

    Args:
        captured: The model.
        options: Options of the model.
        device: Device that it is compiled for.
        num_ipus: Number of IPUs of a replica.
        executable: Executable of a file, which is used instead of compiling.

    Returns:
        The compiled model.

    Raises:
        Error: If the model cannot be compiled, or does not fit into the device's memory.
    """
    model = captured.model
    _add_anchors(model.graph, options)
    _give_output(model.graph)
    outputs = [value.name for value in model.graph.output]
    log_model(model)
    settings = make_session_options(options, num_ipus)
    batches = options.device_iterations
    if num_ipus > 1:
        stages = _number_stages(captured.places, settings.enablePipelining)
        place_nodes(model.graph, stages)
        num_stages = 1 + max(stage or 0 for _, stage in stages.values())
        batches = -(-batches // num_stages) * num_stages  # the compiler wants whole pipelines
    try:
        chosen = make_compiler_options(settings, device, batches, num_ipus)
        # poprt has one proportion for the whole model, PopTorch one for each IPU.
        proportions = options.available_memory_proportion.values()
        chosen = replace(
            chosen, available_memory_proportion=min(proportions, default=_DEFAULT_PROPORTION)
        )
        if executable is None:
            shown = replace(chosen, show_compilation_progress_bar=options.shows_progress_bar)
            executable = _compile(captured, outputs, shown)
        else:
            _check_streams(executable, captured)
        joint = _compile_joint(captured, options, chosen)
    except (popart.popart_exception, CompileError, OutOfMemoryError) as error:
        raise _compile_error(error) from error
    return Compilation(model, outputs, Compiled(chosen, executable), joint)


def _compile_joint(
    captured: Captured, options: Options, chosen: CompilerOptions
) -> Executable | None:
    """Return the program of all replicas, or None if they do not depend on each other."""
    if captured.joined is None:
        return None
    if options.anchored_tensors:
        raise Error(
            "anchorTensor is not supported for replicas that depend on each other, by collectives "
            "or by replicaGrouping. Return the tensor from forward instead"
        )
    model = captured.joined.model
    return compile_replicas(model, [value.name for value in model.graph.output], chosen)


def _compile(captured: Captured, outputs: Sequence[str], options: CompilerOptions) -> Executable:
    """Compile a model, or take it from the cache unless the file there is another model's."""
    executable = compile_unreported(captured.model, outputs, options)
    if executable.from_file:
        try:
            _check_streams(executable, captured)
        except Error as error:
            logger.warning("%s is not used: %s", options.cache_path, error.message)
            options = replace(options, enable_engine_caching=False)
            executable = compile_unreported(captured.model, outputs, options)
        executable.opaque_blobs.clear()
    return executable


def _number_stages(places: Mapping[str, Placement], is_pipeline: bool) -> dict[str, Place]:
    """Return the IPU and the pipeline stage of each tensor's operator; places are in order.

    Each change of the IPU begins a stage.
    """
    stages: dict[str, Place] = {}
    stage, ipu = 0, None
    for name, place in places.items():
        stage += ipu not in (None, place.ipu)
        ipu = place.ipu
        stages[name] = (ipu, stage if is_pipeline else None)
    return stages


def _check_streams(executable: Executable, captured: Captured) -> None:
    """Check that a file's executable is that of a model.

    Raises:
        Error: If it is another one's.
    """
    graph = captured.model.graph
    names = {stream.tensor for stream in executable.executable.program(MAIN_PROGRAM).streams}
    outputs, inputs = ({value.name for value in side} for side in (graph.output, graph.input))
    if not outputs <= names or not names <= inputs | outputs:
        raise Error(
            "the file holds the executable of another model: its tensors are "
            f"{', '.join(sorted(names))}; expected {', '.join(sorted(inputs | outputs))}"
        )


def _add_anchors(graph: onnx.GraphProto, options: Options) -> None:
    """Make the tensors that Options.anchorTensor names outputs.

    Raises:
        Error: If no operator computes one of them.
    """
    values = {value.name: value for value in graph.value_info}
    outputs = {value.name for value in graph.output}
    for short_name, (name, *_) in options.anchored_tensors.items():
        if name not in values and name not in outputs:
            raise Error(
                f"anchorTensor({short_name!r}, {name!r}): no operator of the model computes a "
                "tensor of that name; getTensorNames() lists the names"
            )
        if name not in outputs:
            outputs.add(name)
            graph.output.append(values[name])


def _give_output(graph: onnx.GraphProto) -> None:
    """Give a graph that computes nothing an output, as a program needs one."""
    if not graph.output:
        name = "nothing"
        node = onnx.helper.make_node("Constant", [], [name], value_float=0.0)
        graph.node.append(node)
        graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))


def make_session_options(options: Options, num_ipus: int) -> popart.SessionOptions:
    """Return popart's options: those that were set by their name, and those that others imply.

    Args:
        options: Options of the model.
        num_ipus: Number of IPUs of a replica.

    Returns:
        popart's options.

    Raises:
        Error: For an unknown name, or a value of another type.
    """
    settings = popart.SessionOptions()
    for name, value in options._Popart.options.items():  # noqa: SLF001
        _set_option(settings, name, value)
    # The module's parameters may change between calls.
    settings.constantWeights = False
    settings.replicatedGraphCount = options.replication_factor
    settings.enableReplicatedGraphs = options.replication_factor > 1
    if num_ipus > 1:
        settings.virtualGraphMode = popart.VirtualGraphMode.Manual
        settings.enablePipelining = type(options.execution_strategy) is PipelinedExecution
    return settings


def _set_option(settings: Any, name: str, value: Any) -> None:
    """Set an option of popart's, or `group.option`; PopTorch names enumerators by their numbers."""
    *groups, last = name.split(".")
    for group in groups:
        settings = getattr(settings, group, settings)
    option = settings.OPTIONS.get(last)
    if option is None:
        return
    try:
        setattr(settings, last, _convert(option.kind.base, value))
    except (TypeError, ValueError, KeyError) as error:
        raise Error(f"_Popart.set({name!r}, {value!r}): {error}") from error


def _convert(kind: type, value: Any) -> Any:
    """Return a value with its numbers replaced by the enumerators that they stand for."""
    if isinstance(value, (list, set)):
        return type(value)(_convert(kind, item) for item in value)
    if issubclass(kind, Enum) and isinstance(value, (int, str)):
        return kind[value] if isinstance(value, str) else kind(value)
    if kind is int and isinstance(value, str):
        return int(value)
    return value


def _compile_error(error: Exception) -> Error:
    return Error(str(error), type="popart_exception")
