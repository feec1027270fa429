"""Walks a placed graph from its inputs on and follows the rows; what comes out computes any number of
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import (
    collect_values,
    drop_weights,
    find_inputs,
    find_opset,
    iter_bodies,
    iter_reads,
    replace_nodes,
    used_names,
)
from onnxgraph.edit import forget_values

from simipu.operators import operator_of
from simipu.operators.rules.places import Array, Node, NotIndependent, Rows, Shape
from simipu.streams import Direction, Stream


def take_rows(
    model: onnx.ModelProto,
    streams: tuple[Stream, ...],
    batch_axis: int = 0,
    weights: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[onnx.ModelProto, tuple[Stream, ...], str]:
    """The graph of any number of rows, its streams with their batch axes, and ""; or what was given, and why
    not.

    `batch_axis` is the axis of the batch in the inputs; where they do not share it, as the states of a
    recurrent network that are inputs do not, it is looked for. In outputs it lies where the rows end up.
    `weights` has the values of initializers that the graph holds without.
    """
    inputs = [stream for stream in streams if stream.direction is Direction.HOST_TO_DEVICE]
    given = {stream.tensor: stream.shape for stream in inputs}
    reason = f"its inputs do not share a batch dimension (axis {batch_axis})" if given else "it has no inputs"
    for batch, axes in _find_batches(given, batch_axis):
        try:
            if batch == 1:
                # Every run has one row: where its outputs hold it is all there is to know.
                graph, outputs = (
                    model,
                    {s.tensor: _only_row(s, batch_axis) for s in streams if s not in inputs},
                )
            else:
                graph, outputs = _prove(model, batch, axes, weights)
        except NotIndependent as found:
            reason = str(found)
            continue
        axes = axes | outputs
        return graph, tuple(replace(stream, batch_axis=axes[stream.tensor]) for stream in streams), ""
    return model, streams, reason


def _find_batches(shapes: Mapping[str, Shape], batch_axis: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Sizes that can be a batch, each with its axis in every input. Where an input has another size along
    `batch_axis`, its batch may lie along the only axis that is as large as that of another input."""
    sizes = {shape[batch_axis] if len(shape) > batch_axis else 0: None for shape in shapes.values()}
    if len(sizes) == 1 and 0 not in sizes:
        yield next(iter(sizes)), dict.fromkeys(shapes, batch_axis)
        return
    for size in sorted(sizes, reverse=True):
        axes = {}
        for name, shape in shapes.items():
            found = [axis for axis, each in enumerate(shape) if each == size]
            if shape[batch_axis : batch_axis + 1] == (size,):
                axes[name] = batch_axis
            elif len(found) == 1:
                axes[name] = found[0]
        if size > 1 and len(axes) == len(shapes):
            yield size, axes


def make_row_independent(model: onnx.ModelProto, batch: int, batch_axis: int = 0) -> onnx.ModelProto:
    """`model`, compiled for `batch` rows, as a graph of as many rows as it is given (a symbolic dimension).

    The result computes for n rows exactly what the compiled batch computes for those n rows and any others.
    Raises NotIndependent, with the node and the reason, when that cannot be proven.
    """
    return _prove(model, batch, {value.name: batch_axis for value in find_inputs(model.graph)}, {})[0]


def _only_row(stream: Stream, batch_axis: int) -> int:
    found = [axis for axis in (batch_axis, 0) if stream.shape[axis : axis + 1] == (1,)]
    if not found:
        raise NotIndependent(
            f"output {stream.tensor!r} of shape {list(stream.shape)} does not have the inputs' batch of 1"
        )
    return found[0]


