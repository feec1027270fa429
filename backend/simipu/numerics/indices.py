"""Restricts indices that are computed at run time to the range of the tensor that they select from,
in the placed graph.

ONNX Runtime ends a run at an index that is out of range. The chip does not check indices, and
scripts with published figures feed such indices. With the index check "clamp" the nearest element
is read. For an axis of s elements every index becomes one of -s to s - 1, and negative ones count
from the end as usual. Operators that write by indices (ScatterElements, ScatterND) end the run
either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import (
    Chain,
    attribute,
    find_opset,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    iter_shapes,
    replace_nodes,
)

from popef._tools.arrays import Array
from simipu.operators import operator_of
from simipu.operators.entry import Indexing

INDEX_CHECKS = ("error", "clamp")
_WHOLE_EXTREMES_OPSET = 12
"""First opset in which Min and Max accept whole numbers."""
_Shapes = Mapping[str, tuple[int, ...]]


def clamp_indices(model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Change `model`, in place, so that its operators read by indices within range, and return
    whether anything was changed. `inferred` is the same model with its shapes."""
    constants = _find_constants(model.graph)
    if not any(_is_checked(node, constants) for node in iter_nodes(model.graph)):
        return False
    _clamp_graph(model.graph, iter_shapes(inferred.graph), constants, find_opset(model, 1))
    return True


def _find_constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the constants of a graph and its bodies: the model's author chose these
    indices."""
    found = {tensor.name for each in iter_graphs(graph) for tensor in each.initializer}
    return found | {
        name for node in iter_nodes(graph) if node.op_type == "Constant" for name in node.output
    }


def _is_checked(node: onnx.NodeProto, constants: Collection[str]) -> bool:
    return operator_of(node).indexing is not None and node.input[1] not in constants


def _clamp_graph(
    graph: onnx.GraphProto, shapes: Iterator[_Shapes], constants: Collection[str], opset: int
) -> None:
    """Clamp the indices of a graph and its bodies; `shapes` has their shapes in the same order."""
    known = next(shapes)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in iter_bodies(node):
            _clamp_graph(body, shapes, constants, opset)
        if _is_checked(node, constants):
            chain = Chain(f"{node.output[0]}/index")
            node.input[1] = _clamp(chain, node, known, opset)
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
