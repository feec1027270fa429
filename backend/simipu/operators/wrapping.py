"""Guards of integer operators whose results wrap, as the chip's integers and numpy's do.

ONNX Runtime computes powers and reductions of integers in double, and has no Gemm of integers,
which the onnx reference computes in double, too: what is beyond a type becomes its greatest or
least number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper
from onnxgraph import Results, Site, Tape, Value, attribute

from simipu.operators.entry import Body, GraphContext

_SIGNED = (TensorProto.INT32, TensorProto.INT64)
_AS_SIGNED: Mapping[int, int] = {
    TensorProto.UINT32: TensorProto.INT32,
    TensorProto.UINT64: TensorProto.INT64,
}
_PRODUCTS = (*_SIGNED, *_AS_SIGNED)
"""Integers that ONNX Runtime's MatMul multiplies."""
_WHOLE = (TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8, TensorProto.UINT16, *_PRODUCTS)
_MAX_BITS = 32
"""Bits of the largest exponent that is computed at run time: the chip has no wider integers."""


def power(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a power of integers by squaring."""
    base, exponent = (around.types.get(name) for name in node.input)
    return _raise if base in _SIGNED and exponent in _WHOLE else None


def _raise(op: Tape, site: Site[GraphContext]) -> Results:
    """Multiply the powers x^1, x^2, x^4, ... of the bits of the exponent. With a negative exponent
    the power of 1 and -1 is the same as with the positive one, that of others is cut off to 0."""
    base, exponent = site.node.input
    kind = site.facts.types[base]
    value = site.facts.value(exponent)
    numbers = [] if value is None else [int(number) for number in value.reshape(-1)]
    bits = _MAX_BITS if value is None else max(map(abs, numbers), default=0).bit_length()
    source, one = op.read(base, kind), op.like(1, kind)
    remaining = signed = op.Cast(exponent, to=TensorProto.INT64)
    # Of the shape of both operands.
    result, square = one + op.Mul(op.Cast(remaining, to=kind) + source, 0), source
    remaining = op.Abs(remaining)
    for bit in range(bits):
        square = square * square if bit else source
        is_set = op.Cast(op.Mod(remaining, 2), to=TensorProto.BOOL)
        result = result * op.Where(is_set, square, one)
        remaining = remaining / 2
    if value is None or min(numbers, default=0) < 0:
        is_unit = op.Or(op.Equal(source, 1), op.Equal(source, -1))
        is_cut = op.And(op.Less(signed, 0), op.Not(is_unit))
        result = op.Where(is_cut, op.like(0, kind), result)
    return result


def matrix_product(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a Gemm of integers with whole factors as a MatMul and an Add."""
    factors = (attribute(node, name, 1.0) for name in ("alpha", "beta"))
    is_whole = all(float(factor).is_integer() for factor in factors)
    return _multiply if around.types.get(node.input[0]) in _PRODUCTS and is_whole else None


def _multiply(op: Tape, site: Site[GraphContext]) -> Results:
    element_type = site.facts.types[site.node.input[0]]
    # The bits of a product are the same with signs, which ONNX Runtime's MatMul of no terms needs.
    kind = _AS_SIGNED.get(element_type, element_type)
    operands = [
        op.Cast(name, to=kind) if name and kind != element_type else name
        for name in site.node.input
    ]
    left, right = (
        op.Transpose(name, perm=[1, 0]) if site.get(is_turned, 0) else name
        for name, is_turned in zip(operands, ("transA", "transB"), strict=False)
    )
    result = _scale(op, op.read(op.MatMul(left, right), kind), site.get("alpha", 1.0), kind)
    if site.optional(2) is not None and site.get("beta", 1.0):
        result = result + _scale(op, op.read(operands[2], kind), site.get("beta", 1.0), kind)
    return result if kind == element_type else op.Cast(result, to=element_type)


def _scale(op: Tape, value: Value, factor: float, kind: int) -> Value:
    if factor == 1:
        return value
    bits = 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize
    wrapped = (int(factor) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    return value * op.like(wrapped, kind)


def reduction(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Compute a reduction of 32 bits in int64, and a product by halves of its axes."""
    if around.types.get(node.input[0]) not in (TensorProto.INT32, TensorProto.UINT32):
        return None
    if node.op_type not in _BY_AXES:
        return _add_up_wide
    axes, shape = _find_axes(node, around), around.shapes.get(node.input[0])
    is_known = axes is not None and shape is not None and all(shape[axis] for axis in axes)
    return _BY_AXES[node.op_type] if is_known else None


def _find_axes(node: onnx.NodeProto, around: GraphContext) -> list[int] | None:
    """Return the axes of a reduction, counted from the front, or None if they are not known."""
    rank, name = around.ranks.get(node.input[0]), node.input[1] if len(node.input) > 1 else ""
    value = around.value(name) if name else None
    if rank is None or (name and value is None):
        return None
    axes = attribute(node, "axes") or ([] if value is None else value.tolist())
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        return None
    return sorted({axis % rank for axis in axes} if axes else range(rank))


def _add_up_wide(op: Tape, site: Site[GraphContext]) -> Results:
    """Return the lower bits of sums, which ONNX Runtime computes up to 2^53. Squares are cut to 32
    bits first, as numbers without a sign."""
    node = site.node
    source, *axes = node.input
    if node.op_type == "ReduceSumSquare":
        signed = op.Cast(source, to=TensorProto.INT32)
        source = op.Cast(signed * signed, to=TensorProto.UINT32)
    results = op.copy(node, [op.Cast(source, to=TensorProto.INT64), *axes])
    if node.op_type == "ReduceSumSquare":
        op.nodes[-1].op_type = "ReduceL1"
    return op.Cast(results[0], to=site.facts.types[node.input[0]])


def _average(op: Tape, site: Site[GraphContext]) -> Results:
    """Return a sum over its number of terms, cut off."""
    axes = _find_axes(site.node, site.facts) or []
    value = op.Cast(site.x, to=TensorProto.INT64)
    total = op.ReduceSum(value, axes=axes, keepdims=site.get("keepdims", 1)) if axes else value
    count = math.prod(site.facts.shapes[site.node.input[0]][axis] or 1 for axis in axes)
    mean = op.Div(total, op.ints(count))
    return op.Cast(mean, to=site.facts.types[site.node.input[0]])


def _multiply_up(op: Tape, site: Site[GraphContext]) -> Results:
    """Multiply both halves of each axis until one element is left:

    a b c d e  ->  a*c b*d, e  ->  a*c*b*d, e  ->  a*c*b*d*e
    """
    axes = _find_axes(site.node, site.facts) or []
    result = op.Cast(site.node.input[0], to=TensorProto.INT32)
    for axis in axes:
        size = site.facts.shapes[site.node.input[0]][axis] or 1
        odd: list[Value] = []
        while size > 1:
            half = size // 2
            first, second = (_cut(op, result, axis, start, half) for start in (0, half))
            if size % 2:
                odd.append(_cut(op, result, axis, size - 1, 1))
            result, size = first * second, half
        for value in odd:
            result = result * value
    if axes and not site.get("keepdims", 1):
        result = op.Squeeze(result, axes=axes)
    return op.Cast(result, to=site.facts.types[site.node.input[0]])


def _cut(op: Tape, value: Value, axis: int, start: int, size: int) -> Value:
    part = op.Slice(value, starts=[start], ends=[start + size], axes=[axis])
    return op.read(part, TensorProto.INT32)


_BY_AXES: Mapping[str, Body] = {"ReduceMean": _average, "ReduceProd": _multiply_up}
"""Reductions that are written apart for their axes, with their bodies. The entries of both have the
guard of the other reductions, which asks here."""
