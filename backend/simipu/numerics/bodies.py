"""Replaces operators that ONNX Runtime lacks, those of the chip's own compiler, and nodes that ONNX
Runtime computes wrongly; restricts indices to the tensor that they select from.

ONNX Runtime ends a run at an index that is computed at run time and out of range. The chip does not
check indices, and scripts with published figures feed such indices. With the index check "clamp"
the nearest element is read. For an axis of s elements every index becomes one of -s to s - 1, and
negative ones count from the end as usual. Operators that write by indices (ScatterElements,
ScatterND) end the run either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    Chain,
    attribute,
    find_makers,
    find_opset,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    iter_shapes,
    replace_nodes,
)

from popef._tools.arrays import Array
from simipu.errors import LoadError
from simipu.numerics.kernels import Dims
from simipu.operators import operator_of
from simipu.operators.entry import Body, GraphContext, Indexing


def find_constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a graph and its bodies by name, except those whose data are outside
    the graph."""
    found: dict[str, onnx.TensorProto] = {}
    for each in iter_graphs(graph):
        found.update((tensor.name, tensor) for tensor in each.initializer)
        for node in each.node:
            if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
                found[node.output[0]] = value
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    }


def declare_scans(graph: onnx.GraphProto, dims: Mapping[str, Dims]) -> None:
    """Declare, in place, the shapes of the results of Scans' bodies: ONNX Runtime requires them,
    and cannot infer them after a kernel."""
    for node in iter_nodes(graph):
        for body in iter_bodies(node) if node.op_type == "Scan" else ():
            for value in body.output:
                tensor, name = value.type.tensor_type, value.name
                if name in dims and not tensor.HasField("shape"):
                    made = helper.make_tensor_value_info(name, tensor.elem_type, dims[name])
                    value.CopyFrom(made)


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
        nodes = [made for node in graph.node for made in _replace_by_body(node, inside)]
        replace_nodes(graph, nodes)


def needs_bodies(graph: onnx.GraphProto, around: GraphContext) -> bool:
    """Return whether there is a node to replace."""
    return any(
        find_body(node, replace(around, makers=makers)) is not None
        for each in iter_graphs(graph)
        for makers in [find_makers(each)]
        for node in each.node
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
    chain = Chain(f"{node.output[0]}/body")
    body(chain, node, around)
    chain.nodes[-1].name = node.name  # reports use this name for the results
    return chain.nodes


_WHOLE_EXTREMES_OPSET = 12
"""First opset in which Min and Max accept whole numbers."""
_Shapes = Mapping[str, tuple[int, ...]]


def find_chosen(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of a graph and its bodies that the model's author chose: the constants."""
    constants = {each.name for inner in iter_graphs(graph) for each in inner.initializer}
    made = (node for node in iter_nodes(graph) if node.op_type == "Constant")
    return constants.union(name for node in made for name in node.output)


def clamp_indices(
    model: onnx.ModelProto, inferred: onnx.ModelProto, faults: dict[str, str] | None = None
) -> bool:
    """Change `model`, in place, so that its operators read by indices within range, and return
    whether anything was changed. `inferred` is the same model with its shapes.

    With `faults` each such node of the main graph gets an output, which is added to `faults` with
    the node's title: a whole number above 0 if an index was out of range. Raises LoadError for such
    a node in a body, whose values no output can show.
    """
    constants = find_chosen(model.graph)
    if not any(_is_checked(node, constants) for node in iter_nodes(model.graph)):
        return False
    shapes = iter_shapes(inferred.graph)
    _clamp_graph(model.graph, shapes, constants, find_opset(model, 1), faults, is_main=True)
    for name in faults or ():
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, [1]))
    return True


def _is_checked(node: onnx.NodeProto, constants: Collection[str]) -> bool:
    return operator_of(node).indexing is not None and node.input[1] not in constants