def trace_rows(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the graph of any number of rows, and the axis of the rows in each tensor that carries them.

    `inputs` has the axis of each input, `weights` the values of initializers that the model holds without.
    Raises NotIndependent like `make_row_independent`.
    """
    rewritten, tracer = _trace(model, batch, inputs, weights)
    return rewritten, {name: rows.axis for name, rows in tracer.rows.items() if rows.size(1) == 1}


def _prove(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The rewritten model, and the axis of the rows of each output; `inputs` has that of each input."""
    rewritten, tracer = _trace(model, batch, inputs, weights)
    return rewritten, {value.name: tracer.output_axis(value.name) for value in model.graph.output}


def _trace(
    model: onnx.ModelProto, batch: int, inputs: Mapping[str, int], weights: Mapping[str, Array]
) -> tuple[onnx.ModelProto, _Tracer]:
    """The rewritten model, and what is known of its tensors."""
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
    """The constants of a graph by name; a value is read when a rule asks for it, for weights may be large."""

    def __init__(self, tensors: Iterable[onnx.TensorProto], weights: Mapping[str, Array]) -> None:
        self._weights = dict(weights)
        self._tensors = {t.name: t for t in tensors if t.data_location != onnx.TensorProto.EXTERNAL}

    def add(self, node: onnx.NodeProto) -> None:
        """Know what a Constant makes."""
        value = helper.get_attribute_value(node.attribute[0])
        is_tensor = node.attribute[0].name == "value"
        self._weights[node.output[0]] = numpy_helper.to_array(value) if is_tensor else np.asarray(value)

    def __getitem__(self, name: str) -> Array:
        return self._weights[name] if name in self._weights else numpy_helper.to_array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        yield from {**self._weights, **self._tensors}

    def __len__(self) -> int:
        return len({**self._weights, **self._tensors})

    def __contains__(self, name: object) -> bool:
        return name in self._weights or name in self._tensors


@dataclass(slots=True)
class _Tracer:
    """What is known of the tensors so far."""

    batch: int
    shapes: Mapping[str, Shape]
    constants: _Constants
    rows: dict[str, Rows]
    opset: int
    added: list[onnx.TensorProto] = field(default_factory=list)

    def trace(self, proto: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Follow the rows through a node; the nodes that take its place."""
        if proto.op_type == "Constant":
            self.constants.add(proto)
        carried = [name for name in iter_reads(proto) if name in self.rows]
        if not carried:
            return [proto]
        try:
            node = self._look(proto)
            self._place(node)
        except NotIndependent as reason:
            raise NotIndependent(f"node {proto.name!r} ({proto.op_type}): {reason}") from None
        for index, value in node.rewrites.items():
            name = f"{proto.output[0]}/rows/constant_{index}"
            self.added.append(numpy_helper.from_array(value, name))
            proto.input[index] = name
        for index, name in node.computed.items():
            proto.input[index] = name
        return [*node.chain.nodes, proto]

    def output_axis(self, name: str) -> int:
        """Where an output of the graph has its rows."""
        rows = self.rows.get(name)
        if rows is None or rows.size(1) != 1:
            raise NotIndependent(f"output {name!r} does not have one row for each input row along one axis")
        return rows.axis

    def _look(self, proto: onnx.NodeProto) -> Node:
        unknown = next((name for name in proto.output if name and name not in self.shapes), None)
        if unknown is not None:
            raise NotIndependent(f"its result {unknown!r} has no known shape")
        return Node(
            proto,
            self.batch,
            [self.rows.get(name) for name in proto.input],
            [self.shapes.get(name) for name in proto.input],
            [self.shapes[name] for name in proto.output if name],
            self.constants,
            self.opset,
        )

    def _place(self, node: Node) -> None:
        proto = node.proto
        operator = operator_of(proto)
        if operator.rows is None or any(True for _ in iter_bodies(proto)):
            raise NotIndependent(operator.whole_batch)
        names = [name for name in proto.output if name]
        for name, place in zip(names, operator.rows(node), strict=False):
            if self.shapes[name][place.axis] != place.size(self.batch):
                raise NotIndependent(
                    f"its result has shape {self.shapes[name]}, without {place.size(self.batch)} along axis "
                    f"{place.axis}"
                )
            self.rows[name] = place
