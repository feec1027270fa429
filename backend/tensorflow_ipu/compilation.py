"""Compilation of a segment: its ONNX model, its executable, and the file that holds it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import popart
import tensorflow as tf
from onnx import numpy_helper
from popart.lowering import (
    Joined,
    LoweringOptions,
    drop_marks,
    has_collectives,
    join_replicas,
    lower_chip_nodes,
)
from popart.session.compilation import compile_replicas, make_compiler_options
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram
from poprt import CompilerOptions
from poprt.compile import MAIN_PROGRAM, compile_unreported
from simipu import CompileError, OutOfMemoryError
from simipu.chip.placement import place_nodes

from popef._tools.arrays import Array
from tensorflow_ipu import events, markers, names, placement
from tensorflow_ipu.config import flags
from tensorflow_ipu.config.devices import Device
from tensorflow_ipu.conversion.digests import digest_graph
from tensorflow_ipu.conversion.handlers import write_replica_numbers
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
from tensorflow_ipu.reports import write_report

if TYPE_CHECKING:
    from tensorflow_ipu.execution import PlannedComputation

_STREAMED: Final = (tf.float32, tf.float16)
"""Types of weights that a load program can stream; variables of others are inputs of each run."""
_COLLECTIVE: Final = "Replicated"
"""What the names of PopART's collectives begin with."""


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """A segment as a model. Its inputs and outputs have the names of the real stack."""

    segment: Segment
    inputs: Mapping[str, tf.Tensor]
    """Inputs by name, in order; weights too."""
    outputs: Mapping[str, tf.Tensor]
    weights: Mapping[str, int]
    """Places among the inputs of variables that are only read, by name: they become weights."""

    @classmethod
    def make(cls, planned: PlannedComputation, segment: Segment) -> SegmentModel:
        """Name the inputs and outputs of a segment.

        Args:
            planned: The computation that it belongs to.
            segment: The segment.

        Returns:
            The model.

        Raises:
            IpuError: If a shape is not known.
        """
        inputs = {_find_name(planned, source): tensor for source, tensor in segment.inputs}
        outputs = {
            _find_name(planned, source)
            + (NEW_VALUE if isinstance(source, VariableKey) else ""): tensor
            for source, tensor in segment.outputs
        }
        for name, tensor in inputs.items():
            if not tensor.shape.is_fully_defined():
                raise IpuError(f"input {name!r} has no static shape: {tensor.shape}")
        written = planned.written_variables()
        frozen = planned.computation.freeze_variables
        weights = {
            source.name: place
            for place, (source, _) in enumerate(segment.inputs)
            if isinstance(source, VariableKey)
            and source.name not in written
            and (frozen or (source.dtype in _STREAMED and (source.shape.rank or 0) > 0))
        }
        return cls(segment, inputs, outputs, weights)

    def convert(self, options: LoweringOptions) -> onnx.ModelProto:
        """Return the segment in ONNX, without nodes of PopART's domain and the weights' values.

        Args:
            options: Options of the lowering of PopART's nodes.

        Returns:
            The model, whose weights are inputs.

        Raises:
            IpuError: If an operator cannot be converted.
        """
        model = to_onnx(self.segment.graph, self.inputs, self.outputs)
        write_replica_numbers(model, options.replicas)
        lower_chip_nodes(model, options)
        return model

    def digest(self) -> bytes:
        """Return a digest that is equal for equal segments."""
        names = {tensor.name: name for name, tensor in self.inputs.items()}
        return digest_graph(self.segment.graph, names, self.outputs)


def _find_name(planned: PlannedComputation, source: Source) -> str:
    if isinstance(source, VariableKey):
        return source.name
    return names.slot_name(planned.names, source)


def compile_segment(
    planned: PlannedComputation, model: SegmentModel, weights: Mapping[str, Array]
) -> tuple[DeviceProgram | JointProgram, int]:
    """Compile a segment, or take it from the cache.

    Args:
        planned: The computation that it belongs to.
        model: The segment's model.
        weights: Values of the weights.

    Returns:
        The program, not loaded yet, and the modelled cycles of a run on the chip.

    Raises:
        IpuError: If it cannot be compiled.
    """
    stored, joined, options = _compile_stored(planned, model, weights)
    for weight, value in weights.items():
        stored.executable.weights.setdefault(weight, value)
    cycles = stored.executable.executable.program(MAIN_PROGRAM).cycles
    if joined is None:
        return DeviceProgram(stored.executable, {}), cycles
    try:
        joint = compile_replicas(joined.model, [o.name for o in joined.model.graph.output], options)
    except popart.popart_exception as error:
        raise IpuError(f"cannot be compiled for the IPU: {error}") from error
    return JointProgram(joint, joined, {}, {}), cycles


