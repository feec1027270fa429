"""Programs of segments: compiled by poprt and loaded on the simulated IPU, or run by the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
import tensorflow as tf
from onnx import numpy_helper
from tensorflow.python.eager import context

from popef._tools.arrays import Array
from tensorflow_ipu import names
from tensorflow_ipu.conversion.onnx_models import to_onnx
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.execution import counters
from tensorflow_ipu.plan import Segment, VariableKey

if TYPE_CHECKING:
    from tensorflow_ipu.execution import PlannedComputation, VariableValues

_STREAMED = (tf.float32, tf.float16)
"""Types of weights that a load program can stream; variables of others are inputs of each run."""


class Program(Protocol):
    """What computes a segment."""

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Return the values of the segment's outputs."""


def prepare(planned: PlannedComputation, segment: Segment, variables: VariableValues) -> Program:
    """Return the program of a segment.

    Args:
        planned: The computation that it belongs to.
        segment: The segment.
        variables: Values of the variables, which are the program's first weights.

    Returns:
        The program, ready to run.

    Raises:
        IpuError: If it cannot be compiled.
    """
    if segment.on_host or not segment.outputs:
        return HostProgram(segment)
    return DeviceSegment.make(planned, segment, variables)


class HostProgram:
    """Whole numbers that count loops, computed by TensorFlow on the host."""

    def __init__(self, segment: Segment) -> None:
        definition = segment.graph.as_graph_def()
        sources = [tensor.name for _, tensor in segment.inputs]
        targets = [tensor.name for _, tensor in segment.outputs]

        def compute(*tensors: tf.Tensor) -> Any:
            mapping = dict(zip(sources, tensors, strict=True))
            return tf.import_graph_def(definition, mapping, targets, name="")

        signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for _, tensor in segment.inputs]
        with context.eager_mode(), tf.device("/device:CPU:0"):
            self._function = tf.compat.v1.wrap_function(compute, signature)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Return the values of the segment's outputs."""
        with context.eager_mode(), tf.device("/device:CPU:0"):
            return [tensor.numpy() for tensor in self._function(*(tf.constant(v) for v in inputs))]


@dataclass(slots=True)
class DeviceSegment:
    """A segment that is compiled, and loaded on the simulated IPU."""

    program: Any
    """popart's DeviceProgram."""
    order: list[int]
    """For each input stream of the program the place among the segment's inputs."""
    dtypes: list[Any]
    results: list[int]
    """For each output of the segment the place among the program's output streams."""
    result_types: list[Any]
    weights: dict[str, int]
    """Place among the segment's inputs of each streamed weight, by its name."""
    held: dict[str, Array] = field(default_factory=dict)
    """Arrays of the weights that the device has. They are kept, so that TensorFlow has to give a
    changed variable another array."""

    @classmethod
    def make(
        cls, planned: PlannedComputation, segment: Segment, variables: VariableValues
    ) -> DeviceSegment:
        """Compile and load a segment."""
        from popart.lowering import lower_chip_nodes

        from tensorflow_ipu.compilation import compile_segment

        written = planned.written_variables()
        inputs = [_source_name(planned, source) for source, _ in segment.inputs]
        outputs = [_target_name(planned, target) for target, _ in segment.outputs]
        for name, (_, tensor) in zip(inputs, segment.inputs, strict=True):
            if not tensor.shape.is_fully_defined():
                raise IpuError(f"input {name!r} has no static shape: {tensor.shape}")
        model = to_onnx(
            segment.graph,
            dict(zip(inputs, (tensor for _, tensor in segment.inputs), strict=True)),
            _unique(outputs, [tensor for _, tensor in segment.outputs]),
        )
        weights = {
            source.name: place
            for place, (source, _) in enumerate(segment.inputs)
            if isinstance(source, VariableKey)
            and source.name not in written
            and source.dtype in _STREAMED
            and (source.shape.rank or 0) > 0
        }
        lower_chip_nodes(model)
        held = {name: variables.values[name] for name in weights}
        make_weights(model, held, planned.computation.freeze_variables)
        program = compile_segment(planned, model, outputs)
        streams = {stream.tensor: n for n, stream in enumerate(program.outputs)}
        places = {name: place for place, name in enumerate(inputs)}
        return cls(
            program,
            [places[stream.tensor] for stream in program.inputs],
            [stream.dtype for stream in program.inputs],
            [streams[name] for name in outputs],
            [tensor.dtype.as_numpy_dtype for _, tensor in segment.outputs],
            weights if not planned.computation.freeze_variables else {},
            held,
        )

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Return the values of the segment's outputs."""
        changed = {
            name: inputs[place]
            for name, place in self.weights.items()
            if not _is_same(inputs[place], self.held[name])
        }
        if changed:
            self.held.update(changed)
            self.program.set_weights(changed)
        values = [
            np.asarray(inputs[place], dtype)
            for place, dtype in zip(self.order, self.dtypes, strict=True)
        ]
        results = self.program.run(values)
        counters.runs += 1
        return [
            np.asarray(results[place], dtype)
            for place, dtype in zip(self.results, self.result_types, strict=True)
        ]


def _is_same(value: Array, other: Array) -> bool:
    return value is other or (value.ctypes.data == other.ctypes.data and value.shape == other.shape)


def _source_name(planned: PlannedComputation, source: Any) -> str:
    if isinstance(source, VariableKey):
        return source.name
    return names.slot_name(planned.names, source)


def _target_name(planned: PlannedComputation, target: Any) -> str:
    if isinstance(target, VariableKey):
        return f"{target.name}/new_value"
    return names.slot_name(planned.names, target)


def _unique(output_names: Sequence[str], tensors: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    return dict(zip(output_names, tensors, strict=True))


def make_weights(model: onnx.ModelProto, values: dict[str, Array], frozen: bool) -> None:
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