def _clamp_graph(
    graph: onnx.GraphProto,
    shapes: Iterator[_Shapes],
    constants: Collection[str],
    opset: int,
    faults: dict[str, str] | None,
    *,
    is_main: bool = False,
) -> None:
    """Clamp the indices of a graph and its bodies; `shapes` has their shapes in the same order."""
    known = next(shapes)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in iter_bodies(node):
            _clamp_graph(body, shapes, constants, opset, faults)
        if _is_checked(node, constants):
            chain, given = Chain(f"{node.output[0]}/index"), node.input[1]
            clamped = node.input[1] = _clamp(chain, node, known, opset)
            if faults is not None:
                title = f"{node.op_type} (node {node.name or node.output[0]!r})"
                if not is_main:
                    raise LoadError(
                        f"{title} in the body of another node reads by indices that are computed "
                        "at run time, whose range cannot be checked there; use the index check "
                        '"clamp" (sim_index_check)'
                    )
                faults[_add_fault(chain, given, clamped)] = title
            nodes += chain.nodes
        nodes.append(node)
    replace_nodes(graph, nodes)


def _clamp(chain: Chain, node: onnx.NodeProto, shapes: _Shapes, opset: int) -> str:
    """Add to `chain` the nodes that bring the indices of `node` into range, and return the name of
    the result."""
    indices = chain.add("Cast", node.input[1], to=TensorProto.INT64)
    sizes = _known_sizes(node, shapes)
    if sizes is None:
        found = _add_sizes(chain, node)
        first, last = chain.add("Neg", found), chain.add("Sub", found, chain.constant(1, np.int64))
    else:
        first, last = chain.constant(-sizes, np.int64), chain.constant(sizes - 1, np.int64)
    if opset >= _WHOLE_EXTREMES_OPSET:
        return chain.add("Max", chain.add("Min", indices, last), first)
    return _add_extreme(chain, "Add", _add_extreme(chain, "Sub", indices, last), first)


def _add_fault(chain: Chain, given: str, clamped: str) -> str:
    """Add the nodes that compute how far the indices `given` are from the clamped ones at most, a
    tensor of one element, and return its name."""
    moved = chain.add("Sub", chain.add("Cast", given, to=TensorProto.INT64), clamped)
    largest = chain.add("ReduceMax", chain.add("Abs", moved), keepdims=0)
    return chain.add("Reshape", largest, chain.shape([1]))


def _known_sizes(node: onnx.NodeProto, shapes: _Shapes) -> Array | None:
    """Return the sizes of the axes that indices select from, if the shapes are known: one, or one
    for each part of a tuple."""
    data, indices = (shapes.get(name) for name in node.input[:2])
    if data is None:
        return None
    if operator_of(node).indexing is Indexing.ALONG_AXIS:
        return np.array(data[attribute(node, "axis", 0)], np.int64)
    if indices is None:
        return None
    begin = attribute(node, "batch_dims", 0)
    return np.array(data[begin : begin + indices[-1]], np.int64)


def _add_sizes(chain: Chain, node: onnx.NodeProto) -> str:
    """Add nodes that compute these sizes at run time."""
    shape = chain.add("Shape", node.input[0])
    if operator_of(node).indexing is Indexing.ALONG_AXIS:
        return chain.add("Gather", shape, chain.constant(attribute(node, "axis", 0), np.int64))
    begin = chain.shape([attribute(node, "batch_dims", 0)])
    count = chain.add("Gather", chain.add("Shape", node.input[1]), chain.shape([-1]))
    return chain.add("Slice", shape, begin, chain.add("Add", begin, count), chain.shape([0]))


def _add_extreme(chain: Chain, sign: str, left: str, right: str) -> str:
    """Add the smaller (sign Sub) or the larger (sign Add) of whole numbers, in opsets that have Min
    and Max for floats only: (a + b -+ |a - b|) / 2."""
    total, distance = chain.add("Add", left, right), chain.add("Abs", chain.add("Sub", left, right))
    return chain.add("Div", chain.add(sign, total, distance), chain.constant(2, np.int64))
