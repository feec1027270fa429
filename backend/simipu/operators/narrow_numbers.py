"""Operators on numbers that are stored as codes: 4-bit weights, and 8-bit floats in bytes.

PopTransformer (graphcore/PopTransformer, custom_ops) publishes their behaviour:
int4_to_half_codelets.cpp, cast_to_uint8.cpp and matmul_fp8.cpp are the source of this file. Its
product keeps sums in half. This project keeps them in float and rounds once.
`simipu.numerics.quarter` defines the 8-bit formats; tests check that the bodies here agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxgraph import CHIP_DOMAIN, Results, Site, Tape, Value, register_stand_in

from simipu.operators.attributes import read_choice, read_size, refuse
from simipu.operators.entry import GraphContext, Operator, Rounding, Shapes
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas import products
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.formulas.work import Context, Work
from simipu.operators.rules import computing as rows

_NIBBLE = 16
_SIGNED_NIBBLE = 8
_CODES, _NAN_CODE, _SIGN, _LARGEST = 256, 128.0, 128.0, 127.0
_SAFETY = 1e-3
"""Value added to a logarithm, so that rounding errors never place a power of two below itself. A
value so close below a power of two rounds up to it in either case."""
_INT4 = InnerLoop(10, 4)
"""Loop of GetInt4ToHalf1: it reads two bytes, looks up two pairs of halves, stores four halves
(counted from the published C++; a compiler may do better)."""
_RANK = 2
"""Rank of 4-bit weights."""


@dataclass(frozen=True, slots=True)
class Codes:
    """One of the two 8-bit formats: sign, exponent with its bias, mantissa, in the terms of
    `simipu.numerics.quarter`."""

    mantissa_bits: int
    bias: int

    def values(self) -> npt.NDArray[np.float32]:
        """Return the values of all codes."""
        # (hidden bit + mantissa) * 2**(max(exponent, 1) - bias - mantissa_bits); no hidden bit at
        # exponent 0. The second half of the codes has the sign bit.
        codes = np.arange(_CODES // 2)
        exponents, mantissas = codes >> self.mantissa_bits, codes % (1 << self.mantissa_bits)
        significands = mantissas + np.where(exponents > 0, 1 << self.mantissa_bits, 0)
        values = np.ldexp(
            significands.astype(np.float64),
            np.maximum(exponents, 1) - self.bias - self.mantissa_bits,
        )
        both: npt.NDArray[np.float32] = np.concatenate([values, -values]).astype(np.float32)
        both[int(_NAN_CODE)] = np.nan
        return both

    def decode(self, op: Tape, source: str, scale: str) -> Value:
        """Add nodes that compute the values of codes at a scale, and return the result.
        `scale` is a tensor whose first element is the exponent of a power of two."""
        places = op.Cast(source, to=TensorProto.INT32)
        return op.Mul(op.Gather(op.constant(self.values()), places, axis=0), _power(op, scale))

    def encode(self, op: Tape, source: str, scale: str) -> Value:
        """Add nodes that compute codes as floats: the nearest code, with ties to the even one.
        Values that are too large become the largest code, NaN 0x80. Return the result.

        With e the exponent, at least that of the smallest normal value, and m = |x| / 2^(e - bits)
        rounded, the code is (e + bias - 1) * 2^bits + m. A carry out of m increments the exponent,
        as it must.
        """
        scaled = op.Div(source, _power(op, scale))
        size = op.Abs(scaled)
        least = op.constant(2.0 ** (1 - self.bias))
        normal = op.Where(op.Less(size, least), least, size)
        exponent = op.Floor(op.Log(normal) / np.log(2.0) + _SAFETY)
        step = exponent - self.mantissa_bits
        # Two factors, so that neither power exceeds the range of float.
        half_step = op.Floor(step * 0.5)
        shrunk = size / _pow2(op, half_step)
        mantissa = op.Round(shrunk / _pow2(op, step - half_step))
        code = (exponent + (self.bias - 1)) * 2.0**self.mantissa_bits + mantissa
        largest, zero = op.constant(_LARGEST), op.constant(0.0)
        code = op.Where(op.Less(code, largest), code, largest)
        is_negative = op.And(op.Less(scaled, zero), op.Greater(code, zero))
        signed = op.Where(is_negative, code + _SIGN, code)
        return op.Where(op.IsNaN(scaled), op.constant(_NAN_CODE), signed)


FORMATS: Mapping[str, Codes] = MappingProxyType({"F143": Codes(3, 8), "F152": Codes(2, 16)})
"""The 8-bit formats by name, the default first."""


def _pow2(op: Tape, exponent: Value) -> Value:
    return op.Pow(2.0, exponent)


def _power(op: Tape, scale: str) -> Value:
    """Add nodes that raise 2 to the first element of a tensor of whole numbers, and return the name
    of the scalar."""
    flat = op.add("Reshape", scale, op.ints([-1]))
    first = op.add("Gather", flat, op.constant(0, np.int64))
    return _pow2(op, op.add("Cast", first, to=TensorProto.FLOAT))


def _format(node: onnx.NodeProto, name: str) -> Codes:
    return FORMATS[read_choice(node, name, tuple(FORMATS))]


def _to_bytes(op: Tape, site: Site[GraphContext]) -> Results:
    codes = _format(site.node, "fp8Format").encode(op, site.x, site.input(1))
    return op.Cast(codes, to=TensorProto.UINT8)


def _product(op: Tape, site: Site[GraphContext]) -> Results:
    """Add the product of two tensors of codes. A left operand in half is used unchanged."""
    left, right, left_scale, right_scale = map(site.input, range(4))
    if left.element_type == TensorProto.UINT8:
        left = _format(site.node, "fp8FormatLHS").decode(op, left, left_scale)
    wide = _format(site.node, "fp8FormatRHS").decode(op, right, right_scale)
    return op.MatMul(left, wide)


def _from_nibbles(op: Tape, site: Site[GraphContext]) -> Results:
    """Add nodes that widen signed 4-bit numbers. The high and low 4 bits of a byte follow one
    another along `axis`."""
    #  7        4 3        0
    # +----------+----------+      both signed, -8 to 7. The byte is read as int8, so that floor of
    # |   high   |   low    |      byte / 16 has the high number's sign; of the low one, 8 to 15
    # +----------+----------+      stand for -8 to -1.
    scale, both = (
        op.Cast(site.input(1), to=TensorProto.FLOAT),
        op.Cast(site.x, to=TensorProto.FLOAT),
    )
    high = op.Floor(both / _NIBBLE)
    low = both - high * _NIBBLE
    low = op.Where(op.Less(low, _SIGNED_NIBBLE), low, low - _NIBBLE)
    axis = _read_axis(site.node)
    apart = op.ints([0, 0, 1] if axis else [0, 1, -1])
    pair = op.Concat(*(op.Reshape(numbers, apart) for numbers in (high, low)), axis=axis + 1)
    if axis:
        wide = op.Transpose(op.Reshape(pair, op.ints([0, -1])), perm=[1, 0])
    else:
        wide = op.Reshape(pair, op.Concat(op.ints([-1]), op.Shape(scale), axis=0))
    return op.Mul(wide, scale)


def _result_type(node: onnx.NodeProto) -> int:
    """Return half, the chip's type. While a model in half is converted in float, the attribute
    `dataType`, an extension of this project, gives the type."""
    is_half = read_choice(node, "dataType", ("FLOAT16", "FLOAT")) == "FLOAT16"
    return int(TensorProto.FLOAT16 if is_half else TensorProto.FLOAT)


def _read_axis(node: onnx.NodeProto) -> int:
    axis = read_size(node, "axis", 0, 0)
    if axis > 1:
        raise refuse(node, f"attribute 'axis': expected 0 or 1, found {axis}")
    return axis


def _find_scale_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    """Return what is wrong with the scales, of which each must be one number, or with the
    formats."""
    for name, shape in list(zip(node.input, shapes, strict=True))[len(node.input) // 2 :]:
        if shape is not None and int(np.prod(shape)) < 1:
            return f"expected one number as the scale {name!r}, found {list(shape)}"
    for format_name in ("fp8Format", "fp8FormatLHS", "fp8FormatRHS"):
        read_choice(node, format_name, tuple(FORMATS))
    return ""


def _find_nibble_fault(node: onnx.NodeProto, shapes: Shapes) -> str:
    weights, scale, axis = shapes[0], shapes[1], _read_axis(node)
    if weights is None or scale is None:
        return ""
    if len(weights) != _RANK:
        return f"expected weights of two axes, found {list(weights)}"
    expected = (weights[1 - axis],)
    return "" if scale == expected else f"expected a scale {list(expected)}, found {list(scale)}"


def _widen(context: Context) -> Work:
    """Return the cost of looking up each byte and of moving it to the place where a product reads
    its weights."""
    return moves.move(context).plus(context.pass_over(context.result, _INT4), steps=1)


@register_stand_in(CHIP_DOMAIN, "CastToUint8WithoutShapeInfer")
def _stand_in_for_bytes(op: Tape, site: Site[Any]) -> Results:
    return op.Cast(site.x, to=TensorProto.UINT8)


@register_stand_in(CHIP_DOMAIN, "FP8MatMulWithoutShapeInfer")
def _stand_in_for_product(op: Tape, site: Site[Any]) -> Results:
    to = _result_type(site.node)
    return op.MatMul(*(op.Cast(name, to=to) for name in site.node.input[:2]))


@register_stand_in(CHIP_DOMAIN, "Int4ToHalf")
def _stand_in_for_nibbles(op: Tape, site: Site[Any]) -> Results:
    wide = op.Cast(site.x, to=_result_type(site.node))
    if _read_axis(site.node):
        wide = op.Transpose(wide, perm=[1, 0])
    return op.Concat(wide, wide, axis=0)


CODES: Mapping[str, Operator] = MappingProxyType(
    {
        "CastToUint8WithoutShapeInfer": Operator(
            rows=rows.elementwise,
            cost=ew.cast,
            body=_to_bytes,
            fault=_find_scale_fault,
            rounding=Rounding.EXACT,
            meaning="the 8-bit codes of its input at a scale, the power of two that its second "
            "input is (fp8Format F143 or F152); what is too large becomes the largest",
        ),
        "FP8MatMulWithoutShapeInfer": Operator(
            rows=rows.matmul,
            apart=(0, 1),
            cost=products.matmul,
            body=_product,
            fault=_find_scale_fault,
            data_type=b"FLOAT16",
            meaning="the product of two tensors of 8-bit codes at scales, in half; the left one "
            "may be half itself. Sums are kept in float and rounded once, which is ours",
        ),
        "Int4ToHalf": Operator(
            whole_batch="it is made for weights",
            cost=_widen,
            body=_from_nibbles,
            fault=_find_nibble_fault,
            data_type=b"FLOAT16",
            meaning="weights of two signed 4-bit numbers a byte, the high one first, as halves: "
            "[n, m] with axis 0 as [2n, m] and a scale [m], with axis 1 as [2m, n] and a scale "
            "[n]. The third input and `remap` are about layout only",
        ),
    }
)
