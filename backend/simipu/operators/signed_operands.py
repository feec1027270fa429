"""Guards of products of unsigned and signed 8-bit numbers, which saturate on some machines
(`simipu.saturation`): the signed operand becomes an unsigned one.

    value - zero point  =  (value + 128) - (zero point + 128)

Both sums fit into uint8. Shifted constants are computed when ONNX Runtime loads the graph. Its
optimisers make integer products of others that read a DequantizeLinear, so that one of a signed
tensor is shifted, too.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import Results, Site, Tape, Value

from simipu.operators.entry import Body, GraphContext, Guard
from simipu.operators.quantized_operands import write_quantize

_SHIFT = 128
"""Difference of a number's codes as uint8 and as int8."""
_SCALE, _ZERO_POINT = 1, 2
"""Inputs of QuantizeLinear and DequantizeLinear."""


def signed_operand(place: int, zero_point: int, other: int) -> Guard:
    """Return a guard for a product whose input `place`, with its zero point, saturates if it is
    signed and the input `other` is not."""

    def body(op: Tape, site: Site[GraphContext]) -> Results:
        inputs = [*site.node.input, *[""] * (zero_point + 1 - len(site.node.input))]
        for index in (place, zero_point):
            if inputs[index]:
                inputs[index] = _shift(op, inputs[index])
        # OpenVINO has no omitted input before others.
        for index, name in enumerate(inputs[: zero_point + 1]):
            if not name:
                inputs[index] = op.constant(_SHIFT if index == zero_point else 0, np.uint8)
        return op.copy(site.node, inputs)

    def guard(node: onnx.NodeProto, around: GraphContext) -> Body | None:
        kinds = [around.types.get(node.input[at]) for at in (place, other)]
        is_mixed = kinds == [TensorProto.INT8, TensorProto.UINT8]
        return body if is_mixed and around.saturates(node) else None

    return guard


def dequantized(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Dequantize a tensor of int8 as one of uint8."""
    is_signed = around.types.get(node.input[0]) == TensorProto.INT8
    return _dequantize_unsigned if is_signed and around.saturates(node) else None


def _dequantize_unsigned(op: Tape, site: Site[GraphContext]) -> Results:
    node, maker = site.node, site.facts.makers.get(site.node.input[0])
    if maker is not None and maker.op_type == "QuantizeLinear":
        # The optimisers look for a pair of both.
        source = _quantize_unsigned(op, maker, site.facts)
    else:
        source = _shift(op, node.input[0])
    return op.copy(node, [source, node.input[_SCALE], _shift_zero_point(op, node)])


def _quantize_unsigned(op: Tape, node: onnx.NodeProto, around: GraphContext) -> Value:
    """Add a QuantizeLinear to uint8 instead of int8, and return its result."""
    (result,) = write_quantize(op, node, around, _shift_zero_point(op, node))
    op.nodes[-1].name = f"{result}/QuantizeLinear"
    return result


def _shift_zero_point(op: Tape, node: onnx.NodeProto) -> Value:
    """Return the shifted zero point of a node; without one it is 0, of the scale's shape."""
    if len(node.input) > _ZERO_POINT and node.input[_ZERO_POINT]:
        return _shift(op, node.input[_ZERO_POINT])
    value = numpy_helper.from_array(np.array([_SHIFT], np.uint8))
    return op.ConstantOfShape(op.Shape(node.input[_SCALE]), value=value)


def _shift(op: Tape, name: str) -> Value:
    """Return a tensor of int8, shifted, as one of uint8."""
    # ONNX Runtime has no sums of 8 bits, and no XOR of them before opset 18.
    return op.Cast(op.Cast(name, to=TensorProto.INT32) + _SHIFT, to=TensorProto.UINT8)
