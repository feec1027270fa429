"""Passes that move the constants of a model: from nodes to initializers, from bodies to the main
graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnxgraph import fresh_name, iter_bodies, iter_defined, iter_graphs, rename, replace_nodes
from onnxgraph.building import make_identity
from onnxgraph.edit import set_attribute

from poprt.rewrite.base import Pass, Stage, register

_HELD: dict[str, Callable[[Any], TensorProto]] = {
    "value_int": lambda value: numpy_helper.from_array(np.asarray(value, np.int64)),
    "value_ints": lambda value: numpy_helper.from_array(np.asarray(value, np.int64)),
    "value_float": lambda value: numpy_helper.from_array(np.asarray(value, np.float32)),
    "value_floats": lambda value: numpy_helper.from_array(np.asarray(value, np.float32)),
}
"""Attributes, other than `value`, in which a Constant may hold numbers, each with its conversion to
a tensor (opset 12)."""


def read_constant(node: onnx.NodeProto) -> TensorProto | None:
    """Return the numbers of a Constant. Return None for other nodes, and for a Constant that is no
    dense tensor of numbers."""
    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    (held,) = node.attribute
    if held.name == "value" and held.type == AttributeProto.TENSOR:
        return (
            held.t if held.t.data_type not in (TensorProto.STRING, TensorProto.UNDEFINED) else None
        )
    make = _HELD.get(held.name)
    return None if make is None else make(helper.get_attribute_value(held))


def hold_as_tensor(node: onnx.NodeProto) -> None:
    """Move a Constant's numbers from any other attribute to `value`; other nodes stay."""
    constant = read_constant(node)
    if constant is not None and node.attribute[0].type != AttributeProto.TENSOR:
        del node.attribute[:]
        set_attribute(node, "value", constant)


@register("extract_constant_to_initializer", stage=Stage.FOLDING, default=True)
class ExtractConstantToInitializer(Pass):
    """Make an initializer of every Constant, in the graph that it stands in.

    Strings and sparse tensors stay, and what a graph gives as an output: that takes a node.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Extract the Constants. The tensors keep their names."""
        for graph in iter_graphs(model.graph):
            outputs = {value.name for value in graph.output}
            nodes = []
            for node in graph.node:
                constant = read_constant(node)
                if constant is None or node.output[0] in outputs:
                    nodes.append(node)
                    continue
                graph.initializer.add().CopyFrom(constant)
                graph.initializer[-1].name = node.output[0]
            if len(nodes) < len(graph.node):
                replace_nodes(graph, nodes)
        return model


@register("move_subgraph_initializer", stage=Stage.FOLDING, default=True)
class MoveSubgraphInitializer(Pass):
    """Put the initializers of bodies into the main graph, under names of their own.

    One that is an input of its body, and so a default, stays; of one that is an output the body
    gives a copy.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Move the initializers. Sibling bodies may use one name for two tensors."""
        taken = set(iter_defined(model.graph))
        moved: set[str] = set()
        self._move(model.graph, model.graph, taken, moved)
        return model

    def _move(
        self, main: onnx.GraphProto, graph: onnx.GraphProto, taken: set[str], moved: set[str]
    ) -> None:
        for node in graph.node:
            for body in iter_bodies(node):
                if body.initializer:
                    _move_out(main, body, taken, moved)
                self._move(main, body, taken, moved)


def _move_out(
    main: onnx.GraphProto, body: onnx.GraphProto, taken: set[str], moved: set[str]
) -> None:
    inputs = {value.name for value in body.input}
    outputs = {value.name for value in body.output}
    staying = [tensor for tensor in body.initializer if tensor.name in inputs]
    renames: dict[str, str] = {}
    given: list[onnx.NodeProto] = []
    for tensor in body.initializer:
        if tensor.name in inputs:
            continue
        # The body's output keeps its name; its value gets another one.
        name = f"{tensor.name}/value" if tensor.name in outputs else tensor.name
        if name in moved or tensor.name in outputs:
            name = fresh_name(name, taken)
        moved.add(name)
        taken.add(name)
        main.initializer.add().CopyFrom(tensor)
        main.initializer[-1].name = name
        if tensor.name in outputs:
            given.append(make_identity(name, tensor.name, f"{tensor.name}/given"))
        elif name != tensor.name:
            renames[tensor.name] = name
    del body.initializer[:]
    body.initializer.extend(staying)
    rename(body, renames)
    if given:
        replace_nodes(body, [*given, *body.node])
