"""Functions that inspect and tidy graphs, under the names that scripts import: `onnxgraph` by the
real tool's names."""

from __future__ import annotations

import copy

import onnx
from onnx import TensorProto
from onnxgraph import find_makers, forget_values, iter_graphs, iter_reads, replace_nodes

from poprt.passes.interface.surgery import order_nodes, read_constant
from poprt.passes.shape_inference import infer_shapes

__all__ = ["clean_info", "get_constant", "get_dtype", "get_shape", "topological_sort"]


def topological_sort(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return copies of the nodes of `graph`, without its bodies, in topological order; sorted nodes
    keep their order.

    Raises CompileError for nodes in a cycle.
    """
    return [copy.deepcopy(node) for node in order_nodes(graph) or graph.node]


def clean_info(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer the types and shapes of inner tensors anew and return the model, changed in place.
    Earlier declarations are removed.

    Nodes with unread results are removed if they read a tensor that does not exist: a script has
    removed its maker.
    """
    _drop_loose_ends(model.graph)
    for graph in iter_graphs(model.graph):
        forget_values(graph)
    return infer_shapes(model)


def _drop_loose_ends(graph: onnx.GraphProto) -> None:
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    loose: set[int] = set()
    for place, node in enumerate(graph.node):
        if defined.issuperset(iter_reads(node)):
            defined.update(node.output)
        else:
            loose.add(place)
    reads = {value.name for value in graph.output}
    nodes_kept: list[onnx.NodeProto] = []
    for place in reversed(range(len(graph.node))):
        node = graph.node[place]
        if place not in loose or reads.intersection(node.output):
            nodes_kept.append(node)
            reads.update(iter_reads(node))
    if len(nodes_kept) < len(graph.node):
        replace_nodes(graph, reversed(nodes_kept))


def get_dtype(graph: onnx.GraphProto, name: str) -> int | None:
    """Return the element type of a tensor; None if the graph does not declare it."""
    value, tensor = _find(graph, name)
    if tensor is not None:
        return int(tensor.data_type)
    if value is None or not value.type.tensor_type.elem_type:
        return None
    return int(value.type.tensor_type.elem_type)


def get_shape(graph: onnx.GraphProto, name: str) -> list[int] | None:
    """Return the shape of a tensor, with 0 for unknown dimensions; None if the graph does not
    declare it."""
    value, tensor = _find(graph, name)
    if tensor is not None:
        return list(tensor.dims)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def get_constant(graph: onnx.GraphProto, name: str) -> TensorProto | None:
    """Return the initializer of that name, or the tensor in the Constant of that name. It is the
    graph's own, and may be changed in place."""
    _, tensor = _find(graph, name)
    if tensor is not None:
        return tensor
    maker = find_makers(graph).get(name)
    return None if maker is None else read_constant(maker)


def _find(
    graph: onnx.GraphProto, name: str
) -> tuple[onnx.ValueInfoProto | None, TensorProto | None]:
    """Return the graph's declaration of a tensor, and the tensor itself if it is an initializer."""
    tensor = next(
        (initializer for initializer in graph.initializer if initializer.name == name), None
    )
    values = (
        candidate for field in (graph.value_info, graph.input, graph.output) for candidate in field
    )
    return next((value for value in values if value.name == name), None), tensor
