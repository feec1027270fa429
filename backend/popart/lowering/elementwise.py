"""Rules of elementwise operators: arithmetic, comparisons, choices, casts, bits, and identities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from popart.errors import popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import (
    FLOATS,
    Operation,
    broadcast,
    check_floats,
    check_same_types,
    chip_rule,
    match_widths,
    rule,
)
from popart.tensorinfo import from_onnx_type

_REJECTED = frozenset(
    (TensorProto.DOUBLE, TensorProto.COMPLEX64, TensorProto.COMPLEX128, TensorProto.STRING)
)
"""Types that no operator computes."""


def check_type(element: int) -> None:
    """Raise popart_exception for a type that Poplar has not."""
    if element in _REJECTED:
        name = from_onnx_type(element).name
        raise popart_exception(f"The data type {name} is not supported in Poplar")


def _operands(operation: Operation) -> tuple[Tensor, Tensor]:
    """Return two operands that may be broadcast."""
    left, right = match_widths(operation, [operation.input(0), operation.input(1)])
    check_same_types(operation, left, right)
    broadcast(operation, left.shape, right.shape)
    return left, right


@rule("Add", "Sub", "Div", "Equal", "Less", "Greater", "And", "Or", "Xor")
def _binary(operation: Operation) -> Sequence[Tensor]:
    """Operators of two operands broadcast as numpy does in every opset."""
    left, right = _operands(operation)
    return [operation.add(operation.node.op_type, left, right)]


@rule("BitShift")
def _shift(operation: Operation) -> Sequence[Tensor]:
    left, right = _operands(operation)
    direction = operation.attribute("direction", "LEFT")
    return [operation.add("BitShift", left, right, direction=direction)]


@rule("Mul")
def _multiply(operation: Operation) -> Sequence[Tensor]:
    """Half times a float of one element is half, as popops has it."""
    left, right = operation.input(0), operation.input(1)
    scalars = [each.type == TensorProto.FLOAT and each.size == 1 for each in (left, right)]
    if {left.type, right.type} == set(FLOATS) and any(scalars):
        broadcast(operation, left.shape, right.shape)
        product = operation.add("Mul", operation.in_float(left), operation.in_float(right))
        return [operation.cast(product, TensorProto.FLOAT16)]
    return [operation.add("Mul", *_operands(operation))]


@rule("Pow")
def _power(operation: Operation) -> Sequence[Tensor]:
    left, right = _operands(operation)
    return [operation.add("Pow", left, right)]


@rule("Mod")
def _modulo(operation: Operation) -> Sequence[Tensor]:
    left, right = _operands(operation)
    if operation.attribute("fmod", 0):
        return [operation.add("Mod", left, right, fmod=1)]
    return [_remainder(operation, left, right)]


@chip_rule("Fmod")
def _fmod(operation: Operation) -> Sequence[Tensor]:
    left, right = _operands(operation)
    return [operation.add("Mod", left, right, fmod=1)]


@chip_rule("Remainder")
def _remainder_rule(operation: Operation) -> Sequence[Tensor]:
    return [_remainder(operation, *_operands(operation))]


def _remainder(operation: Operation, left: Tensor, right: Tensor) -> Tensor:
    """Return the remainder that has the sign of the divisor, of floats too."""
    if left.type not in FLOATS:
        return operation.add("Mod", left, right, fmod=0)
    left_over = operation.add("Mod", left, right, fmod=1)
    zero = operation.like(0, left)
    signs = [operation.add("Less", each, zero) for each in (left_over, right)]
    differs = operation.add("Xor", *signs)
    is_zero = operation.add("Equal", left_over, zero)
    moves = operation.add("And", differs, operation.add("Not", is_zero))
    return operation.add("Where", moves, operation.add("Add", left_over, right), left_over)


@chip_rule("IncrementMod")
def _increment(operation: Operation) -> Sequence[Tensor]:
    """(x + increment) mod modulus, with the sign of the dividend."""
    x = operation.x
    added, modulus = (
        operation.like(np.float32(operation.attribute(name)), x)
        for name in ("increment", "modulus")
    )
    moved = operation.add("Add", x, added)
    return [operation.add("Mod", moved, modulus, fmod=1)]


@rule("Max", "Min", "Sum", "Mean")
def _variadic(operation: Operation) -> Sequence[Tensor]:
    tensors = match_widths(
        operation, [operation.input(place) for place in range(len(operation.inputs))]
    )
    shape: tuple[int, ...] = tensors[0].shape
    for tensor in tensors[1:]:
        check_same_types(operation, tensors[0], tensor)
        shape = broadcast(operation, shape, tensor.shape)
    if operation.node.op_type != "Sum" or tensors[0].type in FLOATS:
        return [operation.add(operation.node.op_type, *tensors)]
    total = tensors[0]
    for tensor in tensors[1:]:  # the standard adds no integers by Sum
        total = operation.add("Add", total, tensor)
    return [total]


@rule("IsInf", "IsNaN")
def _classify(operation: Operation) -> Sequence[Tensor]:
    kept = {
        name: operation.attribute(name)
        for name in ("detect_negative", "detect_positive")
        if operation.node.op_type == "IsInf"
    }
    return [operation.add(operation.node.op_type, operation.in_float(operation.x), **kept)]


@rule("ThresholdedRelu")
def _thresholded(operation: Operation) -> Sequence[Tensor]:
    """What is at most alpha becomes 0: NaN is not."""
    check_floats(operation, operation.x)
    x, zero = operation.x, operation.like(0, operation.x)
    limit = operation.like(operation.attribute("alpha", 1.0), x)
    return [operation.add("Where", operation.add("LessOrEqual", x, limit), zero, x)]


@rule("PRelu")
def _leak(operation: Operation) -> Sequence[Tensor]:
    """The slopes are broadcast as numpy does."""
    x, slope = _operands(operation)
    check_floats(operation, x, slope)
    leaked = operation.add("Mul", x, slope)
    return [operation.add("Where", operation.add("Less", x, operation.like(0, x)), leaked, x)]


@rule("Shrink")
def _shrink(operation: Operation) -> Sequence[Tensor]:
    check_floats(operation, operation.x)
    kept = {name: operation.attribute(name) for name in ("bias", "lambd")}
    return [operation.add("Shrink", operation.x, **kept)]


@rule("Where")
def _choose(operation: Operation) -> Sequence[Tensor]:
    condition = operation.input(0)
    chosen, other = match_widths(operation, [operation.input(1), operation.input(2)])
    check_same_types(operation, chosen, other)
    shape = broadcast(operation, condition.shape, chosen.shape)
    broadcast(operation, shape, other.shape)
    return [operation.add("Where", condition, chosen, other)]


@rule("Clip")
def _clip(operation: Operation) -> Sequence[Tensor]:
    """The bounds must be constants; before opset 11 they are attributes."""
    x = operation.x
    bounds: list[Tensor | None] = []
    for place, name in ((1, "min"), (2, "max")):
        if operation.version < 11:  # noqa: PLR2004
            given = operation.attribute(name)
            bounds.append(None if given is None else _bound(operation, given, x))
            continue
        if operation.optional(place) is None:
            bounds.append(None)
            continue
        value = operation.value(place)
        if value is None:
            node = operation.node
            raise popart_exception(
                f"Op {node.name}({operation.identifier}), inputs=[{node.input[0]}] currently only "
                f"supports constant min/max parameters. Input '{name}' ({node.input[place]}) has "
                "no data."
            )
        bounds.append(_bound(operation, np.ravel(value)[0], x))
    return [operation.add("Clip", x, *bounds)]


def _bound(operation: Operation, value: float, like: Tensor) -> Tensor:
    """Return a bound of a Clip; one beyond the range of half is the end of the range."""
    if like.type == TensorProto.FLOAT16:
        ends = np.finfo(np.float16)
        value = float(np.clip(value, float(ends.min), float(ends.max)))
    return operation.like(value, like)


@rule("Cast")
def _cast(operation: Operation) -> Sequence[Tensor]:
    to = operation.attribute("to")
    to = getattr(TensorProto, to) if isinstance(to, str) else int(to)
    check_type(to)
    return [operation.add("Cast", operation.x, to=to)]


@rule("Identity")
@chip_rule("Detach", "Nop", "TensorRemap", "ShapedDropout")
def _identity(operation: Operation) -> Sequence[Tensor]:
    return [operation.x]


@rule("Dropout")
def _dropout(operation: Operation) -> Sequence[Tensor | None]:
    """Inference drops nothing; the mask is true everywhere."""
    x = operation.x
    mask = operation.constant(np.ones(x.shape, np.bool_)) if operation.has_output(1) else None
    return [x, mask]


@chip_rule("Scale")
def _scale(operation: Operation) -> Sequence[Tensor]:
    factor = operation.like(np.float32(operation.attribute("scale", 1.0)), operation.x)
    return [operation.add("Mul", operation.x, factor)]


@chip_rule("ScaledAdd")
def _scaled_add(operation: Operation) -> Sequence[Tensor]:
    """scale0 * a + scale1 * b; the scales are attributes or inputs 2 and 3."""
    left, right = operation.input(0), operation.input(1)
    check_same_types(operation, left, right)
    terms = []
    for place, operand in enumerate((left, right)):
        given = operation.optional(2 + place)
        if given is None:
            factor = float(operation.attribute(f"scale{place}", 1.0))
            if factor == 1.0:
                terms.append(operand)
                continue
            given = operation.like(np.float32(factor), operand)
        terms.append(operation.add("Mul", operand, operation.cast(given, operand.type)))
    return [operation.add("Add", *terms)]


@chip_rule("Log1p")
def _log1p(operation: Operation) -> Sequence[Tensor]:
    """log(1 + x) = log(y) x / (y - 1), where y is 1 + x as it is rounded: the quotient makes up for
    what x loses. Where nothing of x is left, and at infinity, the result is x."""
    check_floats(operation, operation.x)
    x = operation.in_float(operation.x)
    one = operation.constant(np.float32(1))
    moved = operation.add("Add", x, one)
    is_same = operation.add(
        "Or",
        operation.add("Equal", moved, one),
        operation.add("Equal", x, operation.constant(np.float32(np.inf))),
    )
    rest = operation.add("Where", is_same, one, operation.add("Sub", moved, one))
    share = operation.add("Div", operation.add("Where", is_same, one, x), rest)
    found = operation.add("Mul", operation.add("Log", moved), share)
    return [operation.cast(operation.add("Where", is_same, x, found), operation.x.type)]


@chip_rule("Expm1")
def _expm1(operation: Operation) -> Sequence[Tensor]:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which loses nothing of a small x."""
    check_floats(operation, operation.x)
    x = operation.in_float(operation.x)
    half = operation.add("Mul", x, operation.constant(np.float32(0.5)))
    raised = operation.add("Add", operation.add("Exp", x), operation.constant(np.float32(1)))
    found = operation.add("Mul", operation.add("Tanh", half), raised)
    return [operation.cast(found, operation.x.type)]


