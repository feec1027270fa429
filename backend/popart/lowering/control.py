"""Rules of operators with graphs inside: If, Loop, Scan and Call.

Bodies see the tensors around them by name. A body's input hides an outer tensor of its name, so
inside it stands for the input; the name that is written is always a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, rule, type_name
from popart.lowering.translation import translate_nodes

_BOOL, _INT64 = TensorProto.BOOL, TensorProto.INT64


def read_body(node: Operation, name: str) -> onnx.GraphProto:
    for entry in node.node.attribute:
        if entry.name == name:
            return entry.g
    raise popart_exception(f"{node.describe()}: the attribute '{name}' is missing")


def translate_body(node: Operation, proto: onnx.GraphProto, graph: Graph) -> list[Tensor]:
    """Translate a body into `graph`, and return its outputs."""
    translate_nodes(proto, graph, node.opset, node.settings)
    outputs = []
    for value in proto.output:
        tensor = graph.find(value.name)
        if tensor is None:
            raise popart_exception(
                f"{node.describe()}: its body does not make the output {value.name!r}"
            )
        outputs.append(tensor)
    return outputs


def _value(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor.element_type, tensor.shape)


def make_body(
    graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str
) -> onnx.GraphProto:
    """Return the body that a graph is; outputs get names of their own."""
    results = [graph.copy_of(result, name) for result in outputs]
    return helper.make_graph(
        graph.nodes,
        name,
        [_value(source, source) for source in inputs],
        [_value(result, result) for result in results],
    )


def new_input(graph: Graph, name: str, element_type: int, shape: Sequence[int] = ()) -> Tensor:
    """Return a new input of a body."""
    return Tensor(graph, graph.new_name(name), element_type, shape)


def _scalar(node: Operation, graph: Graph, tensor: Tensor, to: int) -> Tensor:
    """Return a tensor of one element as a scalar of a type."""
    if tensor.size != 1:
        raise popart_exception(
            f"{node.describe()}: expected one element, found {format_shape(tensor.shape)}"
        )
    value = graph.value_of(tensor) if tensor.is_constant else None
    if value is not None:
        return graph.constant(value.reshape(()).astype(helper.tensor_dtype_to_np_dtype(to)))
    tensor = graph.cast(tensor, to)
    return graph.reshape(tensor, ())


@rule("If")
def _if(op: Graph, node: Operation) -> Results:
    """Both branches must make the same types and shapes."""
    condition = _scalar(node, op, node.x, _BOOL)
    graphs, branches = {}, list[list[Tensor]]()
    for name in ("then_branch", "else_branch"):
        inner = Graph(op)
        outputs = translate_body(node, read_body(node, name), inner)
        graphs[name] = make_body(inner, [], outputs, name)
        branches.append(outputs)
    for then, other in zip(*branches, strict=True):
        if (then.element_type, then.shape) != (other.element_type, other.shape):
            raise popart_exception(
                f"{node.describe()}: the then branch makes {type_name(then)} "
                f"{format_shape(then.shape)}, the else branch {type_name(other)} "
                f"{format_shape(other.shape)}"
            )
    return op.add_all(len(branches[0]), "If", condition, results=branches[0], **graphs)


@rule("Loop")
def _loop(op: Graph, node: Operation) -> Results:
    """The trip count must be known if the body stacks results."""
    proto, inner = read_body(node, "body"), Graph(op)
    limit, condition = node.optional(0), node.optional(1)
    carried = [node.input(place) for place in range(2, len(node.inputs))]
    _check_count(node, proto, len(carried))
    number = new_input(inner, "iteration", _INT64)
    goes_on = new_input(inner, "condition", _BOOL)
    states = [
        new_input(inner, value.name, tensor.element_type, tensor.shape)
        for value, tensor in zip(proto.input[2:], carried, strict=True)
    ]
    seen = number
    if limit is not None:
        seen = inner.reshape(inner.cast(number, limit.element_type), limit.shape)
    inner.tensors[proto.input[0].name] = seen
    inner.tensors[proto.input[1].name] = inner.reshape(
        goes_on, condition.shape if condition else ()
    )
    for value, state in zip(proto.input[2:], states, strict=True):
        inner.tensors[value.name] = state
    outputs = translate_body(node, proto, inner)
    outputs[0] = _scalar(node, inner, outputs[0], _BOOL)
    body = make_body(inner, [number, goes_on, *states], outputs, "body")
    inputs = [
        None if limit is None else _scalar(node, op, limit, _INT64),
        None if condition is None else _scalar(node, op, condition, _BOOL),
        *carried,
    ]
    count, stacked = len(carried), outputs[1 + len(carried) :]
    results = [*outputs[1 : 1 + count]]
    trips = None
    if stacked:
        count_value = None if limit is None else node.value(0)
        if count_value is None:
            raise popart_exception(
                f"{node.describe()}: the trip count must be a constant, since the body stacks "
                "results"
            )
        trips = int(np.ravel(count_value)[0])
        results += [tensor.with_shape((trips, *tensor.shape)) for tensor in stacked]
    tensors = op.add_all(len(results), "Loop", *inputs, results=results, body=body)
    carried_out = [
        op.reshape(tensor, before.shape)
        for tensor, before in zip(tensors[:count], carried, strict=True)
    ]
    return [*carried_out, *tensors[count:]]


def _check_count(node: Operation, proto: onnx.GraphProto, carried: int) -> None:
    if len(proto.input) != carried + 2 or len(proto.output) < carried + 1:
        raise popart_exception(
            f"{node.describe()}: the body has {len(proto.input)} inputs and "
            f"{len(proto.output)} outputs; expected {carried + 2} inputs and at least "
            f"{carried + 1} outputs for {carried} carried tensors"
        )


@rule("Scan")
def _scan(op: Graph, node: Operation) -> Results:
    """A scanned input keeps its axis, with one element a step, and results are joined along
    theirs; the standard drops that axis, and adds one."""
    proto, inner = read_body(node, "body"), Graph(op)
    scanned = int(node.get("num_scan_inputs"))
    tensors = node.operands
    states, sequences = tensors[: len(tensors) - scanned], tensors[len(tensors) - scanned :]
    axes = [
        axis % tensor.rank
        for axis, tensor in zip(_ints(node, "scan_input_axes", scanned), sequences, strict=True)
    ]
    trips = _count_steps(sequences, axes)
    inputs = [
        new_input(inner, value.name, tensor.element_type, tensor.shape)
        for value, tensor in zip(proto.input, states, strict=False)
    ]
    seen = list(inputs)
    for value, tensor, axis in zip(proto.input[len(states) :], sequences, axes, strict=True):
        shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
        inputs.append(new_input(inner, value.name, tensor.element_type, shape))
        full_shape = (*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :])
        seen.append(inner.reshape(inputs[-1], full_shape))
    for value, tensor in zip(proto.input, seen, strict=True):
        inner.tensors[value.name] = tensor
    outputs = translate_body(node, proto, inner)
    body = make_body(inner, inputs, outputs, "body")
    joined = outputs[len(states) :]
    out_axes = [
        axis % tensor.rank
        for axis, tensor in zip(_ints(node, "scan_output_axes", len(joined)), joined, strict=True)
    ]
    stacked = [
        tensor.with_shape((*tensor.shape[:axis], trips, *tensor.shape[axis:]))
        for tensor, axis in zip(joined, out_axes, strict=True)
    ]
    results = op.add_all(
        len(outputs),
        "Scan",
        *states,
        *sequences,
        results=[*outputs[: len(states)], *stacked],
        body=body,
        num_scan_inputs=scanned,
        scan_input_axes=axes,
        scan_input_directions=_ints(node, "scan_input_directions", scanned),
        scan_output_axes=out_axes or None,
        scan_output_directions=_ints(node, "scan_output_directions", len(joined)) or None,
    )
    for place, (tensor, axis) in enumerate(zip(joined, out_axes, strict=True), len(states)):
        joined_shape = list(tensor.shape)
        joined_shape[axis] *= trips
        results[place] = op.reshape(results[place], joined_shape)
    return results


def _ints(node: Operation, name: str, count: int) -> list[int]:
    """Return an attribute with a number for each of `count` tensors; those left out are 0."""
    numbers = list(node.get(name) or ())
    return [*numbers, *[0] * (count - len(numbers))]


def _count_steps(sequences: Sequence[Tensor], axes: Sequence[int]) -> int:
    lengths = [sequence.shape[axis] for sequence, axis in zip(sequences, axes, strict=True)]
    other = next((length for length in lengths if length != lengths[0]), None)
    if other is not None:
        raise popart_exception(
            "[ScanOp] Number of iterations required by the inputs do not match: "
            f"{lengths[0]} {other}"
        )
    return lengths[0]


@chip_rule("Call")
def _call(op: Graph, node: Operation) -> Results:
    """The graph that is called takes the place of the node."""
    proto = read_body(node, "callee")
    if not proto.name:
        raise popart_exception(
            "CallOp subgraph must be named, so that it can be identified for re-use."
        )
    inner = Graph(op, nodes=op.nodes)
    inner.placement = op.placement
    for place, value in enumerate(proto.input):
        inner.tensors[value.name] = node.input(place)
    for tensor in proto.initializer:
        inner.tensors[tensor.name] = inner.constant(onnx.numpy_helper.to_array(tensor))
    return translate_body(node, proto, inner)
