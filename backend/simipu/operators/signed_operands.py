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
from onnxgraph import Chain

from simipu.operators.entry import Body, GraphContext, Guard

_SHIFT = 128
_SCALE, _ZERO_POINT = 1, 2
"""Inputs of QuantizeLinear and DequantizeLinear."""


def signed_operand(place: int, zero_point: int, other: int) -> Guard:
    """Return a guard for a product whose input `place`, with its zero point, saturates if it is
    signed and the input `other` is not."""

    def body(chain: Chain, node: onnx.NodeProto, _around: GraphContext) -> None:
        shifted = _copy(node)
        inputs = [*node.input, *[""] * (zero_point + 1 - len(node.input))]
        for at in (place, zero_point):
            if inputs[at]:
                inputs[at] = _shift(chain, inputs[at])
        # OpenVINO has no omitted input before others.
        shifted.input[:] = [
            name
            if name or at > zero_point
            else chain.constant(_SHIFT if at == zero_point else 0, np.uint8)
            for at, name in enumerate(inputs)
        ]
        chain.nodes.append(shifted)

    def guard(node: onnx.NodeProto, around: GraphContext) -> Body | None:
        kinds = [around.types.get(node.input[at]) for at in (place, other)]
        is_mixed = kinds == [TensorProto.INT8, TensorProto.UINT8]
        return body if is_mixed and around.saturates(node) else None

    return guard


def dequantized(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Dequantize a tensor of int8 as one of uint8."""
    is_signed = around.types.get(node.input[0]) == TensorProto.INT8
    return _dequantize_unsigned if is_signed and around.saturates(node) else None


def _dequantize_unsigned(chain: Chain, node: onnx.NodeProto, around: GraphContext) -> None:
    maker = around.makers.get(node.input[0])
    shifted = _copy(node)
    if maker is not None and maker.op_type == "QuantizeLinear":
        # The optimisers look for a pair of both.
        quantized = _quantize_unsigned(chain, maker)
        shifted.input[0] = quantized
    else:
        shifted.input[0] = _shift(chain, node.input[0])
    _shift_zero_point(chain, shifted)
    chain.nodes.append(shifted)


def _quantize_unsigned(chain: Chain, node: onnx.NodeProto) -> str:
    """Add a QuantizeLinear to uint8 instead of int8, and return its result's name."""
    shifted = _copy(node)
    shifted.name = f"{chain.new_name()}/QuantizeLinear"
    _shift_zero_point(chain, shifted)
    shifted.output[0] = chain.new_name()
    for each in shifted.attribute:
        if each.name == "output_dtype":
            each.i = TensorProto.UINT8
    chain.nodes.append(shifted)
    return str(shifted.output[0])


def _shift_zero_point(chain: Chain, node: onnx.NodeProto) -> None:
    """Shift the zero point of a node; without one it is 0, of the scale's shape."""
    node.input.extend([""] * (_ZERO_POINT + 1 - len(node.input)))
    zero = node.input[_ZERO_POINT]
    if zero:
        node.input[_ZERO_POINT] = _shift(chain, zero)
        return
    value = numpy_helper.from_array(np.array([_SHIFT], np.uint8))
    shape = chain.add("Shape", node.input[_SCALE])
    node.input[_ZERO_POINT] = chain.add("ConstantOfShape", shape, value=value)


def _shift(chain: Chain, name: str) -> str:
    """Add the shift of a tensor of int8, and return the name of the one of uint8."""
    # ONNX Runtime has no sums of 8 bits, and no XOR of them before opset 18.
    wide = chain.add("Cast", name, to=TensorProto.INT32)
    total = chain.add("Add", wide, chain.constant(_SHIFT, np.int32))
    return chain.add("Cast", total, to=TensorProto.UINT8)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