@chip_rule("Atan2")
def _atan2(operation: Operation) -> Sequence[Tensor]:
    """The angle of (x, y): that of |y| / |x|, turned by half a turn if x is negative, with the sign
    of y. Zeros have signs, too; two infinities are as large as each other."""
    up, along = _operands(operation)
    check_floats(operation, up, along)
    one, zero = operation.like(1, up), operation.like(0, up)
    rise, run = operation.add("Abs", up), operation.add("Abs", along)
    is_diagonal = operation.add("Equal", rise, run)
    has_no_run = operation.add("Equal", run, zero)
    is_zero = operation.add("And", is_diagonal, has_no_run)
    divisor = operation.add("Where", operation.add("Or", is_diagonal, has_no_run), one, run)
    slope = operation.add("Div", operation.add("Where", is_diagonal, one, rise), divisor)
    angle = operation.add("Atan", slope)
    angle = operation.add("Where", has_no_run, operation.like(math.pi / 2, up), angle)
    angle = operation.add("Where", is_zero, zero, angle)
    turned = operation.add("Sub", operation.like(math.pi, up), angle)
    angle = operation.add("Where", _is_negative(operation, along), turned, angle)
    signed = operation.add("Where", _is_negative(operation, up), operation.add("Neg", angle), angle)
    # Comparisons with NaN are false, so that it has no way into what is chosen.
    unknown = operation.add("Add", up, along)
    is_unknown = operation.add(
        "Or", *(operation.add("IsNaN", operation.in_float(each)) for each in (up, along))
    )
    return [operation.add("Where", is_unknown, unknown, signed)]


