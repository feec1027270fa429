"""Operators that look at each element by itself: a vertex over the elements of a tile (section 4), and what
is guessed of operators without a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onnxgraph import Value

from simipu.operators.formulas.layout import WHOLE_ATOM_BYTES, Layout, linear, operand_atom
from simipu.operators.formulas.vertices import (
    BINARY_START,
    BROADCAST_START,
    INNER_VECTOR,
    OUTER_VECTOR,
    REARRANGE_CYCLES_PER_BYTE,
    UNARY_START,
    InnerLoop,
)
from simipu.operators.formulas.work import Context, Work, is_wide
from simipu.target import HALF_BYTES


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One pass over the elements, two operands at a time: the inner loop for halves, and that for floats."""

    half: InnerLoop
    single: InnerLoop
    broadcasts: bool = False
    """Whether popops has faster vertices for an operand that is a vector or a scalar."""

    def __call__(self, context: Context) -> Work:
        """The work of a node."""
        layout = result_layout(context)
        if layout is not None and _is_fragmented(layout, context.result):
            return self._gathered(context, layout)
        elements = context.fullest(context.result.size, layout)
        others = [i for i in range(len(context.inputs)) if context.inputs[i] is not None]
        if len(others) <= 1:
            cycles = context.loop_cycles(elements, self.loop(context.source), UNARY_START)
            return context.spread("elementwise", cycles, steps=0, local_steps=1, layout=layout)
        others.remove(_base(context, layout))
        compute = exchange = 0.0
        for i in others:
            cycles, received = self._second(context, i, elements, layout)
            compute += cycles
            exchange += context.exchange_cycles(received)
        far = math.ceil(exchange) > 0
        return context.spread(
            "elementwise",
            compute,
            exchange,
            steps=len(others) if far else 0,
            local_steps=0 if far else len(others),
            layout=layout,
        )

    def _gathered(self, context: Context, layout: Layout) -> Work:
        """Of an operand in single elements, as slices with steps leave it: they are brought together first,
        and the result is whole."""
        whole = replace(linear(layout.origin, context.result), imbalance=layout.imbalance)
        layouts = [whole if each == layout else each for each in context.layouts]
        work = self(replace(context, layouts=layouts))
        width = context.result.bytes_per_element
        moved = context.fullest(context.result.size, layout) * width
        cycles = moved * REARRANGE_CYCLES_PER_BYTE[max(HALF_BYTES, width)]
        return replace(
            work,
            compute=work.compute + math.ceil(cycles),
            exchange=work.exchange + math.ceil(context.exchange_cycles(moved)),
            steps=work.steps + 1,
        )

    def _second(self, context: Context, i: int, elements: int, layout: Layout | None) -> tuple[float, float]:
        """Cycles of the pass that takes operand `i`, and the bytes of it that a tile receives."""
        value, result = context.inputs[i], context.result
        assert value is not None
        loop = self.loop(context.source)
        if value.size == 1:
            fast = BROADCAST.loop(context.source) if self.broadcasts else loop
            return context.loop_cycles(elements, fast, BROADCAST_START), 0.0
        if value.size == result.size:
            cycles = context.loop_cycles(elements, loop, BINARY_START)
            return self._taken(context, i, elements, layout, cycles)
        return broadcast_cycles(context, value, elements, layout, loop if not self.broadcasts else None)

    @staticmethod
    def _taken(
        context: Context, i: int, elements: int, layout: Layout | None, cycles: float
    ) -> tuple[float, float]:
        """With what it takes to bring an operand as large as the result to it, if another operator put it
        elsewhere; weights lie as their first reader wants them."""
        value, own = context.inputs[i], context.layout(i)
        if value is None or own is None or (layout is not None and own.origin == layout.origin):
            return cycles, 0.0
        moved = elements * value.bytes_per_element
        axis = layout.axis if layout else own.axis
        atom = operand_atom(value, own, axis)
        if atom < WHOLE_ATOM_BYTES or axis != own.axis:
            cycles += moved * REARRANGE_CYCLES_PER_BYTE[atom]
        return cycles, moved

    def loop(self, value: Value) -> InnerLoop:
        """By the width of a tensor."""
        return self.single if is_wide(value) else self.half


BROADCAST = Elementwise(InnerLoop(2, 4), InnerLoop(2, 2))
"""Adding or multiplying a scalar."""
ADDED = Elementwise(InnerLoop(3, 4), InnerLoop(3, 2), broadcasts=True)
"""Adding or multiplying two tensors."""
_DIVISION = Elementwise(InnerLoop(21, 4), InnerLoop(10, 2))
_QUARTER_CAST = InnerLoop(2, 8)
"""Two issue slots for 8 elements, either way (popops' inlineAssemblerCast.hpp; section 4.2)."""
_CAST = Elementwise(InnerLoop(2, 4), InnerLoop(2, 4))


def _is_fragmented(layout: Layout, value: Value) -> bool:
    """Whether its pieces are parts of rows, and no vectors."""
    is_short = layout.piece * value.bytes_per_element < WHOLE_ATOM_BYTES
    return is_short and bool(value.shape) and layout.piece < value.shape[layout.axis]


def result_layout(context: Context) -> Layout | None:
    """That of the operand of the result's size that is spread best (popops' createOutputForElementWiseOp);
    none where every one is a weight."""
    found = [
        layout
        for value, layout in zip(context.inputs, context.layouts, strict=False)
        if value is not None and layout is not None and value.size == context.result.size
    ]
    return min(found, key=lambda layout: layout.imbalance, default=None)


def _base(context: Context, layout: Layout | None) -> int:
    """The operand that lies where the result does: the others come to it."""
    for i, value in enumerate(context.inputs):
        if value is not None and value.size == context.result.size and context.layout(i) == layout:
            return i
    sizes = [value.size if value else 0 for value in context.inputs]
    return sizes.index(max(sizes))


