"""Rules of operators with graphs inside: If, Loop, Scan and Call.

Bodies see the tensors around them by name. A body's input hides an outer tensor of its name, so
inside it stands for the input; the name that is written is always a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, rule, type_name
from popart.lowering.translation import translate_nodes

_BOOL, _INT64 = TensorProto.BOOL, TensorProto.INT64


def read_body(operation: Operation, name: str) -> onnx.GraphProto:
    for entry in operation.node.attribute:
        if entry.name == name:
            return entry.g
    raise popart_exception(f"{operation.describe()}: the attribute '{name}' is missing")


def translate_body(operation: Operation, proto: onnx.GraphProto, graph: Graph) -> list[Tensor]:
    """Translate a body into `graph`, and return its outputs."""
    translate_nodes(proto, graph, operation.opset, operation.settings)
    found = []
    for value in proto.output:
        tensor = graph.find(value.name)
        if tensor is None:
            raise popart_exception(
                f"{operation.describe()}: its body does not make the output {value.name!r}"
            )
        found.append(tensor)
    return found


def _value(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor.type, tensor.shape)


def make_body(
    graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str
) -> onnx.GraphProto:
    """Return the body that a graph is; outputs get names of their own."""
    made = [graph.add("Identity", [result], prefix=name)[0] for result in outputs]
    return helper.make_graph(
        graph.nodes,
        name,
        [_value(source.name, source) for source in inputs],
        [_value(each.name, each) for each in made],
    )


def new_input(graph: Graph, name: str, like: Tensor) -> Tensor:
    """Return a new input of a body."""
    return replace(like, name=graph.new_name(name), is_constant=False)


def _scalar(operation: Operation, graph: Graph, tensor: Tensor, to: int) -> Tensor:
    """Return a tensor of one element as a scalar of a type."""
    if tensor.size != 1:
        raise popart_exception(
            f"{operation.describe()}: expected one element, found {format_shape(tensor.shape)}"
        )
    value = graph.value_of(tensor) if tensor.is_constant else None
    if value is not None:
        return graph.constant(value.reshape(()).astype(helper.tensor_dtype_to_np_dtype(to)))
    if tensor.type != to:
        tensor = graph.add("Cast", [tensor], to=to)[0]
    return _shaped(graph, tensor, ())


def _shaped(graph: Graph, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if tensor.shape == tuple(shape):
        return tensor
    return graph.add("Reshape", [tensor, graph.constant(np.asarray(shape, np.int64))])[0]


@rule("If")
def _if(operation: Operation) -> Sequence[Tensor]:
    """Both branches must make the same types and shapes."""
    condition = _scalar(operation, operation.graph, operation.x, _BOOL)
    graphs, made = {}, list[list[Tensor]]()
    for name in ("then_branch", "else_branch"):
        inner = Graph(operation.graph)
        outputs = translate_body(operation, read_body(operation, name), inner)
        graphs[name] = make_body(inner, [], outputs, name)
        made.append(outputs)
    for then, other in zip(*made, strict=True):
        if (then.type, then.shape) != (other.type, other.shape):
            raise popart_exception(
                f"{operation.describe()}: the then branch makes {type_name(then)} "
                f"{format_shape(then.shape)}, the else branch {type_name(other)} "
                f"{format_shape(other.shape)}"
            )
    return operation.add_all("If", condition, outputs=len(made[0]), results=made[0], **graphs)


@rule("Loop")
def _loop(operation: Operation) -> Sequence[Tensor]:
    """The trip count must be known if the body stacks results."""
    proto, inner = read_body(operation, "body"), Graph(operation.graph)
    limit, condition = operation.optional(0), operation.optional(1)
    carried = [operation.input(place) for place in range(2, len(operation.inputs))]
    _check_count(operation, proto, len(carried))
    number = Tensor(inner.new_name("iteration"), _INT64, ())
    goes_on = Tensor(inner.new_name("condition"), _BOOL, ())
    states = [
        new_input(inner, value.name, each)
        for value, each in zip(proto.input[2:], carried, strict=True)
    ]
    seen = number
    if limit is not None:
        if limit.type != _INT64:
            seen = inner.add("Cast", [number], to=limit.type)[0]
        seen = _shaped(inner, seen, limit.shape)
    inner.tensors[proto.input[0].name] = seen
    inner.tensors[proto.input[1].name] = _shaped(
        inner, goes_on, condition.shape if condition else ()
    )
    for value, state in zip(proto.input[2:], states, strict=True):
        inner.tensors[value.name] = state
    made = translate_body(operation, proto, inner)
    made[0] = _scalar(operation, inner, made[0], _BOOL)
    body = make_body(inner, [number, goes_on, *states], made, "body")
    given = [
        None if limit is None else _scalar(operation, operation.graph, limit, _INT64),
        None if condition is None else _scalar(operation, operation.graph, condition, _BOOL),
        *carried,
    ]
    count, stacked = len(carried), made[1 + len(carried) :]
    results = [*made[1 : 1 + count]]
    trips = None
    if stacked:
        known = None if limit is None else operation.value(0)
        if known is None:
            raise popart_exception(
                f"{operation.describe()}: the trip count must be a constant, since the body stacks "
                "results"
            )
        trips = int(np.ravel(known)[0])
        results += [replace(each, shape=(trips, *each.shape)) for each in stacked]
    found = operation.add_all("Loop", *given, outputs=len(results), results=results, body=body)
    kept = [
        operation.reshape(each, before.shape)
        for each, before in zip(found[:count], carried, strict=True)
    ]
    return [*kept, *found[count:]]


def _check_count(operation: Operation, proto: onnx.GraphProto, carried: int) -> None:
    if len(proto.input) != carried + 2 or len(proto.output) < carried + 1:
        raise popart_exception(
            f"{operation.describe()}: the body has {len(proto.input)} inputs and "
            f"{len(proto.output)} outputs; expected {carried + 2} inputs and at least "
            f"{carried + 1} outputs for {carried} carried tensors"
        )


@rule("Scan")
def _scan(operation: Operation) -> Sequence[Tensor]:
    """A scanned input keeps its axis, with one element a step, and results are joined along
    theirs; the standard drops that axis, and adds one."""
    proto, inner = read_body(operation, "body"), Graph(operation.graph)
    scanned = int(operation.attribute("num_scan_inputs"))
    tensors = [operation.input(place) for place in range(len(operation.inputs))]
    states, sequences = tensors[: len(tensors) - scanned], tensors[len(tensors) - scanned :]
    axes = [
        axis % each.rank
        for axis, each in zip(_ints(operation, "scan_input_axes", scanned), sequences, strict=True)
    ]
    trips = _count_steps(sequences, axes)
    inputs = [
        new_input(inner, value.name, each) for value, each in zip(proto.input, states, strict=False)
    ]
    seen = list(inputs)
    for value, each, axis in zip(proto.input[len(states) :], sequences, axes, strict=True):
        shape = (*each.shape[:axis], *each.shape[axis + 1 :])
        inputs.append(new_input(inner, value.name, replace(each, shape=shape)))
        whole = (*each.shape[:axis], 1, *each.shape[axis + 1 :])
        seen.append(_shaped(inner, inputs[-1], whole))
    for value, each in zip(proto.input, seen, strict=True):
        inner.tensors[value.name] = each
    made = translate_body(operation, proto, inner)
    body = make_body(inner, inputs, made, "body")
    joined = made[len(states) :]
    out_axes = [
        axis % each.rank
        for axis, each in zip(
            _ints(operation, "scan_output_axes", len(joined)), joined, strict=True
        )
    ]
    stacked = [
        replace(each, shape=(*each.shape[:axis], trips, *each.shape[axis:]))
        for each, axis in zip(joined, out_axes, strict=True)
    ]
    found = operation.add_all(
        "Scan",
        *states,
        *sequences,
        outputs=len(made),
        results=[*made[: len(states)], *stacked],
        body=body,
        num_scan_inputs=scanned,
        scan_input_axes=axes,
        scan_input_directions=_ints(operation, "scan_input_directions", scanned),
        scan_output_axes=out_axes or None,
        scan_output_directions=_ints(operation, "scan_output_directions", len(joined)) or None,
    )
    for place, (each, axis) in enumerate(zip(joined, out_axes, strict=True), len(states)):
        joined_shape = list(each.shape)
        joined_shape[axis] *= trips
        found[place] = operation.reshape(found[place], joined_shape)
    return found


def _ints(operation: Operation, name: str, count: int) -> list[int]:
    """Return an attribute with a number for each of `count` tensors; those left out are 0."""
    found = list(operation.attribute(name) or ())
    return [*found, *[0] * (count - len(found))]


def _count_steps(sequences: Sequence[Tensor], axes: Sequence[int]) -> int:
    lengths = [each.shape[axis] for each, axis in zip(sequences, axes, strict=True)]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise popart_exception(
            "[ScanOp] Number of iterations required by the inputs do not match: "
            f"{lengths[0]} {other}"
        )
    return lengths[0]


@chip_rule("Call")
def _call(operation: Operation) -> Sequence[Tensor]:
    """The graph that is called takes the place of the node."""
    proto = read_body(operation, "callee")
    if not proto.name:
        raise popart_exception(
            "CallOp subgraph must be named, so that it can be identified for re-use."
        )
    inner = Graph(operation.graph, nodes=operation.graph.nodes)
    inner.placement = operation.graph.placement
    for place, value in enumerate(proto.input):
        inner.tensors[value.name] = operation.input(place)
    for tensor in proto.initializer:
        inner.tensors[tensor.name] = inner.constant(onnx.numpy_helper.to_array(tensor))
    return translate_body(operation, proto, inner)
