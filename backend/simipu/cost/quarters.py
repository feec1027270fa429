"""Products of 8-bit operands: the graph writes them with operands widened by a Cast, the chip's AMP units
take the 8 bits."""

from __future__ import annotations

import onnx

from simipu.numerics.quarter import QUARTERS

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


def take_quarters(graph: onnx.GraphProto) -> None:
    """Hand products whose operands are both widened 8-bit tensors those tensors, in place, and drop the Casts
    of only them.

    An activation stays as it was before it was narrowed: the chip does that for each product that reads it,
    and the cost of the product has it.
    """
    narrow = {tensor.name for tensor in graph.initializer if tensor.data_type in QUARTERS}
    narrow |= {info.name for info in graph.value_info if info.type.tensor_type.elem_type in QUARTERS}
    casts = {
        node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.input[0] in narrow
    }
    narrowed = {
        node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.output[0] in narrow
    }
    for node in graph.node:
        if node.op_type in _PRODUCTS and casts.keys() >= set(node.input[:2]):
            operand, weights = (casts[name].input[0] for name in node.input[:2])
            node.input[:2] = [narrowed[operand].input[0] if operand in narrowed else operand, weights]
    for unread in (casts, narrowed):
        used = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
        kept = [node for node in graph.node if used.intersection(node.output) or node.output[0] not in unread]
        del graph.node[:]
        graph.node.extend(kept)
