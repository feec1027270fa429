"""Puts in what computes operators that ONNX Runtime lacks, those of the chip's own compiler, and nodes that
it computes wrongly."""

from __future__ import annotations

import onnx
from onnxgraph import Chain, attribute, iter_bodies, iter_graphs, replace_nodes

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


def put_bodies(graph: onnx.GraphProto, around: Surroundings) -> None:
    """Replace such nodes of a graph and of its nodes' bodies, in place.

    Comes last: nodes of standard operators are those of the rounding, too.
    """
    for node in graph.node:
        for body in iter_bodies(node):
            put_bodies(body, around)
    if any(find_body(node, around) for node in graph.node):
        replace_nodes(graph, [made for node in graph.node for made in _replace_by_body(node, around)])


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
