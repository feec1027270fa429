"""Rounding of a float tensor to the values of the chip's narrower types, with nodes for which ONNX
Runtime has fast kernels."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxgraph import Tape

from simipu.numerics.kernels import CHAIN, KERNELS, Rounded, StepKind, read_steps
from simipu.numerics.quarter import QuarterFormat

HALF_MAX = 65_504.0
"""Largest finite half."""
HALF_BOUNDS = ("half/least", "half/most")
"""Names of the constants to which a result is clipped before it is rounded."""
_NAN = "half/nan"
_FLOAT_MANTISSA_BITS = 23


def rounding_constants(*, nan_on_overflow: bool) -> list[onnx.TensorProto]:
    """Return the initializers that the rounding needs in the graph."""
    bounds = zip(HALF_BOUNDS, (-HALF_MAX, HALF_MAX), strict=True)
    return [
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in ([(_NAN, np.nan)] if nan_on_overflow else bounds)
    ]


def round_to_half(
    op: Tape,
    source: str,
    *,
    nan_on_overflow: bool,
    bounded: bool = False,
    growing: bool = False,
    result: str = "",
) -> str:
    """Round to half, to nearest even, and widen again.

    A value that is too large becomes the largest half, or NaN with `nan_on_overflow`. An infinity
    stays one, as on the chip, unless the operator is `growing`, whose infinity is an overflow of
    float. `bounded`: no result can be too large.
    """
    # A clipped infinity is put back at the end (Where), except if it counts as an overflow. With
    # `nan_on_overflow` a result is lost if it is infinite and, unless the operator is growing, its
    # source is not (Xor).
    clips = not (bounded or nan_on_overflow)
    clipped = op.add("Clip", source, *HALF_BOUNDS) if clips else source
    half = op.add("Cast", clipped, to=TensorProto.FLOAT16)
    if bounded or (clips and growing):
        return op.add_as(result or op.new_name(), "Cast", half, to=TensorProto.FLOAT)
    wide = op.add("Cast", half, to=TensorProto.FLOAT)
    if clips:
        infinite = op.add("IsInf", source)
        return op.add_as(result or op.new_name(), "Where", infinite, source, wide)
    lost = op.add("IsInf", wide)
    if not growing:
        lost = op.add("Xor", lost, op.add("IsInf", source))
    return op.add_as(result or op.new_name(), "Where", lost, _NAN, wide)


def round_to_quarter(
    op: Tape,
    source: str,
    quarter: QuarterFormat,
    scale: int,
    *,
    nan_on_overflow: bool,
    result: str,
) -> str:
    """Round halves, held in floats, to the values of an 8-bit format at a scale; this combines
    `encode` and `decode`.

    Adding and subtracting a large multiple leaves the leading bits, rounded to nearest even: a
    multiple of the value itself for normal values (Veltkamp's splitting, exact for the 11 bits of a
    half), a fixed one for subnormals.
    """
    # normal     grown = source * (2**(23 - m) + 1); grown - (grown - source) keeps the m + 1
    #            leading bits, because the subtraction in float drops the others
    # subnormal  anchor = 1.5 * 2**23 steps: next to it floats are one step apart, so that adding
    #            it rounds to whole steps, and subtracting it is exact; 1.5 serves both signs
    unit = 2.0**scale
    most = op.constant(quarter.largest * unit)
    if not nan_on_overflow:
        source = op.add("Clip", source, op.constant(-quarter.largest * unit), most)
    factor = op.constant(2.0 ** (_FLOAT_MANTISSA_BITS - quarter.mantissa_bits) + 1)
    grown = op.add("Mul", source, factor)
    normal = op.add("Sub", grown, op.add("Sub", grown, source))
    anchor = op.constant(1.5 * 2**_FLOAT_MANTISSA_BITS * quarter.smallest * unit)
    subnormal = op.add("Sub", op.add("Add", source, anchor), anchor)
    size = op.add("Abs", source)
    is_small = op.add("Less", size, op.constant(quarter.smallest_normal * unit))
    if not nan_on_overflow:
        return op.add_as(result, "Where", is_small, subnormal, normal)
    rounded = op.add("Where", is_small, subnormal, normal)
    lost = op.add("Greater", op.add("Abs", rounded), most)
    return op.add_as(result, "Where", lost, _NAN, rounded)


def unrounded_results(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the tensors of a lowered main graph that are about to be rounded to half and may be
    too large, with the nodes that make them."""
    makers = {name: node for node in graph.node for name in node.output}
    clipped = [node.input[0] for node in graph.node if _is_rounding(node)]
    return {name: makers[name] for name in clipped if name in makers}


def _is_rounding(node: onnx.NodeProto) -> bool:
    """Return whether a node only clips or rounds, and may find a value that is too large."""
    if node.op_type == "Clip" and node.input[1:] == list(HALF_BOUNDS):
        return True
    if node.domain != KERNELS or node.op_type != CHAIN:
        return False
    return [(step.kind, step.rounded) for step in read_steps(node)] in (
        [(StepKind.NONE, Rounded.ROUNDED)],
        [(StepKind.NONE, Rounded.GROWING)],
    )
