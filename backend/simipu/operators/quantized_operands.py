"""Guards of quantised operators. ONNX Runtime's optimisers replace an operator between
DequantizeLinear and QuantizeLinear by one of 8-bit numbers. The integer products are exact. Some of
the others differ from the float operator by one step of the scale, which later operators enlarge;
these stay floats.

    Add -> QuantizeLinear  =  Add -> Identity -> QuantizeLinear

Products of moved tensors of int8 get a pair of their own (`paired`).

The Identity copies nothing. Optimisers do not look through it, and the one that removes it is left
out (`numerics.optimisers.QUANTISED`). A Reshape would not do: pairs are moved across it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import Results, Site, Tape, Value, attribute
from onnxgraph.opsets import GEMM_BIAS_IS_OPTIONAL, QUANTIZE_HAS_TYPE

from simipu.operators.entry import Body, GraphContext

_SCALE, _ZERO_POINT = 1, 2
"""Inputs of QuantizeLinear and DequantizeLinear."""
_BIAS = 2
"""Input of Gemm."""
_SCALE_BOUND = 1e-5
"""Relative distance of a bias's scale from the product of the others', which quantisers round."""
_TYPE = "output_dtype"
_INEXACT = ("Add", "AveragePool", "Mul", "Softmax")
"""Operators whose 8-bit counterparts of ONNX Runtime round a value between two codes in another
direction, or (Softmax) exponentials to a table's entries. No field of the entries: only the guard
below asks, and entries are made with it."""

_PASSED: Mapping[str, bool] = {
    **dict.fromkeys("Flatten Reshape Squeeze Transpose Unsqueeze".split(), True),
    **dict.fromkeys(
        (
            "Cast Clip DepthToSpace Div Dropout Expand Gather Identity MaxPool Pad Relu Slice "
            "SpaceToDepth Sub Tile"
        ).split(),
        False,
    ),
}
"""Operators that optimisers remove in front of a QuantizeLinear, or move it across, with whether
they only move each element of one tensor. No field of the entries: a question of the guards
below."""
_MAX_SCALE = 2.0**96
"""Largest common scale, and 1 by the least: times a code of 16 bits it is finite."""


def are_common_scales(scales: NDArray[Any]) -> bool:
    """Return whether numbers of all codes are finite with these scales, and become the codes again
    when they are quantised."""
    sizes = np.abs(scales.astype(np.float64))
    return bool(((sizes >= 1 / _MAX_SCALE) & (sizes <= _MAX_SCALE)).all())


def quantized(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return a body for a QuantizeLinear whose operand has to stay a float, or whose type is given
    twice, which no optimiser of ONNX Runtime keeps up to date (`output_dtype`)."""
    is_typed = bool(attribute(node, _TYPE, 0)) and around.type(node.input[0]) == TensorProto.FLOAT
    return _quantize_float if is_typed or _is_inexact(node, around) else None


def write_quantize(
    op: Tape, node: onnx.NodeProto, around: GraphContext, zero_point: Value | None = None
) -> list[Value]:
    """Write a QuantizeLinear, or one to another type, whose zero point is given."""
    source, scale = node.input[0], node.input[_SCALE]
    if _is_inexact(node, around):
        source = op.Identity(source)
    number = attribute(node, _TYPE, 0)
    if zero_point is None and len(node.input) > _ZERO_POINT and node.input[_ZERO_POINT]:
        zero_point = op.read(node.input[_ZERO_POINT])
    if zero_point is None and number:
        zero = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(number)))
        zero_point = op.ConstantOfShape(op.Shape(scale), value=zero)
    inputs = [source, scale] if zero_point is None else [source, scale, zero_point]
    return op.copy(node, inputs, without=[_TYPE])


def _is_inexact(node: onnx.NodeProto, around: GraphContext) -> bool:
    maker = around.makers.get(node.input[0])
    while maker is not None and maker.op_type in _PASSED:
        maker = around.makers.get(maker.input[0])
    return maker is not None and maker.op_type in _INEXACT and not maker.domain


def _quantize_float(op: Tape, site: Site[GraphContext]) -> Results:
    return write_quantize(op, site.node, site.facts)


