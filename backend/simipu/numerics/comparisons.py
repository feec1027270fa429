"""Comparisons of whole numbers on accelerators: OpenVINO compares them as floats, so that numbers
beyond 2^24 are equal to their neighbours.

It subtracts 32-bit numbers exactly, and finds their extremes and whether they are 0:

    a == b   sign(a - b) is 0
    a < b    sign(min(a, b) - b) is not 0     a >= b   it is 0
    a > b    sign(max(a, b) - b) is not 0     a <= b   it is 0

A difference that wraps is 0 only if the numbers are equal.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto
from onnxgraph import Tape, describe_node, find_opset, iter_graphs, replace_nodes
from onnxgraph.opsets import EXTREMES_TAKE_INTEGERS, SIGN_EXISTS

from simipu.errors import AcceleratorError

_COMPARED: Mapping[str, tuple[str, bool]] = {
    "Equal": ("", True),
    "Greater": ("Max", False),
    "GreaterOrEqual": ("Min", True),
    "Less": ("Min", False),
    "LessOrEqual": ("Max", True),
}
"""Operators, with the extreme of both operands that is compared with the second one, and whether
they are true if the sign is 0: the formulas above, which only this rewrite uses."""


def compare_exactly(model: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Change `model`, in place, so that its whole numbers are compared exactly, and return whether
    anything was changed. `inferred` is the same model with its types. Raises AcceleratorError for
    an opset in which that is not possible."""
    types = {
        info.name: info.type.tensor_type.elem_type
        for graph in iter_graphs(inferred.graph)
        for info in (*graph.input, *graph.value_info, *graph.output)
    }
    opset, is_changed = find_opset(model, 1), False
    for graph in iter_graphs(model.graph):
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            kinds = {types.get(name, 0) for name in node.input}
            is_whole = not kinds.isdisjoint((TensorProto.INT32, TensorProto.INT64))
            op = Tape(f"{node.output[0]}/compared") if node.output else Tape("")
            if node.op_type in _COMPARED and is_whole:
                _compare(op, node, opset)
            nodes += op.nodes or [node]
            is_changed |= bool(op.nodes)
        if is_changed:
            replace_nodes(graph, nodes)
    return is_changed


def _compare(op: Tape, node: onnx.NodeProto, opset: int) -> None:
    left, right = node.input
    extreme, is_negated = _COMPARED[node.op_type]
    if opset < (EXTREMES_TAKE_INTEGERS if extreme else SIGN_EXISTS):
        raise AcceleratorError(
            f"{describe_node(node)} compares whole numbers as floats in opset {opset}; remove the "
            "accelerator"
        )
    left = op.add(extreme, left, right) if extreme else left
    # Of the difference itself, -2^31 is false.
    difference = op.add("Sign", op.add("Sub", left, right))
    if is_negated:
        op.add_as(node.output[0], "Not", op.add("Cast", difference, to=TensorProto.BOOL))
    else:
        op.add_as(node.output[0], "Cast", difference, to=TensorProto.BOOL)
