"""Operators that look at each element by itself: a vertex over the elements of a tile (section 4), and what
is guessed of operators without a formula."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxgraph import Value

from simipu.operators.formulas.vertices import BINARY_START, BROADCAST_START, UNARY_START, InnerLoop
from simipu.operators.formulas.work import Context, Work, is_wide

QUARTER_VECTOR = 8
"""Elements of a 64-bit store of quarters."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One pass over the elements, two operands at a time: the inner loop for halves, and that for floats."""

    half: InnerLoop
    single: InnerLoop
    broadcasts: bool = False
    """Whether popops has a faster vertex for an operand that is a vector or a scalar."""

    def __call__(self, context: Context) -> Work:
        """The work of a node."""
        if self.broadcasts and is_broadcast(context):
            return BROADCAST.spread(context, BROADCAST_START)
        return self.spread(context)

    def loop(self, value: Value) -> InnerLoop:
        """By the width of a tensor."""
        return self.single if is_wide(value) else self.half

    def spread(self, context: Context, start: int = 0) -> Work:
        """As many passes as there are operands after the first."""
        start = start or (UNARY_START if len(context.node.input) == 1 else BINARY_START)
        passes = max(1, sum(value is not None for value in context.inputs) - 1)
        cycles = context.pass_over(context.result, self.loop(context.source), start)
        return context.spread("elementwise", passes * cycles)


BROADCAST = Elementwise(InnerLoop(2, 4), InnerLoop(2, 2))
"""Adding or multiplying a vector or a scalar."""
_DIVISION = Elementwise(InnerLoop(21, 4), InnerLoop(10, 2))
_CAST = Elementwise(InnerLoop(4, 4), InnerLoop(4, 4))


def is_broadcast(context: Context) -> bool:
    """Whether an operand is smaller than the result."""
    return min(value.size for value in context.inputs if value) < context.result.size


def divide(context: Context) -> Work:
    """PopRT multiplies by the inverse of a divisor that it knows (its pass replace_div_with_mul)."""
    if is_broadcast(context) and context.is_constant(1):
        return BROADCAST.spread(context, BROADCAST_START)
    return _DIVISION(context)


def power(context: Context) -> Work:
    """Any exponent: poplibs has no faster way for one that is known."""
    loop = InnerLoop(context.calibration.pow_cycles, 1)
    return Elementwise(loop, loop)(context)


def is_quarter_cast(context: Context) -> bool:
    """Whether it is a Cast from or to fp8, which alone has a scale. Not done at compile time: fp8 weights are
    to stay small."""
    return context.node.op_type == "Cast" and context.attribute("scale", None) is not None


def cast(context: Context) -> Work:
    """To or from 8 bits a vertex of its own."""
    if is_quarter_cast(context) or (context.result.bytes_per_element == 1 and not is_wide(context.source)):
        return context.spread("elementwise", quarter_cast_cycles(context.result, context))
    return _CAST(context)


def quarter_cast_cycles(value: Value, context: Context) -> float:
    """Of narrowing halves to fp8, or widening them."""
    return context.pass_over(value, InnerLoop(context.calibration.fp8_cast_cycles, QUARTER_VECTOR))


def guess(context: Context) -> Work:
    """Of an operator without a formula, said to be one: dear passes over the largest operand and the result,
    which both change their place."""
    loop = InnerLoop(context.calibration.guess_cycles_per_element, 1)
    compute = context.pass_over(context.source, loop) + context.pass_over(context.result, loop)
    moved = context.bytes_per_tile(context.source) + context.bytes_per_tile(context.result)
    return replace(
        context.spread("fallback", compute, context.exchange_cycles(moved), steps=4), fallback=True
    )
