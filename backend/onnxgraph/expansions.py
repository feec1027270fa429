"""Operators of the standard written as other operators: one expansion each, for every room that
meets an opset, a compiler or a runtime without the operator.

`simipu.numerics.functions` has formulas of its own for some of these: they are longer, and within
0.501 units in the last place of a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgraph.opsets import GELU_EXISTS, SOFTMAX_HAS_ONE_AXIS
from onnxgraph.tape import Expansion, Results, Site, Tape, Value

EPSILON = 1e-5
"""Default of the standard's norms."""
TANH_FACTOR, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
"""Constants of Gelu's tanh form: x / 2 (1 + tanh(factor (x + cube x^3))) (Hendrycks and Gimpel)."""
_SIX = 6
"""Divisor in HardSwish, which is x * min(max(x / 6 + 1/2, 0), 1)."""

EXPANSIONS: dict[str, tuple[int, Expansion]] = {}
"""Expansions of the standard's operators by name, each with the opset that introduced the operator.
This room knows opsets; the operators' entries, in a room above, hold for all of them."""


def _expands(since: int, *op_types: str) -> Callable[[Expansion], Expansion]:
    """Register the expansion of operators that opset `since` introduced."""

    def register(expansion: Expansion) -> Expansion:
        EXPANSIONS.update(dict.fromkeys(op_types, (since, expansion)))
        return expansion

    return register


@_expands(GELU_EXISTS, "Gelu")
def gelu(op: Tape, node: Site[Any]) -> Value:
    """Gelu, exact or in its tanh form, as exporters write it."""
    return _gelu(op, node.x, is_tanh=node.get("approximate", "none") == "tanh")


def fast_gelu(op: Tape, node: Site[Any]) -> Value:
    """ONNX Runtime's FastGelu: Gelu's tanh form of the input and its bias."""
    bias = node.optional(1)
    return _gelu(op, node.x if bias is None else node.x + bias, is_tanh=True)


def _gelu(op: Tape, x: Value, *, is_tanh: bool) -> Value:
    # The half comes first: twice the input can exceed the largest number.
    half = x * 0.5
    if is_tanh:
        gate = op.Tanh((x + x * x * x * TANH_CUBE) * TANH_FACTOR)
    else:
        gate = op.Erf(x / math.sqrt(2))
    return half * (gate + 1)


@_expands(12, "Celu")
def celu(op: Tape, node: Site[Any]) -> Value:
    """Celu as alpha * Elu(x / alpha)."""
    alpha = op.like(node.get("alpha", 1.0), node.x.element_type)
    return op.Mul(op.Elu(node.x / alpha, alpha=1.0), alpha)


@_expands(14, "HardSwish")
def hard_swish(op: Tape, node: Site[Any]) -> Value:
    """HardSwish as x * HardSigmoid(x)."""
    return node.x * op.HardSigmoid(node.x, alpha=1 / _SIX, beta=0.5)


@_expands(18, "Mish")
def mish(op: Tape, node: Site[Any]) -> Value:
    """Mish as x * tanh(softplus(x))."""
    return node.x * op.Tanh(op.Softplus(node.x))


@_expands(24, "Swish")
def swish(op: Tape, node: Site[Any]) -> Value:
    """Swish as x * sigmoid(alpha * x)."""
    alpha = node.get("alpha", 1.0)
    return node.x * op.Sigmoid(node.x if alpha == 1 else node.x * alpha)


@_expands(12, "GreaterOrEqual", "LessOrEqual")
def greater_or_equal(op: Tape, node: Site[Any]) -> Value:
    """GreaterOrEqual and LessOrEqual as the strict comparison, or Equal. Of NaN that is false, as
    the standard requires."""
    strict = op.add(node.node.op_type.removesuffix("OrEqual"), *node.node.input)
    return op.Or(strict, op.Equal(*node.node.input))


def softmax(op: Tape, node: Site[Any]) -> Value:
    """Softmax, LogSoftmax and Hardmax along one axis, in every opset, and the chip's SoftmaxV2 and
    V3.

    Older opsets take the axis and all axes behind it as one, which is the same for the last axis:
    other axes are moved there.
    """
    op_type = node.node.op_type.rstrip("V23")
    rank = node.facts.rank(node.node.input[0]) or 0
    axis = int(node.get("axis", -1))
    along = axis % max(1, rank)
    if op.opset >= SOFTMAX_HAS_ONE_AXIS or along == rank - 1:
        return op.add(op_type, node.x, axis=along if rank else axis)
    order = list(range(rank))
    order[along], order[-1] = order[-1], order[along]
    turned = op.add(op_type, op.Transpose(node.x, perm=order), axis=rank - 1)
    return op.Transpose(turned, perm=order)


