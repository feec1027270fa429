"""Puts in what computes operators that ONNX Runtime lacks: those of the chip's own compiler."""

from __future__ import annotations

import onnx
from onnxgraph import Chain, iter_bodies, replace_nodes

from simipu.operators import operator_of
from simipu.operators.entry import Surroundings


def put_bodies(graph: onnx.GraphProto, around: Surroundings) -> None:
    """Replace such nodes of a graph and of its nodes' bodies, in place.

    Comes last: nodes of standard operators are those of the rounding, too.
    """
    for node in graph.node:
        for body in iter_bodies(node):
            put_bodies(body, around)
    if any(operator_of(node).body for node in graph.node):
        replace_nodes(graph, [made for node in graph.node for made in _replace_by_body(node, around)])


def _replace_by_body(node: onnx.NodeProto, around: Surroundings) -> list[onnx.NodeProto]:
    """What computes an operator that ONNX Runtime lacks; the node itself of all others."""
    body = operator_of(node).body
    if body is None:
        return [node]
    chain = Chain(f"{node.output[0]}/body")
    body(chain, node, around)
    chain.nodes[-1].name = node.name  # by which reports speak of what makes its results
    return chain.nodes
