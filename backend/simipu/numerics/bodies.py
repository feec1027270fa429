"""Puts in what computes operators that ONNX Runtime lacks, those of the chip's own compiler, and nodes that
it computes wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import helper
from onnxgraph import Chain, attribute, find_makers, iter_bodies, iter_graphs, iter_nodes, replace_nodes

from simipu.numerics.fusing import Dims
from simipu.operators import operator_of
from simipu.operators.entry import Body, Surroundings


def find_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The constants of a graph and its bodies by name, but for those whose data lie elsewhere."""
    found: dict[str, onnx.TensorProto] = {}
    for each in iter_graphs(graph):
        found.update((tensor.name, tensor) for tensor in each.initializer)
        for node in each.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                found[node.output[0]] = value
    return {
        name: tensor for name, tensor in found.items() if tensor.data_location != onnx.TensorProto.EXTERNAL
    }


def declare_scans(graph: onnx.GraphProto, dims: Mapping[str, Dims]) -> None:
    """Write down, in place, the shapes of what the bodies of Scans make: ONNX Runtime asks for them, and
    finds none behind a kernel."""
    for node in iter_nodes(graph):
        for body in iter_bodies(node) if node.op_type == "Scan" else ():
            for value in body.output:
                if value.name in dims and not value.type.tensor_type.HasField("shape"):
                    kind = value.type.tensor_type.elem_type
                    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims[value.name]))


def put_bodies(graph: onnx.GraphProto, around: Surroundings) -> None:
    """Replace such nodes of a graph and of its nodes' bodies, in place.

    Comes last: nodes of standard operators are those of the rounding, too.
    """
    for node in graph.node:
        for body in iter_bodies(node):
            put_bodies(body, around)
    inside = replace(around, makers=find_makers(graph))
    if any(find_body(node, inside) for node in graph.node):
        replace_nodes(graph, [made for node in graph.node for made in _replace_by_body(node, inside)])


def needs_bodies(graph: onnx.GraphProto, around: Surroundings) -> bool:
    """Whether there is such a node."""
    return any(
        find_body(node, replace(around, makers=makers)) is not None
        for each in iter_graphs(graph)
        for makers in [find_makers(each)]
        for node in each.node
    )


def find_body(node: onnx.NodeProto, around: Surroundings) -> Body | None:
    """What computes a node instead of ONNX Runtime; None of all others."""
    operator = operator_of(node)
    if operator.guard is not None:
        return operator.guard(node, around)
    return operator.body


def _replace_by_body(node: onnx.NodeProto, around: Surroundings) -> list[onnx.NodeProto]:
    """What computes a node; itself where ONNX Runtime does."""
    body = find_body(node, around)
    if body is None:
        return [node]
    chain = Chain(f"{node.output[0]}/body")
    body(chain, node, around)
    chain.nodes[-1].name = node.name  # by which reports speak of what makes its results
    return chain.nodes
