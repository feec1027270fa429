"""Values of small tensors that nodes compute from constants and known shapes: sizes, axes, pads.

Tensors that are large or depend on the inputs are not computed here; `passes.folding` computes
large constants later with ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxgraph import attribute, iter_bodies

from popef._tools.arrays import Array
from poprt.rewrite.views import GraphView

_MAX_ELEMENTS = 1 << 12
"""Maximum number of elements of each intermediate tensor; shapes and pads have dozens."""
_MAX_BROADCAST = 1 << 20
_MAX_NODES = 256
"""Maximum number of nodes visited for one value."""
_KEEPING = frozenset(
    (
        "Abs Add And Cast CastLike Ceil Concat Constant Div Equal Floor Gather Greater "
        "GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg Not Or ReduceMax ReduceMin "
        "ReduceProd ReduceSum Reshape Shape Size Slice Squeeze Sub Transpose Unsqueeze Where"
    ).split()
)
"""Operators whose results have no more elements than all their inputs, broadcast."""


def find_value(view: GraphView, name: str) -> Array | None:
    """Return the values of a small tensor; None if they are not known without the model's
    inputs."""
    known: dict[str, Array] = {}
    nodes = _find_nodes(view, name, known)
    if nodes is None:
        return None
    for node in nodes:
        made = _compute(node, known, view)
        if made is None or made.size > _MAX_ELEMENTS:
            return None
        known[node.output[0]] = made
    return known.get(name)


def _find_nodes(view: GraphView, name: str, known: dict[str, Array]) -> list[onnx.NodeProto] | None:
    """Return the nodes that make a tensor, in order; constants are added to `known`. Return None if
    they include nodes that are not simple, or are too many."""
    nodes: dict[str, onnx.NodeProto] = {}
    waiting = [(name, False)]
    ordered: list[onnx.NodeProto] = []
    while waiting:
        wanted, is_ready = waiting.pop()
        if is_ready:
            ordered.append(nodes[wanted])
            continue
        if wanted in nodes or wanted in known:
            continue
        constant = view.value(wanted, _MAX_ELEMENTS)
        if constant is not None:
            known[wanted] = constant
            continue
        node = view.maker(wanted)
        if node is None or not _is_simple(node) or len(nodes) >= _MAX_NODES:
            return None
        nodes[wanted] = node
        waiting.append((wanted, True))
        waiting.extend((each, False) for each in _iter_read(node, view))
    return ordered


def _is_simple(node: onnx.NodeProto) -> bool:
    return (
        node.op_type in _KEEPING
        and len(node.output) == 1
        and not any(True for _ in iter_bodies(node))
    )


def _iter_read(node: onnx.NodeProto, view: GraphView) -> Iterator[str]:
    """Yield the tensors that must be computed first; none for a Shape or Size of a known shape."""
    if node.op_type not in ("Shape", "Size") or view.shape(node.input[0]) is None:
        yield from filter(None, node.input)


def _compute(node: onnx.NodeProto, known: dict[str, Array], view: GraphView) -> Array | None:
    shape = view.shape(node.input[0]) if node.op_type in ("Shape", "Size") else None
    if shape is not None:
        if node.op_type == "Size":
            return np.array(math.prod(shape))
        start, end = attribute(node, "start", 0), attribute(node, "end")
        return np.array(shape[start:end], np.int64)
    read = [known[name] for name in node.input if name]
    if node.op_type != "Concat" and math.prod(each.size or 1 for each in read) > _MAX_BROADCAST:
        return None
    try:
        graph = helper.make_graph(
            [node], "small", [], [helper.make_value_info(node.output[0], onnx.TypeProto())]
        )
        graph.input.extend(
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(known[name].dtype), None
            )
            for name in dict.fromkeys(filter(None, node.input))
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", view.names.source)])
        fed = {name: known[name] for name in node.input if name}
        made: Any = ReferenceEvaluator(model).run([node.output[0]], fed)
    except Exception:  # noqa: BLE001 - the value of an invalid node is unknown
        return None
    return np.asarray(made[0])