@_expands(17, "LayerNormalization")
def layer_norm(op: Tape, node: Site[Any]) -> Results:
    """LayerNormalization as mean, variance and so on, as exporters write it, in float where the
    standard requires it. Results 1 and 2 are the mean and the inverse deviation."""
    wide, axes = _widen(op, node), _last_axes(node)
    mean = op.ReduceMean(wide, axes=axes)
    centred = wide - mean
    variance = op.ReduceMean(op.Pow(centred, 2), axes=axes)
    deviation = op.Sqrt(variance + node.get("epsilon", EPSILON))
    inverse = op.Reciprocal(deviation) if node.has_output(2) else None
    result = op.Mul(_narrow(op, centred / deviation, node), node.input(1))
    bias = node.optional(2)
    return [result if bias is None else result + bias, mean, inverse]


@_expands(23, "RMSNormalization")
def rms_norm(op: Tape, node: Site[Any]) -> Value:
    """RMSNormalization as x / sqrt(mean(x * x) + epsilon) * scale."""
    wide = _widen(op, node)
    mean = op.ReduceMean(wide * wide, axes=_last_axes(node))
    root = op.Sqrt(mean + node.get("epsilon", EPSILON))
    return op.Mul(_narrow(op, wide / root, node), node.input(1))


def _is_widened(node: Site[Any]) -> bool:
    """Return whether a norm of halves is computed in float."""
    is_half = node.x.element_type == TensorProto.FLOAT16
    return is_half and node.get("stash_type", TensorProto.FLOAT) == TensorProto.FLOAT


def _widen(op: Tape, node: Site[Any]) -> Value:
    return op.Cast(node.x, to=TensorProto.FLOAT) if _is_widened(node) else node.x


def _narrow(op: Tape, value: Value, node: Site[Any]) -> Value:
    return op.Cast(value, to=TensorProto.FLOAT16) if _is_widened(node) else value


def _last_axes(node: Site[Any]) -> list[int]:
    """Return the node's axis and all axes behind it, counted from the end."""
    axis = node.get("axis", -1)
    return list(range(axis - node.rank() if axis >= 0 else axis, 0))


def group_norm(op: Tape, node: Site[Any], *, scales_groups: bool = False) -> Results:
    """GroupNormalization, the standard's and the chip's, as an InstanceNormalization with groups as
    channels, then scales and biases.

    They are of channels; of groups in opsets 18 to 20 (`scales_groups`). Results 1 and 2, which the
    chip's operator has, are the mean and the inverse deviation of each group. All operators keep
    their form in every opset, and none depends on the rank.
    """
    groups, epsilon = int(node.get("num_groups", 1)), node.get("epsilon", EPSILON)
    grouped = op.Reshape(node.x, op.ints([0, groups, -1]))
    statistics: list[Value | None] = [None, None]
    if node.has_output(1) or node.has_output(2):
        mean = op.GlobalAveragePool(grouped)
        centred = grouped - mean
        inverse = op.Reciprocal(op.Sqrt(op.GlobalAveragePool(centred * centred) + epsilon))
        statistics = [op.Reshape(value, op.ints([-1])) for value in (mean, inverse)]
    normed = op.InstanceNormalization(grouped, np.ones(groups), np.zeros(groups), epsilon=epsilon)
    if not scales_groups:
        sizes = op.ints([0]), op.Shape(node.input(1)), op.ints([-1])
        normed = op.Reshape(normed, op.Concat(*sizes, axis=0))
    scale, bias = (op.Reshape(node.input(place), op.ints([-1, 1])) for place in (1, 2))
    return [op.Reshape(normed * scale + bias, op.Shape(node.x)), *statistics]


def vector_product(op: Tape, node: Site[Any]) -> Value:
    """Product of a vector and a matrix as one of two matrices."""
    left, right = node.input(0), node.input(1)
    if node.rank(0) == 1:
        product = op.MatMul(op.Unsqueeze(left, axes=[0]), right)
        return op.Squeeze(product, axes=[node.rank(1) - 2])
    product = op.MatMul(left, op.Unsqueeze(right, axes=[1]))
    return op.Squeeze(product, axes=[node.rank(0) - 1])
