"""Guards of products that add up no terms: ONNX Runtime's kernels of integers return memory that
they have not written, or reject the operands."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnxgraph import Results, Site, Tape, Value

from simipu.operators.entry import Body, GraphContext

_QLINEAR_ZERO_POINT = 7
"""Input of a QLinearMatMul that is the zero point of its result."""
_INTEGER, _QLINEAR = (0, 1), (0, 3)
"""Operands of MatMulInteger and of QLinearMatMul."""


def unsigned_product(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute the sums over no terms of a MatMul of uint32, which ONNX Runtime rejects."""
    is_unsigned = around.types.get(node.input[0]) == TensorProto.UINT32
    return _sum_unsigned if is_unsigned and _has_no_terms(node, around, _INTEGER) else None


def integer_product(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute the sums over no terms of a MatMulInteger, which are 0, in int32."""
    return _sum_nothing if _has_no_terms(node, around, _INTEGER) else None


def quantized_product(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return the zero point of a QLinearMatMul that adds up no terms."""
    return _quantize_nothing if _has_no_terms(node, around, _QLINEAR) else None


def _has_no_terms(node: onnx.NodeProto, around: GraphContext, places: tuple[int, int]) -> bool:
    left, right = (around.shapes.get(node.input[place], ()) for place in places)
    return left[-1:] == (0,) or right[-2:-1] == (0,) or right == (0,)


def _sum_nothing(op: Tape, site: Site[GraphContext], places: tuple[int, int] = _INTEGER) -> Value:
    return op.MatMul(*(op.Cast(site.node.input[place], to=TensorProto.INT32) for place in places))


def _sum_unsigned(op: Tape, site: Site[GraphContext]) -> Results:
    return op.Cast(_sum_nothing(op, site), to=TensorProto.UINT32)


def _quantize_nothing(op: Tape, site: Site[GraphContext]) -> Results:
    zero = site.node.input[_QLINEAR_ZERO_POINT]
    total = op.Add(_sum_nothing(op, site, _QLINEAR), op.Cast(zero, to=TensorProto.INT32))
    return op.Cast(total, to=site.facts.types[zero])