def biased(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return a body for a quantised Gemm with a bias whose scale is not that of the sums: ONNX
    Runtime's product of integers adds the codes of the bias to the sums."""
    if len(node.input) <= _BIAS:
        return None
    sources = [_find_dequantized(name, around) for name in node.input]
    scales = [around.stored(source.input[_SCALE]) for source in sources if source is not None]
    has_bias = len(scales) == len(sources)
    if (has_bias and _is_scale_of_sums(*scales)) or len(scales) < _BIAS:
        return None
    if around.opset >= GEMM_BIAS_IS_OPTIONAL and attribute(node, "beta", 1.0) == 1:
        return _add_bias_behind
    return partial(_keep_float, place=_BIAS) if has_bias else None


def summed(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return a body for an Add of a dequantized bias of 32 bits: ONNX Runtime makes it the bias of
    a product in front, whatever its scale."""
    for place, name in enumerate(node.input):
        maker = around.makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        if around.type(maker.input[0]) == TensorProto.INT32:
            return partial(_keep_float, place=place)
    return None


def _is_scale_of_sums(
    left: NDArray[np.float32] | None,
    right: NDArray[np.float32] | None,
    bias: NDArray[np.float32] | None,
) -> bool:
    """Return whether a bias has the scale of the sums of products; a zero point of 32 bits is 0."""
    if left is None or right is None or bias is None:
        return False
    with np.errstate(all="ignore"):
        return np.allclose(bias, left.ravel() * right.ravel(), rtol=_SCALE_BOUND, atol=0)


def _add_bias_behind(op: Tape, site: Site[GraphContext]) -> Results:
    # A product without a Q behind it stays one of integers, with a float result.
    (product,) = op.copy(site.node, site.node.input[:_BIAS])
    return product + site.input(_BIAS)


def _keep_float(op: Tape, site: Site[GraphContext], place: int) -> Results:
    inputs = [*site.node.input]
    inputs[place] = op.Identity(inputs[place])
    return op.copy(site.node, inputs)


def paired(node: onnx.NodeProto, around: GraphContext) -> Body | None:
    """Return a body for a product of dequantized tensors of int8 that are moved before:

        DequantizeLinear -> Reshape  ->  QuantizeLinear -> DequantizeLinear  -> MatMul

    The pair changes no number. With it ONNX Runtime finds a product of integers. Up to opset 20 its
    optimisers add the pair; later they add one that does not load (docs/upstream.md).
    """
    if around.opset < QUANTIZE_HAS_TYPE or around.saturates(node):
        return None
    sources = [_find_dequantized(name, around) for name in node.input[:_BIAS]]
    if None in sources:
        return None
    moved = {
        name: source
        for name, source in zip(node.input, sources, strict=False)
        if source is not None and source.output[0] != name and _has_common_scale(source, around)
    }
    return partial(_pair, moved=moved) if moved else None


def _find_dequantized(name: str, around: GraphContext) -> onnx.NodeProto | None:
    """Return the DequantizeLinear that a tensor comes from, moved or not."""
    maker = around.makers.get(name)
    while maker is not None and _PASSED.get(maker.op_type, False):
        maker = around.makers.get(maker.input[0])
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _has_common_scale(node: onnx.NodeProto, around: GraphContext) -> bool:
    """Return whether a tensor of int8 has a zero point and one scale, of a size with which numbers
    are finite and become their codes again."""
    if around.type(node.input[0]) != TensorProto.INT8 or len(node.input) <= _ZERO_POINT:
        return False
    scale = around.stored(node.input[_SCALE])
    return scale is not None and scale.size == 1 and scale.ndim <= 1 and are_common_scales(scale)


def _pair(op: Tape, site: Site[GraphContext], moved: Mapping[str, onnx.NodeProto]) -> Results:
    inputs = [*site.node.input]
    for place, name in enumerate(inputs):
        if name in moved:
            parameters = moved[name].input[_SCALE:]
            codes = op.QuantizeLinear(name, *parameters)
            inputs[place] = op.DequantizeLinear(codes, *parameters)
    return op.copy(site.node, inputs)