def broadcast_cycles(
    context: Context, value: Value, elements: int, layout: Layout | None, loop: InnerLoop | None = None
) -> tuple[float, float]:
    """Cycles of a pass over `elements` of a tile whose second operand is repeated, and the bytes of it that a
    tile receives; `loop` is of an operator that popops has no broadcasting vertices for (section 4.1).

    A value for each row goes through the outer vector's vertex, a row of values for all rows through the
    inner vector's; floats have none of the latter, and nor has division of the former: then the operand is
    copied out to the size of the result.
    """
    run, grain, row_parts = _run(context.result, layout)
    width = value.bytes_per_element
    per_row = (
        value.shape[-1:] in ((1,), ())
        if layout is None
        else _size_along(value, context.result, layout.axis) == 1
    )
    if per_row:
        rows = math.ceil(elements / run)
        received = min(rows, value.size) * width
        if loop is None:
            workers = context.target.workers_per_tile
            return OUTER_VECTOR.cycles(rows, run, width, workers, grain), received
        return context.loop_cycles(elements, loop, BINARY_START) + _copied(context, elements, width), received
    held = min(elements, math.ceil(value.size / row_parts))
    repeats = elements / max(1, held)
    received = held * width
    general = context.loop_cycles(elements, loop or ADDED.loop(context.result), BINARY_START)
    general += _copied(context, elements, width) if repeats > 1 else 0
    if loop is not None or is_wide(context.result) or grain % INNER_VECTOR.grain:
        return general, received
    inner = INNER_VECTOR.cycles(held / run, run, repeats, context.target.workers_per_tile)
    return min(inner, general), received


def _run(result: Value, layout: Layout | None) -> tuple[int, int, int]:
    """Elements of a row that follow one another on a tile, of which they are a multiple, and tiles over which
    the row is spread."""
    lay = layout or linear("", result)
    return lay.piece, lay.grain, lay.row_parts


def _size_along(value: Value, result: Value, axis: int) -> int:
    """Of an operand that is broadcast, along an axis of the result."""
    own = axis - (len(result.shape) - len(value.shape))
    return value.shape[own] if own >= 0 else 1


def _copied(context: Context, elements: int, width: int) -> float:
    """Cycles of copying out what is repeated."""
    return elements * width / context.target.copy_bytes_per_cycle


def multiply(context: Context) -> Work:
    """A tensor times itself is its square."""
    first, second = context.node.input[:2]
    if first == second:
        return _SQUARE(_alone(context))
    return ADDED(context)


def _alone(context: Context) -> Context:
    """The same node without its second operand."""
    return replace(context, inputs=context.inputs[:1], layouts=context.layouts[:1])


def divide(context: Context) -> Work:
    """PopRT multiplies by the inverse of a divisor that it knows (its pass replace_div_with_mul)."""
    if is_broadcast(context) and context.is_constant(1):
        return ADDED(context)
    return _DIVISION(context)


def is_broadcast(context: Context) -> bool:
    """Whether an operand is smaller than the result."""
    return min(value.size for value in context.inputs if value) < context.result.size


_SQUARE = Elementwise(InnerLoop(2, 4), InnerLoop(2, 2))
_ROOT, _INVERSE_ROOT = (
    Elementwise(InnerLoop(23, 4), InnerLoop(10, 2)),
    Elementwise(InnerLoop(19, 4), InnerLoop(8, 2)),
)
_INVERSE = Elementwise(InnerLoop(15, 4), InnerLoop(6, 2))
_BY_EXPONENT = {2.0: _SQUARE, 0.5: _ROOT, -0.5: _INVERSE_ROOT, -1.0: _INVERSE}


def power(context: Context) -> Work:
    """By its exponent, where that is known: a square, root, inverse or inverse root is its own vertex (popops
    simplifies them, and PopRT's replace_pow writes them); any other takes the general one's."""
    exponent = context.known_scalar(1)
    if exponent == 1.0:
        return Work("view")
    if exponent in _BY_EXPONENT:
        return _BY_EXPONENT[exponent](_alone(context))
    loop = InnerLoop(context.calibration.pow_cycles, 1)
    return Elementwise(loop, loop)(context)


def is_quarter_cast(context: Context) -> bool:
    """Whether it is a Cast from or to fp8, which alone has a scale. Not done at compile time: fp8 weights are
    to stay small."""
    return context.node.op_type == "Cast" and context.attribute("scale", None) is not None


def cast(context: Context) -> Work:
    """To or from 8 bits a vertex of its own."""
    if is_quarter_cast(context) or (context.result.bytes_per_element == 1 and not is_wide(context.source)):
        layout = result_layout(context)
        cycles = quarter_cast_cycles(context.result, context, layout)
        return context.spread("elementwise", cycles, steps=0, local_steps=1, layout=layout)
    return _CAST(context)


def quarter_cast_cycles(value: Value, context: Context, layout: Layout | None = None) -> float:
    """Of narrowing halves to fp8, or widening them."""
    elements = context.fullest(value.size, layout)
    return context.loop_cycles(elements, _QUARTER_CAST)


def guess(context: Context) -> Work:
    """Of an operator without a formula, said to be one: dear passes over the largest operand and the result,
    which both change their place."""
    loop = InnerLoop(context.calibration.guess_cycles_per_element, 1)
    compute = context.pass_over(context.source, loop) + context.pass_over(context.result, loop)
    moved = context.bytes_per_tile(context.source) + context.bytes_per_tile(context.result)
    return replace(
        context.spread("fallback", compute, context.exchange_cycles(moved), steps=4), fallback=True
    )