def compile_stored(
    planned: PlannedComputation, model: SegmentModel, weights: Mapping[str, Array]
) -> StoredExecutable:
    """Compile a segment for a file, or take it from the cache.

    Args:
        planned: The computation that it belongs to.
        model: The segment's model.
        weights: Values of the weights, which matter only if they are frozen.

    Returns:
        The executable with its description.

    Raises:
        IpuError: If it cannot be compiled, or if its replicas depend on each other.
    """
    stored, joined, _ = _compile_stored(planned, model, weights)
    if joined is not None:
        raise IpuError(
            "the replicas depend on each other, by a collective: a PopEF file here holds the "
            "program of one replica"
        )
    return stored


def _compile_stored(
    planned: PlannedComputation, model: SegmentModel, weights: Mapping[str, Array]
) -> tuple[StoredExecutable, Joined | None, CompilerOptions]:
    """Return the executable of a replica, the model of replicas that depend on each other if they
    do, and the options."""
    try:
        return _compile(planned, model, weights, planned.find_device())
    except (CompileError, OutOfMemoryError, popart.popart_exception) as error:
        raise IpuError(f"cannot be compiled for the IPU: {error}") from error


def _compile(
    planned: PlannedComputation,
    model: SegmentModel,
    weights: Mapping[str, Array],
    device: Device,
) -> tuple[StoredExecutable, Joined | None, CompilerOptions]:
    frozen = planned.computation.freeze_variables
    settings: Any = device.session_options()
    settings.constantWeights = frozen
    num_ipus = planned.count_ipus()
    if num_ipus > 1:
        settings.virtualGraphMode = popart.VirtualGraphMode.Manual
    options = make_compiler_options(settings, device.info, 1, num_ipus)
    name = hash_computation(
        model.digest(),
        weights if frozen else None,
        (tf.__version__, repr(device.options), device.ordinal, device.replicas, num_ipus),
    )
    lowering = LoweringOptions(frozen, replicas=device.replicas)
    joined: list[Joined] = []

    def compile_it() -> StoredExecutable:
        start = time.perf_counter()
        converted = model.convert(lowering)
        make_weights(converted, weights, frozen)
        if has_collectives(converted.graph):
            if device.replicas > 1:
                joined.append(join_replicas(converted, device.replicas, {}))
            drop_marks(converted.graph)
        if num_ipus > 1:
            place_nodes(converted.graph, placement.find_places(model.segment.graph))
        executable = compile_unreported(converted, list(model.outputs), options)
        counters.compiled += 1
        seconds = time.perf_counter() - start
        events.record_compilation(events.MODULE, device.ordinal, seconds)
        write_report(converted, executable, options, name, settings.engineOptions)
        description = describe_computation(planned, executable, name, device)
        state = find_state_values(planned, description)
        return StoredExecutable(executable, description, state_values=state)

    # A file holds the program of one replica, so replicas that depend on each other need the model.
    is_joint = device.replicas > 1 and calls_collectives(model.segment.graph)
    stored = compile_it() if is_joint else _get_or_compile(name, compile_it, device)
    if not device.is_model and device.options.serialization_folder:
        serialize_module(stored, device.options.serialization_folder)
    return stored, joined[0] if joined else None, options


def calls_collectives(graph: tf.Graph) -> bool:
    """Return whether an operator of a graph joins replicas."""
    return any(
        markers.kind_of(operation) == markers.OPERATOR
        and str(markers.facts_of(operation)["name"]).startswith(_COLLECTIVE)
        for operation in graph.get_operations()
    )


def _get_or_compile(name: str, compile_it: Any, device: Device) -> StoredExecutable:
    """Return an executable from the cache; the IPU Model writes none."""
    folder = flags.read_flags().cache_path
    if not folder or device.is_model:
        return compile_it()  # type: ignore[no-any-return]
    before = counters.compiled
    stored = ExecutableCache(folder).get_or_compile(name, compile_it)
    counters.loaded += counters.compiled == before
    return stored


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
