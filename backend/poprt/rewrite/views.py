"""Views of graphs for passes: the known facts about tensors, and unused names.

`scopes`, `patterns` and `node_rules` change graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import fresh_name
from onnxgraph.weights import LARGE, has_data, read_array

from popef._tools.arrays import Array

Shape = tuple[int, ...]
AXES_ARE_INPUTS = 13
"""Opset from which ReduceSum, Squeeze and Unsqueeze take their axes as an input."""


@dataclass(slots=True)
class FreshNames:
    """Names taken, added and no longer read in a whole model while its nodes are replaced."""

    opset: int
    """Opset of new nodes."""
    taken: set[str]
    added: list[TensorProto] = field(default_factory=list)
    """New weights of the main graph."""
    left: set[str] = field(default_factory=set)
    """Tensors that removed nodes have read."""

    def take(self, wanted: str) -> str:
        """Return an unused name, and mark it as used."""
        found = fresh_name(wanted, self.taken)
        self.taken.add(found)
        return found


def tensor_of(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor in the `value` of a Constant; None for other nodes."""
    is_held = node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    return node.attribute[0].t if is_held else None


def is_untrained(value: Array) -> bool:
    """Return whether a weight may be untrained: several floats, all equal.

    Models are exported before they are trained, or for their shapes only. Changes that depend on
    such a weight's values, such as removing a bias of zeros, are invalid for the trained model
    with the same graph.
    """
    return value.size > 1 and value.dtype.kind == "f" and bool((value == value.flat[0]).all())


def types_of(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Return the types that a graph declares for its tensors."""
    return {each.name: each.type.tensor_type for each in (*graph.value_info, *graph.output, *graph.input)}


def constants_of(
    graph: onnx.GraphProto, read: Callable[[onnx.NodeProto], TensorProto | None] = tensor_of
) -> dict[str, TensorProto]:
    """Return the weights that are no inputs, which old formats allow, and the tensors that `read`
    finds in nodes."""
    given = {each.name for each in graph.input}
    found = {each.name: each for each in graph.initializer if each.name not in given}
    held = ((node, read(node)) for node in graph.node)
    return found | {node.output[0]: tensor for node, tensor in held if tensor is not None}


@dataclass(slots=True)
class GraphView:
    """Known facts about the tensors in scope of a graph, including those of the graphs around
    it."""

    outer: GraphView | None
    types: dict[str, onnx.TypeProto.Tensor] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)

    def home(self, name: str) -> GraphView | None:
        """Return the view that defines a name: this one, or one around it."""
        view: GraphView | None = self
        while view is not None:
            if name in view.types or name in view.constants or name in view.makers:
                return view
            view = view.outer
        return None

    def find(self, name: str) -> onnx.TypeProto.Tensor | None:
        """Return the inferred type of a tensor; None if it is not known."""
        home = self.home(name)
        return home.types.get(name) if home is not None else None

    def tensor(self, name: str) -> TensorProto | None:
        """Return the constant of that name; None if there is none."""
        home = self.home(name)
        return home.constants.get(name) if home is not None else None

    def value(self, name: str, most: int = LARGE) -> Array | None:
        """Return the values of a constant of at most `most` elements, if it has data, else None."""
        tensor = self.tensor(name) if name else None
        if tensor is None or math.prod(tensor.dims) > most or not has_data(tensor):
            return None
        return read_array(tensor)

    def number(self, name: str) -> float | None:
        """Return the value of a constant of one element, else None."""
        value = self.value(name, 1)
        return float(value.ravel()[0]) if value is not None and value.size == 1 else None

    def numbers(self, name: str) -> list[int] | None:
        """Return the values of a constant of integers, else None."""
        found = self.value(name)
        return None if found is None or found.dtype.kind not in "iu" else [int(n) for n in found.ravel()]

    def type(self, name: str) -> int:
        """Return the element type of a tensor; 0 if it is not known."""
        tensor, found = self.tensor(name), self.find(name)
        return tensor.data_type if tensor is not None else found.elem_type if found is not None else 0

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the numpy type of a tensor whose element type is known."""
        return helper.tensor_dtype_to_np_dtype(self.type(name))

    def shape(self, name: str) -> Shape | None:
        """Return the static shape of a tensor; None if it is not known. A size of -1, as exporters
        write it, counts as unknown."""
        tensor, found = self.tensor(name), self.find(name)
        if tensor is not None:
            return tuple(tensor.dims)
        if found is None or not found.HasField("shape"):
            return None
        dims = found.shape.dim
        is_static = all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
        return tuple(d.dim_value for d in dims) if is_static else None

    def rank(self, name: str) -> int | None:
        """Return the number of a tensor's dimensions; None if it is not known."""
        tensor, found = self.tensor(name), self.find(name)
        if tensor is not None:
            return len(tensor.dims)
        return len(found.shape.dim) if found is not None and found.HasField("shape") else None
