"""Compilation of a segment: its ONNX model, its executable, and the file that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import popart
import tensorflow as tf
from onnx import numpy_helper
from popart.lowering import (
    LoweringOptions,
    has_collectives,
    join_replicas,
    lower_chip_nodes,
)
from popart.lowering import drop_marks as drop_collective_marks
from popart.session import reports
from popart.session.compilation import compile_replicas, make_compiler_options
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram
from poprt import CompilerOptions
from poprt.compile import Executable, compile_unreported
from simipu import CompileError, OutOfMemoryError
from simipu.chip.placement import place_nodes

from popef._tools.arrays import Array
from tensorflow_ipu import names, placement
from tensorflow_ipu.config import flags
from tensorflow_ipu.config.devices import Device
from tensorflow_ipu.conversion.canonical import canonical_bytes
from tensorflow_ipu.conversion.onnx_models import to_onnx
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.execution import counters
from tensorflow_ipu.files.computation_description import (
    NEW_VALUE,
    describe_computation,
    find_state_values,
)
from tensorflow_ipu.files.executable_cache import (
    ExecutableCache,
    hash_computation,
    serialize_module,
)
from tensorflow_ipu.files.popef_files import StoredExecutable
from tensorflow_ipu.plan import Segment, Source, VariableKey

if TYPE_CHECKING:
    from tensorflow_ipu.execution import PlannedComputation

_STREAMED: Final = (tf.float32, tf.float16)
"""Types of weights that a load program can stream; variables of others are inputs of each run."""


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """A segment as an ONNX model. Inputs and outputs have the names of the real stack."""

    model: onnx.ModelProto
    inputs: Sequence[str]
    """Names of the segment's inputs, in order; weights too."""
    outputs: Sequence[str]
    weights: Mapping[str, int]
    """Places among the inputs of variables that are only read, by name: they become weights."""
    segment: Segment

    @classmethod
    def make(cls, planned: PlannedComputation, segment: Segment) -> SegmentModel:
        """Convert a segment.

        Args:
            planned: The computation that it belongs to.
            segment: The segment.

        Returns:
            The model, without the weights' values.

        Raises:
            IpuError: If an operator cannot be converted, or a shape is not known.
        """
        inputs = [_find_name(planned, source) for source, _ in segment.inputs]
        outputs = [
            _find_name(planned, source) + (NEW_VALUE if isinstance(source, VariableKey) else "")
            for source, _ in segment.outputs
        ]
        for name, (_, tensor) in zip(inputs, segment.inputs, strict=True):
            if not tensor.shape.is_fully_defined():
                raise IpuError(f"input {name!r} has no static shape: {tensor.shape}")
        model = to_onnx(
            segment.graph,
            dict(zip(inputs, (tensor for _, tensor in segment.inputs), strict=True)),
            dict(zip(outputs, (tensor for _, tensor in segment.outputs), strict=True)),
        )
        written = planned.written_variables()
        weights = {
            source.name: place
            for place, (source, _) in enumerate(segment.inputs)
            if isinstance(source, VariableKey)
            and source.name not in written
            and source.dtype in _STREAMED
            and (source.shape.rank or 0) > 0
        }
        return cls(model, inputs, outputs, weights, segment)


def _find_name(planned: PlannedComputation, source: Source) -> str:
    if isinstance(source, VariableKey):
        return source.name
    return names.slot_name(planned.names, source)


def compile_segment(
    planned: PlannedComputation, model: SegmentModel, weights: Mapping[str, Array]
) -> DeviceProgram | JointProgram:
    """Compile a segment, or take it from the cache.

    Args:
        planned: The computation that it belongs to.
        model: The segment's model.
        weights: Values of the weights.

    Returns:
        The program, not loaded yet.

    Raises:
        IpuError: If it cannot be compiled.
    """
    device = planned.find_device()
    try:
        return _compile(planned, model, weights, device)
    except (CompileError, OutOfMemoryError, popart.popart_exception) as error:
        raise IpuError(f"cannot be compiled for the IPU: {error}") from error


def _compile(
    planned: PlannedComputation,
    model: SegmentModel,
    weights: Mapping[str, Array],
    device: Device,
) -> DeviceProgram | JointProgram:
    frozen = planned.computation.freeze_variables
    settings: Any = device.session_options()
    settings.constantWeights = frozen
    num_ipus = planned.count_ipus()
    if num_ipus > 1:
        settings.virtualGraphMode = popart.VirtualGraphMode.Manual
    options = make_compiler_options(settings, device.info, 1, num_ipus)
    lower_chip_nodes(model.model, LoweringOptions(frozen, replicas=device.replicas))
    name = hash_computation(
        canonical_bytes(model.model),
        weights if frozen else None,
        (repr(device.options), device.ordinal, device.replicas, num_ipus),
    )
    make_weights(model.model, weights, frozen)
    joined = None
    if has_collectives(model.model.graph):
        if device.replicas > 1:
            joined = join_replicas(model.model, device.replicas, {})
        drop_collective_marks(model.model.graph)
    if num_ipus > 1:
        place_nodes(model.model.graph, placement.find_places(model.segment.graph))

    def compile_it() -> StoredExecutable:
        executable = compile_unreported(model.model, list(model.outputs), options)
        counters.compiled += 1
        _write_reports(model, executable, options, name, settings.engineOptions)
        description = describe_computation(planned, executable, name, device)
        state = find_state_values(planned, description)
        return StoredExecutable(executable, description, state_values=state)

    stored = _get_or_compile(name, compile_it, device)
    if not device.is_model and device.options.serialization_folder:
        serialize_module(stored, device.options.serialization_folder)
    for weight, value in weights.items():
        stored.executable.weights.setdefault(weight, value)
    if joined is None:
        return DeviceProgram(stored.executable, {})
    joint = compile_replicas(joined.model, [o.name for o in joined.model.graph.output], options)
    return JointProgram(joint, joined, {}, {})


def _get_or_compile(name: str, compile_it: Any, device: Device) -> StoredExecutable:
    """Return an executable from the cache; the IPU Model writes none."""
    folder = flags.read_flags().cache_path
    if not folder or device.is_model:
        return compile_it()  # type: ignore[no-any-return]
    before = counters.compiled
    stored = ExecutableCache(folder).get_or_compile(name, compile_it)
    counters.loaded += counters.compiled == before
    return stored


def _write_reports(
    model: SegmentModel,
    executable: Executable,
    options: CompilerOptions,
    name: str,
    engine: Mapping[str, str],
) -> None:
    """Write the profile, if the engine's options ask for one."""
    shown = replace(options, show_compilation_progress_bar=False)
    try:
        reports.write_profile(engine, executable, shown, name, model.model)
    except popart.popart_runtime_error as error:
        raise IpuError(str(error)) from error


def make_weights(model: onnx.ModelProto, values: Mapping[str, Array], frozen: bool) -> None:
    """Make weights of inputs of a model.

    Args:
        model: The model, which is changed.
        values: Values of the weights by the names of the inputs.
        frozen: Whether the weights are constants; else all other numbers in float become
            constants of the graph, so that only the weights are streamed.
    """
    graph = model.graph
    kept = [value for value in graph.input if value.name not in values]
    del graph.input[:]
    graph.input.extend(kept)
    if not frozen:
        for tensor in list(graph.initializer):
            node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            graph.node.insert(0, node)
        del graph.initializer[:]
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
