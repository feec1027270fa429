"""Rules of elementwise operators: arithmetic, comparisons, choices, casts, bits, and identities."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto
from onnxgraph import Results, expansions
from onnxgraph.opsets import CLIP_TAKES_BOUNDS

from popart.errors import popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import (
    FLOATS,
    Operation,
    broadcast,
    check_floats,
    check_same_types,
    chip_rule,
    keep,
    match_widths,
    rule,
)
from popart.tensorinfo import from_onnx_type

_HALF = TensorProto.FLOAT16
_REJECTED = frozenset(
    (TensorProto.DOUBLE, TensorProto.COMPLEX64, TensorProto.COMPLEX128, TensorProto.STRING)
)
"""Types that no operator computes."""


def check_type(element: int) -> None:
    """Raise popart_exception for a type that Poplar has not."""
    if element in _REJECTED:
        name = from_onnx_type(element).name
        raise popart_exception(f"The data type {name} is not supported in Poplar")


def _operands(op: Graph, node: Operation) -> tuple[Tensor, Tensor]:
    """Return two operands that may be broadcast."""
    left, right = match_widths(op, [node.input(0), node.input(1)])
    check_same_types(node, left, right)
    broadcast(node, left.shape, right.shape)
    return left, right


@rule("Add", "Sub", "Div", "Equal", "Less", "Greater", "And", "Or", "Xor", "Pow")
@chip_rule("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _binary(op: Graph, node: Operation) -> Results:
    """Operators of two operands broadcast as numpy does in every opset."""
    return op.add(node.node.op_type, *_operands(op, node))


@chip_rule("BitwiseXnor")
def _bitwise_xnor(op: Graph, node: Operation) -> Results:
    return op.BitwiseNot(op.BitwiseXor(*_operands(op, node)))


@chip_rule("BitwiseNot")
def _bitwise_not(op: Graph, node: Operation) -> Results:
    return op.BitwiseNot(node.x)


@rule("BitShift")
def _shift(op: Graph, node: Operation) -> Results:
    return op.BitShift(*_operands(op, node), direction=node.get("direction", "LEFT"))


@rule("Mul")
def _multiply(op: Graph, node: Operation) -> Results:
    """Half times a float of one element is half, as popops has it."""
    left, right = node.input(0), node.input(1)
    scalars = [
        operand.element_type == TensorProto.FLOAT and operand.size == 1 for operand in (left, right)
    ]
    if {left.element_type, right.element_type} == set(FLOATS) and any(scalars):
        broadcast(node, left.shape, right.shape)
        product = op.in_float(left) * op.in_float(right)
        return op.cast(product, TensorProto.FLOAT16)
    return op.Mul(*_operands(op, node))


@rule("Mod")
@chip_rule("Fmod", "Remainder")
def _modulo(op: Graph, node: Operation) -> Results:
    """The remainder with the sign of the dividend (fmod) or of the divisor, of floats too."""
    left, right = _operands(op, node)
    if node.node.op_type == "Fmod" or node.get("fmod", 0):
        return op.Mod(left, right, fmod=1)
    if left.element_type not in FLOATS:
        return op.Mod(left, right, fmod=0)
    left_over = op.Mod(left, right, fmod=1)
    differs = op.Xor(op.Less(left_over, 0), op.Less(right, 0))
    moves = op.And(differs, op.Not(op.Equal(left_over, 0)))
    return op.Where(moves, left_over + right, left_over)


@chip_rule("IncrementMod")
def _increment(op: Graph, node: Operation) -> Results:
    """(x + increment) mod modulus, with the sign of the dividend."""
    moved = node.x + np.float32(node.get("increment"))
    return op.Mod(moved, np.float32(node.get("modulus")), fmod=1)


@rule("Max", "Min", "Sum", "Mean")
def _variadic(op: Graph, node: Operation) -> Results:
    tensors = match_widths(op, node.operands)
    shape: tuple[int, ...] = tensors[0].shape
    for tensor in tensors[1:]:
        check_same_types(node, tensors[0], tensor)
        shape = broadcast(node, shape, tensor.shape)
    if node.node.op_type != "Sum" or tensors[0].element_type in FLOATS:
        return op.add(node.node.op_type, *tensors)
    total = tensors[0]
    for tensor in tensors[1:]:  # the standard adds no integers by Sum
        total = total + tensor
    return total


@rule("IsInf", "IsNaN")
def _classify(op: Graph, node: Operation) -> Results:
    names = ("detect_negative", "detect_positive") if node.node.op_type == "IsInf" else ()
    attributes = {name: node.get(name) for name in names}
    return op.add(node.node.op_type, op.in_float(node.x), **attributes)


@rule("ThresholdedRelu")
def _thresholded(op: Graph, node: Operation) -> Results:
    """What is at most alpha becomes 0: NaN is not."""
    check_floats(node, node.x)
    return op.Where(op.LessOrEqual(node.x, node.get("alpha", 1.0)), 0, node.x)


@rule("PRelu")
def _leak(op: Graph, node: Operation) -> Results:
    """The slopes are broadcast as numpy does."""
    x, slope = _operands(op, node)
    check_floats(node, x, slope)
    return op.Where(op.Less(x, 0), x * slope, x)


@rule("Shrink")
def _shrink(op: Graph, node: Operation) -> Results:
    check_floats(node, node.x)
    return keep(op, node)


@rule("Where")
def _choose(op: Graph, node: Operation) -> Results:
    condition = node.input(0)
    chosen, other = match_widths(op, [node.input(1), node.input(2)])
    check_same_types(node, chosen, other)
    shape = broadcast(node, condition.shape, chosen.shape)
    broadcast(node, shape, other.shape)
    return op.Where(condition, chosen, other)


@rule("Clip")
def _clip(op: Graph, node: Operation) -> Results:
    """The bounds must be constants; before opset 11 they are attributes."""
    bounds = []
    for place, name in ((1, "min"), (2, "max")):
        if node.version < CLIP_TAKES_BOUNDS:
            bound = node.get(name)
        elif node.optional(place) is None:
            bound = None
        else:
            value = node.value(place)
            if value is None:
                title, names = node.node.name, node.node.input
                raise popart_exception(
                    f"Op {title}({node.identifier}), inputs=[{names[0]}] currently only supports "
                    f"constant min/max parameters. Input '{name}' ({names[place]}) has no data."
                )
            bound = np.ravel(value)[0]
        bounds.append(_limit_to_half(bound) if node.x.element_type == _HALF else bound)
    return op.Clip(node.x, *bounds)


def _limit_to_half(bound: float | None) -> float | None:
    """Return a bound of a Clip; one beyond the range of half is the end of the range."""
    ends = np.finfo(np.float16)
    return None if bound is None else float(np.clip(bound, float(ends.min), float(ends.max)))


@rule("Cast")
def _cast(op: Graph, node: Operation) -> Results:
    to = node.get("to")
    to = getattr(TensorProto, to) if isinstance(to, str) else int(to)
    check_type(to)
    return op.Cast(node.x, to=to)


@rule("Identity")
@chip_rule("Detach", "Nop", "TensorRemap", "ShapedDropout")
def _identity(_op: Graph, node: Operation) -> Results:
    return node.x


@rule("Dropout")
def _dropout(op: Graph, node: Operation) -> Results:
    """Inference drops nothing; the mask is true everywhere."""
    x = node.x
    mask = op.constant(np.ones(x.shape, np.bool_)) if node.has_output(1) else None
    return [x, mask]


@chip_rule("Scale")
def _scale(op: Graph, node: Operation) -> Results:
    return op.Mul(node.x, np.float32(node.get("scale", 1.0)))


@chip_rule("ScaledAdd")
def _scaled_add(op: Graph, node: Operation) -> Results:
    """scale0 * a + scale1 * b; the scales are attributes or inputs 2 and 3."""
    left, right = node.input(0), node.input(1)
    check_same_types(node, left, right)
    terms = []
    for place, operand in enumerate((left, right)):
        scale = node.optional(2 + place)
        factor = np.float32(node.get(f"scale{place}", 1.0))
        if scale is not None:
            terms.append(operand * op.cast(scale, operand.element_type))
        else:
            terms.append(operand if factor == 1 else operand * factor)
    return op.Add(*terms)


@chip_rule("Log1p")
def _log1p(op: Graph, node: Operation) -> Results:
    """log(1 + x) = log(y) x / (y - 1), where y is 1 + x as it is rounded: the quotient makes up for
    what x loses. Where nothing of x is left, and at infinity, the result is x."""
    check_floats(node, node.x)
    x = op.in_float(node.x)
    moved = x + 1
    is_same = op.Or(op.Equal(moved, 1), op.Equal(x, np.inf))
    share = op.Where(is_same, 1, x) / op.Where(is_same, 1, moved - 1)
    return op.cast(op.Where(is_same, x, op.Log(moved) * share), node.x.element_type)


@chip_rule("Expm1")
def _expm1(op: Graph, node: Operation) -> Results:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which loses nothing of a small x."""
    check_floats(node, node.x)
    x = op.in_float(node.x)
    return op.cast(op.Tanh(x * 0.5) * (op.Exp(x) + 1), node.x.element_type)


