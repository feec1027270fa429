"""Traversal of a placed graph from its inputs on that follows the rows and rewrites the graph to
compute any number of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import (
    collect_values,
    drop_weights,
    find_inputs,
    find_opset,
    forget_values,
    iter_bodies,
    iter_reads,
    replace_nodes,
    used_names,
)

from popef._tools.arrays import Array
from simipu.operators import Operator, operator_of
from simipu.operators.rules.places import Node, NotIndependent, Rows, Shape
from simipu.streams import Direction, Stream

_DEPENDENCE = "simipu.row_dependence"
"""Metadata key of the reason why a model's rows depend on each other, for a model whose graph does
not show it."""
_MAX_REASON_CHARACTERS = 500
"""Maximum number of characters that are read of a reason: a file's author writes it."""


def take_rows(
    model: onnx.ModelProto,
    streams: tuple[Stream, ...],
    batch_axis: int = 0,
    weights: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[onnx.ModelProto, tuple[Stream, ...], str]:
    """Return the graph for any number of rows, its streams with their batch axes, and "". If the
    rows are not independent, return the arguments unchanged and the reason.

    `batch_axis` is the axis of the batch in the inputs. If they do not share it, such as when
    states of a recurrent network are inputs, the function searches for it. In outputs it is the
    axis of the resulting rows. `weights` has the values of initializers that the graph holds
    without data.
    """
    if noted := find_noted_dependence(model):
        return model, streams, noted[:_MAX_REASON_CHARACTERS]
    inputs = [stream for stream in streams if stream.direction is Direction.HOST_TO_DEVICE]
    input_shapes = {stream.tensor: stream.shape for stream in inputs}
    reason = "it has no inputs"
    if input_shapes:
        reason = f"its inputs do not share a batch dimension (axis {batch_axis})"
    for batch, axes in _find_batches(input_shapes, batch_axis):
        try:
            if batch == 1:
                # Every run has one row: only its axis in the outputs has to be found.
                results = [stream for stream in streams if stream not in inputs]
                graph, outputs = model, _find_only_rows(model, results, batch_axis, axes, weights)
            else:
                graph, outputs = _prove(model, batch, axes, weights)
        except NotIndependent as found:
            reason = str(found)
            continue
        axes = axes | outputs
        moved = (replace(stream, batch_axis=axes[stream.tensor]) for stream in streams)
        return graph, tuple(moved), ""
    return model, streams, reason


def note_dependence(model: onnx.ModelProto, reason: str) -> None:
    """Record in a model that its rows depend on each other, and the reason; no proof is then
    attempted."""
    entries = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {**entries, _DEPENDENCE: reason})


def find_noted_dependence(model: onnx.ModelProto) -> str:
    """Return the reason that `note_dependence` recorded; empty without one."""
    recorded = (entry.value for entry in model.metadata_props if entry.key == _DEPENDENCE)
    return next(recorded, "")


