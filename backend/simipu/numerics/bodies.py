"""Replaces operators that ONNX Runtime lacks, those of the chip's own compiler, and nodes that ONNX
Runtime computes wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx
from onnx import helper, numpy_helper
from onnxgraph import (
    Tape,
    attribute,
    expand,
    find_makers,
    has_data,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    replace_nodes,
)

from popef._tools.arrays import Array
from simipu.numerics.kernels import Dims
from simipu.operators import operator_of
from simipu.operators.entry import Body, GraphContext


def find_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a graph and its bodies by name, except those whose data are outside
    the graph, or were left out of an inferred one."""
    constants: dict[str, onnx.TensorProto] = {}
    for part in iter_graphs(graph):
        constants.update((tensor.name, tensor) for tensor in part.initializer)
        for node in part.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                constants[node.output[0]] = value
    return {name: tensor for name, tensor in constants.items() if has_data(tensor)}


def find_stored(
    model: onnx.ModelProto, weights: Mapping[str, Array]
) -> Callable[[str], Array | None]:
    """Return a function that returns the values of an initializer of any size, or None for another
    tensor; `weights` has those without data."""
    tensors = find_constants(model.graph)

    def stored(name: str) -> Array | None:
        if name in weights:
            return weights[name]
        return numpy_helper.to_array(tensors[name]) if name in tensors else None

    return stored


def declare_scans(graph: onnx.GraphProto, dims: Mapping[str, Dims]) -> None:
    """Declare, in place, the shapes of the results of Scans' bodies: ONNX Runtime requires them,
    and cannot infer them after a kernel."""
    for node in iter_nodes(graph):
        for body in iter_bodies(node) if node.op_type == "Scan" else ():
            for value in body.output:
                tensor, name = value.type.tensor_type, value.name
                if name in dims and not tensor.HasField("shape"):
                    info = helper.make_tensor_value_info(name, tensor.elem_type, dims[name])
                    value.CopyFrom(info)


def put_bodies(graph: onnx.GraphProto, around: GraphContext) -> None:
    """Replace the nodes of a graph and of its nodes' bodies that ONNX Runtime cannot compute
    correctly, in place.

    It must be the last step, because the nodes that round are also nodes of standard operators.
    """
    for node in graph.node:
        for body in iter_bodies(node):
            put_bodies(body, around)
    inside = replace(around, makers=find_makers(graph))
    if any(find_body(node, inside) for node in graph.node):
        nodes = [new_node for node in graph.node for new_node in _replace_by_body(node, inside)]
        replace_nodes(graph, nodes)


def needs_bodies(graph: onnx.GraphProto, around: GraphContext) -> bool:
    """Return whether there is a node to replace."""
    return any(
        find_body(node, replace(around, makers=makers)) is not None
        for part in iter_graphs(graph)
        for makers in [find_makers(part)]
        for node in part.node
    )


def find_body(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return the body that replaces a node, or None if ONNX Runtime computes the node."""
    operator = operator_of(node)
    if operator.guard is not None:
        return operator.guard(node, around)
    return operator.body


def _replace_by_body(node: onnx.NodeProto, around: GraphContext) -> list[onnx.NodeProto]:
    """Return the nodes that compute a node, or the node itself if ONNX Runtime computes it."""
    body = find_body(node, around)
    if body is None:
        return [node]
    return expand(node, body, Tape(f"{node.output[0]}/body", around.opset), around)
