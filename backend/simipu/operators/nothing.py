"""Guards of operators that combine no elements.

ONNX Runtime's products of integers that add up no terms return memory that they have not written,
or reject the operands. Its pools reject an image without pixels, and its extremes one without
truths; a ConvTranspose of such a volume ends the process. Here each window has the value of no
elements: the sum 0, the mean NaN, or 0 where padding counts as elements, and the extreme -inf or
the least number of the type.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto
from onnxgraph import Results, Site, Tape, Value

from simipu.operators.entry import Body, GraphContext
from simipu.operators.windows import count_windows

_QLINEAR_ZERO_POINT = 7
"""Input of a QLinearMatMul that is the zero point of its result."""
_INTEGER, _QLINEAR = (0, 1), (0, 3)
"""Operands of MatMulInteger and of QLinearMatMul."""
_IMAGE = 2
"""First axis of an image, behind those of the batch and the channels."""


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


def pool(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a pool of an image without pixels."""
    shape = around.shapes.get(node.input[0])
    is_empty = 0 in (shape or ())[_IMAGE:]
    has_places = len(node.output) > 1 and bool(node.output[1])
    return _pool_nothing if is_empty and not has_places else None


def _pool_nothing(op: Tape, site: Site[GraphContext]) -> Results:
    node = site.node
    shape = site.facts.shapes[node.input[0]]
    axes = list(range(_IMAGE, len(shape)))
    counts = [1] * len(axes)
    if not node.op_type.startswith("Global"):
        counts = count_windows(node, [size or 0 for size in shape[_IMAGE:]])
    kind = node.op_type.removeprefix("Global")
    # Of the size 1 along each axis of the image.
    value = op.add("ReduceMax" if kind == "MaxPool" else "ReduceSum", site.x, axes=axes, keepdims=1)
    if kind == "AveragePool" and not site.get("count_include_pad", 0):
        value = op.Div(value, 0)
    return op.Tile(value, op.ints([1, 1, *counts]))


def transposed_convolution(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a ConvTranspose of a volume without pixels, which is its bias."""
    source = around.shapes.get(node.input[0], ())
    is_volume = len(source) > _IMAGE + 2 and around.shape(node.input[1]) is not None
    return _spread_nothing if is_volume and 0 in source[_IMAGE:] else None


def _spread_nothing(op: Tape, site: Site[GraphContext]) -> Results:
    """Spread one pixel with filters of 0 instead, and cut off what it adds to the size."""
    source, filters, *bias = site.node.input
    shape, kind = site.facts.shapes[source], site.facts.types[source]
    axes = [axis for axis, size in enumerate(shape) if axis >= _IMAGE and size == 0]
    pads = [0] * len(shape) + [int(axis in axes) for axis in range(len(shape))]
    zeros = op.like(np.zeros(site.facts.shape(filters) or ()), kind)
    (result,) = op.copy(site.node, [op.Pad(op.read(source, kind), pads=pads), zeros, *bias])
    if site.get("output_shape") is not None:
        return result
    strides = site.get("strides") or [1] * (len(shape) - _IMAGE)
    starts = [strides[axis - _IMAGE] for axis in axes]
    return op.Slice(result, starts=starts, ends=[np.iinfo(np.int64).max] * len(axes), axes=axes)


def truth(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute an extreme of no truths: that of the numbers 0 and 1."""
    source = node.input[0]
    is_empty = 0 in around.shapes.get(source, ())
    return _compare_numbers if is_empty and around.types.get(source) == TensorProto.BOOL else None


def _compare_numbers(op: Tape, site: Site[GraphContext]) -> Results:
    numbers = op.Cast(site.x, to=TensorProto.UINT8)
    return op.Cast(op.copy(site.node, [numbers, *site.node.input[1:]])[0], to=TensorProto.BOOL)