def _find_batches(
    shapes: Mapping[str, Shape], batch_axis: int
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield sizes that can be a batch, each with its axis in every input. If an input has another
    size along `batch_axis`, its batch may be the only axis that is as large as another input's
    batch."""
    # States of a recurrent network have [layers, batch, width] beside an input of [batch, length,
    # width]: 8 rows are axis 0 of the input, and the only axis of 8 in a state. A size of one is
    # not searched for, because too many axes have it. The largest size is tried first.
    sizes = {shape[batch_axis] if len(shape) > batch_axis else 0: None for shape in shapes.values()}
    if len(sizes) == 1 and 0 not in sizes:
        yield next(iter(sizes)), dict.fromkeys(shapes, batch_axis)
        return
    for size in sorted(sizes, reverse=True):
        axes = {}
        for name, shape in shapes.items():
            batch_axes = [axis for axis, axis_size in enumerate(shape) if axis_size == size]
            if shape[batch_axis : batch_axis + 1] == (size,):
                axes[name] = batch_axis
            elif len(batch_axes) == 1:
                axes[name] = batch_axes[0]
        if size > 1 and len(axes) == len(shapes):
            yield size, axes


def make_row_independent(
    model: onnx.ModelProto, batch: int, batch_axis: int = 0
) -> onnx.ModelProto:
    """Return `model`, compiled for `batch` rows, as a graph for any number of rows (a symbolic
    dimension).

    The result computes for n rows exactly what the compiled batch computes for those n rows and any
    others. Raises NotIndependent, with the node and the reason, if that cannot be proven.
    """
    axes = {value.name: batch_axis for value in find_inputs(model.graph)}
    return _trace(model, batch, axes, {})[0]


def _find_only_rows(
    model: onnx.ModelProto,
    results: Iterable[Stream],
    batch_axis: int,
    inputs: Mapping[str, int],
    weights: Mapping[str, Array],
) -> dict[str, int]:
    """Return the axis of the only row of a batch of 1 in each output.

    That is `batch_axis`, or the first axis, or else the axis that the row rules give.
    """
    axes: dict[str, int] = {}
    followed: dict[str, int] | None = None
    for stream in results:
        fitting = (axis for axis in (batch_axis, 0) if stream.shape[axis : axis + 1] == (1,))
        axis = next(fitting, None)
        if axis is None:
            followed = _prove(model, 1, inputs, weights)[1] if followed is None else followed
            axis = followed[stream.tensor]
        axes[stream.tensor] = axis
    return axes


def trace_rows(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the graph for any number of rows, and the axis of the rows in each tensor that carries
    them.

    `inputs` has the axis of each input, `weights` the values of initializers that the model holds
    without data. Raises the errors of `make_row_independent`.
    """
    rewritten, tracer = _trace(model, batch, inputs, weights)
    return rewritten, {name: rows.axis for name, rows in tracer.rows.items() if rows.size(1) == 1}


def _prove(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the rewritten model, and the axis of the rows of each output; `inputs` has the axis of
    each input."""
    rewritten, tracer = _trace(model, batch, inputs, weights)
    return rewritten, {value.name: tracer.output_axis(value.name) for value in model.graph.output}


def _trace(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, _Tracer]:
    """Return the rewritten model, and the facts found about its tensors."""
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph = rewritten.graph
    tracer = _Tracer(
        batch,
        {name: value.shape for name, value in collect_values(model).items()},
        _Constants(graph.initializer, weights),
        {name: Rows(axis) for name, axis in inputs.items()},
        find_opset(model),
    )
    nodes = [traced for node in graph.node for traced in tracer.trace(node)]
    axes = {value.name: tracer.output_axis(value.name) for value in graph.output}
    replace_nodes(graph, nodes)
    graph.initializer.extend(tracer.added)
    drop_weights(graph, used_names(graph))
    for value in (*find_inputs(graph), *graph.output):
        value.type.tensor_type.shape.dim[(axes | dict(inputs))[value.name]].dim_param = "rows"
    forget_values(graph)
    return rewritten, tracer


class _Constants(Mapping[str, Array]):
    """Constants of a graph by name.

    Values are read or computed on first access, because weights may be large.
    """

    def __init__(self, tensors: Iterable[onnx.TensorProto], weights: Mapping[str, Array]) -> None:
        self._weights = dict(weights)
        self._tensors = {t.name: t for t in tensors if t.data_location != onnx.TensorProto.EXTERNAL}
        self._makers: dict[str, tuple[onnx.NodeProto, int]] = {}

    def add(self, node: onnx.NodeProto, opset: int) -> None:
        """Add the result of a node of constants: a Constant, or an operator such as Transpose that
        moves another constant."""
        if node.op_type == "Constant":
            value: Any = helper.get_attribute_value(node.attribute[0])
            is_tensor = node.attribute[0].name == "value"
            self._weights[node.output[0]] = (
                numpy_helper.to_array(value) if is_tensor else np.asarray(value)
            )
        elif (
            operator_of(node).keeps_elements
            and not node.domain
            and all(map(self.__contains__, node.input))
        ):
            self._makers[node.output[0]] = node, opset

    def __getitem__(self, name: str) -> Array:
        if name in self._makers:
            # Imported here: it takes 0.1 s and 10 MiB, and few constants are moved.
            from onnx.reference import ReferenceEvaluator

            node, opset = self._makers[name]
            graph = ReferenceEvaluator(node, opsets={"": opset})
            results = list(
                graph.run(None, {input_name: self[input_name] for input_name in node.input})
            )
            self._weights[name] = np.asarray(results[0])
            del self._makers[name]
        if name in self._weights:
            return self._weights[name]
        return numpy_helper.to_array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        yield from {**self._weights, **self._tensors, **self._makers}

    def __len__(self) -> int:
        return len({**self._weights, **self._tensors, **self._makers})

    def __contains__(self, name: object) -> bool:
        return name in self._weights or name in self._tensors or name in self._makers


@dataclass(slots=True)
class _Tracer:
    """Facts known so far about the tensors."""

    batch: int
    shapes: Mapping[str, Shape]
    constants: _Constants
    rows: dict[str, Rows]
    opset: int
    added: list[onnx.TensorProto] = field(default_factory=list)

    def trace(self, proto: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Follow the rows through a node, and return the nodes that replace it."""
        # A node that reads no rows computes the same for every number of rows: it stays.
        carried = [name for name in iter_reads(proto) if name in self.rows]
        if not carried:
            self.constants.add(proto, self.opset)
            return [proto]
        try:
            node = self._look(proto)
            self.rows |= place_rows(node)
        except NotIndependent as reason:
            raise NotIndependent(f"node {proto.name!r} ({proto.op_type}): {reason}") from None
        for index, value in node.rewrites.items():
            name = f"{proto.output[0]}/rows/constant_{index}"
            self.added.append(numpy_helper.from_array(value, name))
            proto.input[index] = name
        for index, name in node.computed.items():
            proto.input[index] = name
        return [*node.op.nodes, proto, *node.after.nodes]

    def output_axis(self, name: str) -> int:
        """Return the axis of the rows in an output of the graph. Raises NotIndependent if there is
        none."""
        rows = self.rows.get(name)
        if rows is None or rows.size(1) != 1:
            raise NotIndependent(
                f"output {name!r} does not have one row for each input row along one axis"
            )
        return rows.axis

    def _look(self, proto: onnx.NodeProto) -> Node:
        unknown = next((name for name in proto.output if name and name not in self.shapes), None)
        if unknown is not None:
            raise NotIndependent(f"its result {unknown!r} has no known shape")
        rows = [self.rows.get(name) for name in proto.input]
        shapes = [self.shapes.get(name) for name in proto.input]
        results = [self.shapes[name] for name in proto.output if name]
        return Node(proto, self.batch, rows, shapes, results, self.constants, self.opset)


def place_rows(node: Node) -> dict[str, Rows]:
    """Return the place of the rows in each result of a node.

    Args:
        node: The node, the rows of its inputs, and what is known of its tensors. The rule adds to
            it what has to change for another number of rows.

    Raises:
        NotIndependent: The operator has no rule, or the rule cannot show that rows are independent
            of each other.
    """
    proto, operator = node.proto, operator_of(node.proto)
    if operator.rows is None or any(True for _ in iter_bodies(proto)):
        raise NotIndependent(operator.whole_batch)
    # The proof by induction: if each input's element belongs to the row that its place says, the
    # operator's rule says to which row each element of the results belongs. A place that the
    # compiled shape contradicts proves nothing.
    names = [name for name in proto.output if name]
    places = operator.rows(node)
    _check_others(node, operator)
    row_places: dict[str, Rows] = {}
    for name, shape, place in zip(names, node.results, places, strict=False):
        size = place.size(node.batch)
        if shape[place.axis : place.axis + 1] != (size,):
            raise NotIndependent(
                f"its result has shape {shape}, without {size} along axis {place.axis}"
            )
        row_places[name] = place
    return row_places


def _check_others(node: Node, operator: Operator) -> None:
    """Raise NotIndependent for an input without rows that neither the rule nor the operator's entry
    accounts for: it could have a part for every row."""
    apart = {*operator.apart, *operator.shaped_by, *node.settled}
    for index in range(len(node.rows)):
        if index in apart or node.carries(index) or not node.has(index):
            continue
        # One element is the same for all rows. Anything larger may be the compiled batch.
        if math.prod(node.shape(index)) != 1:
            raise NotIndependent(f"its rule does not say how rows meet input {index}")
