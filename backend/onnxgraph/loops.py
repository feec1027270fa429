"""Loops: how often they run, as far as the graph says it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from onnxgraph.weights import has_data


def known_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return initializers and constants of one element, by name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            values = (entry.t for entry in node.attribute if entry.name == "value")
            constants.update((node.output[0], value) for value in values)
    return {
        name: tensor
        for name, tensor in constants.items()
        if list(tensor.dims) in ([], [1]) and has_data(tensor)
    }


def is_unconditional(body: onnx.GraphProto, known: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a Loop with this body runs until its trip count: the body returns its
    condition unchanged, through Identity, or as a constant that is true. `known` has the constants
    around the body (`known_constants`)."""
    condition = body.output[0].name
    makers = {output: node for node in body.node for output in node.output}
    while condition in makers and makers[condition].op_type == "Identity":
        condition = makers[condition].input[0]
    if condition == body.input[1].name:
        return True
    constant = known_constants(body).get(condition, known.get(condition))
    return constant is not None and bool(numpy_helper.to_array(constant).ravel()[0])