def _is_negative(operation: Operation, x: Tensor) -> Tensor:
    """Return where the sign bit of a number is set: that of -0 shows in its reciprocal."""
    zero, inverse = operation.like(0, x), operation.add("Reciprocal", x)
    return operation.add("Or", operation.add("Less", x, zero), operation.add("Less", inverse, zero))


@rule("Softplus")
def _softplus(operation: Operation) -> Sequence[Tensor]:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    x = operation.x
    shrunk = operation.add("Exp", operation.add("Neg", operation.add("Abs", x)))
    rest = operation.add("Log", operation.add("Add", shrunk, operation.like(1, x)))
    return [operation.add("Add", operation.add("Max", x, operation.like(0, x)), rest)]


@chip_rule("Swish")
def _swish(operation: Operation) -> Sequence[Tensor]:
    return [operation.add("Mul", operation.x, operation.add("Sigmoid", operation.x))]


@chip_rule("GeluErf")
def _exact_gelu(operation: Operation) -> Sequence[Tensor]:
    """The chip's Gelu in the exact form."""
    check_floats(operation, operation.x)
    return [operation.add("Gelu", operation.x, domain="ai.graphcore", approximate="none")]


@rule("Round")
@chip_rule("Round")
def _round(operation: Operation) -> Sequence[Tensor]:
    """Poplar rounds halves away from zero. Half of the distance to the next number must not be
    added: large numbers, and the one below 0.5, round that sum."""
    x = operation.x
    size = operation.add("Abs", x)
    below = operation.add("Floor", size)
    grows = operation.add("Less", operation.add("Sub", size, below), operation.like(0.5, x))
    above = operation.add("Add", below, operation.like(1, x))
    rounded = operation.add("Where", grows, below, above)
    return [operation.add("Mul", operation.add("Sign", x), rounded)]


@chip_rule("NearbyInt")
def _nearby_int(operation: Operation) -> Sequence[Tensor]:
    """Halves are rounded to even."""
    return [operation.add("Round", operation.x)]


@chip_rule("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseXnor")
def _bits(operation: Operation) -> Sequence[Tensor]:
    left, right = _operands(operation)
    op_type = operation.node.op_type
    if op_type == "BitwiseXnor":
        return [operation.add("BitwiseNot", operation.add("BitwiseXor", left, right))]
    return [operation.add(op_type, left, right)]


@chip_rule("BitwiseNot")
def _bitwise_not(operation: Operation) -> Sequence[Tensor]:
    return [operation.add("BitwiseNot", operation.x)]
