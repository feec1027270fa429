"""Lengths of the sequences of recurrent networks on accelerators, which do not check them.

ONNX Runtime's CPU kernels, and this project's, end a run whose `sequence_lens` are not from 0 to
the number of steps. On an accelerator the graph brings them into this range, and an additional
output says whether one was outside.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import Tape, describe_node, iter_bodies, iter_nodes, replace_nodes

from simipu.errors import AcceleratorError
from simipu.operators import operator_of

_LENGTHS = 4
"""Index of the input `sequence_lens`."""


def clamp_lengths(model: onnx.ModelProto, faults: dict[str, str]) -> bool:
    """Change `model`, in place, so that the lengths of its recurrent nodes are within range, and
    return whether it has such nodes. Each node gets an output, which is added to `faults` with an
    error's text: a whole number above 0 if a length was out of range. Raises AcceleratorError for a
    node in the body of another one, whose values no output can show."""
    for node in iter_nodes(model.graph):
        for body in iter_bodies(node):
            for inner in filter(_has_lengths, body.node):
                raise AcceleratorError(
                    f"it does not check sequence_lens of {describe_node(inner)}, which is in the "
                    "body of another node; remove the accelerator"
                )
    if not any(map(_has_lengths, model.graph.node)):
        return False
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if _has_lengths(node):
            op = Tape(f"{next(filter(None, node.output))}/lengths")
            name = _clamp(op, node)
            faults[name] = (
                f"{describe_node(node)}: a length in sequence_lens is not from 0 to the number of "
                "steps"
            )
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, [1]))
            nodes += op.nodes
        nodes.append(node)
    replace_nodes(model.graph, nodes)
    return True


def _has_lengths(node: onnx.NodeProto) -> bool:
    return operator_of(node).gates > 0 and len(node.input) > _LENGTHS and bool(node.input[_LENGTHS])


def _clamp(op: Tape, node: onnx.NodeProto) -> str:
    """Replace the node's lengths by their nearest ones within range, and return the name of a
    number that is 1 if one was outside."""
    steps = op.add("Gather", op.add("Shape", node.input[0]), op.constant(0, np.int64))
    lengths = op.add("Cast", node.input[_LENGTHS], to=TensorProto.INT64)
    zero = op.constant(0, np.int64)
    is_low, is_high = op.add("Less", lengths, zero), op.add("Less", steps, lengths)
    clamped = op.add("Where", is_low, zero, op.add("Where", is_high, steps, lengths))
    wrong = op.add("Cast", op.add("Or", is_low, is_high), to=TensorProto.INT64)
    node.input[_LENGTHS] = op.add("Cast", clamped, to=TensorProto.INT32)
    return op.add("Reshape", op.add("ReduceMax", wrong, keepdims=0), op.ints([1]))
