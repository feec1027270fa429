"""Shape inference under the names that scripts import, with shape functions that scripts register
for their operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import onnx
import onnxgraph
from onnxgraph import forget_values, iter_graphs, register_shape_function

__all__ = ["ShapeFunc", "infer_shapes", "register_shape_func"]


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the types and shapes of a model's tensors, including those in bodies, and return the
    model, changed in place.

    Weights are not copied. Declarations stay for tensors whose shapes cannot be inferred.
    """
    inferred = onnxgraph.infer_shapes(model)
    for graph, inferred_graph in zip(
        iter_graphs(model.graph), iter_graphs(inferred.graph), strict=True
    ):
        forget_values(graph)
        graph.value_info.extend(inferred_graph.value_info)
    outputs = {value.name: value for value in inferred.graph.output}
    for value in model.graph.output:
        value.CopyFrom(outputs[value.name])
    return model


class ShapeFunc:
    """Base class of shape functions; subclasses define `__call__`."""

    def __call__(
        self, model: onnx.ModelProto, node: onnx.NodeProto
    ) -> tuple[onnx.ModelProto, bool]:
        """Return the model with the types and shapes of `node`'s results, and whether they are
        known."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what shapes there are: define __call__"
        )

    def update_value_info(
        self, model: onnx.ModelProto, value_info: onnx.ValueInfoProto
    ) -> onnx.ModelProto:
        """Declare a tensor by its name in `value_info` and return the model, changed in place."""
        graph = model.graph
        for info in (*graph.value_info, *graph.output):
            if info.name == value_info.name:
                info.CopyFrom(value_info)
                return model
        graph.value_info.append(value_info)
        return model


_F = TypeVar("_F", bound=type[ShapeFunc])


def register_shape_func(op_types: Sequence[str] | str) -> Callable[[_F], _F]:
    """Return a decorator that registers a ShapeFunc for operators of any domain.

    The class is created without arguments. Its function is called if no other source has the shapes
    of the results.
    """
    names = [op_types] if isinstance(op_types, str) else list(op_types)

    def add(made: _F) -> _F:
        register_shape_function(made(), *names)
        return made

    return add