@chip_rule("Atan2")
def _atan2(op: Graph, node: Operation) -> Results:
    """The angle of (x, y): that of |y| / |x|, turned by half a turn if x is negative, with the sign
    of y. Zeros have signs, too; two infinities are as large as each other."""
    up, along = _operands(op, node)
    check_floats(node, up, along)
    rise, run = op.Abs(up), op.Abs(along)
    is_diagonal, has_no_run = op.Equal(rise, run), op.Equal(run, 0)
    divisor = op.Where(op.Or(is_diagonal, has_no_run), 1, run)
    angle = op.Atan(op.Where(is_diagonal, 1, rise) / divisor)
    angle = op.Where(has_no_run, math.pi / 2, angle)
    angle = op.Where(op.And(is_diagonal, has_no_run), 0, angle)
    angle = op.Where(_is_negative(op, along), op.Sub(math.pi, angle), angle)
    signed = op.Where(_is_negative(op, up), -angle, angle)
    # Comparisons with NaN are false, so that it has no way into what is chosen.
    is_unknown = op.Or(*(op.IsNaN(op.in_float(operand)) for operand in (up, along)))
    return op.Where(is_unknown, up + along, signed)


def _is_negative(op: Graph, x: Tensor) -> Tensor:
    """Return where the sign bit of a number is set: that of -0 shows in its reciprocal."""
    return op.Or(op.Less(x, 0), op.Less(op.Reciprocal(x), 0))


@rule("Softplus")
def _softplus(op: Graph, node: Operation) -> Results:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    return op.Max(node.x, 0) + op.Log(op.Exp(-op.Abs(node.x)) + 1)


chip_rule("Swish")(expansions.swish)


@chip_rule("GeluErf")
def _exact_gelu(op: Graph, node: Operation) -> Results:
    """The chip's Gelu in the exact form."""
    check_floats(node, node.x)
    return op.chip("Gelu", node.x, approximate="none")


@rule("Round")
@chip_rule("Round")
def _round(op: Graph, node: Operation) -> Results:
    """Poplar rounds halves away from zero. Half of the distance to the next number must not be
    added: large numbers, and the one below 0.5, round that sum."""
    size = op.Abs(node.x)
    below = op.Floor(size)
    return op.Sign(node.x) * op.Where(op.Less(size - below, 0.5), below, below + 1)


@chip_rule("NearbyInt")
def _nearby_int(op: Graph, node: Operation) -> Results:
    """Halves are rounded to even."""
    return op.Round(node.x)
