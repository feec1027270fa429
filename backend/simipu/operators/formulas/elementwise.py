"""Costs of operators that process each element separately: a vertex over the elements of a tile
(section 4), and the guess for operators without a formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from onnxgraph import TensorSize

from simipu.chip.target import HALF_BYTES
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.layout import WHOLE_ATOM_BYTES, Layout, linear, turning_cycles
from simipu.operators.formulas.work import Context, Work, is_wide


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Formula of one pass over the elements, two operands at a time: the inner loop for halves, and
    that for floats."""

    half: v.InnerLoop
    single: v.InnerLoop
    broadcasts: bool = False
    """True if popops has faster vertices for an operand that is a vector or a scalar."""

    def __call__(self, context: Context) -> Work:
        """Return the work of a node."""
        layout = result_layout(context)
        if layout is not None and _is_fragmented(layout, context.result):
            return self._gathered(context, layout)
        # The result lies as its best spread operand does, the base. Each other operand is brought
        # to the base and combined with it in a compute set of its own: n operands, n - 1 passes.
        elements = context.fullest(context.result.size, layout)
        others = [i for i in range(len(context.inputs)) if context.inputs[i] is not None]
        loop = self.loop(context.source)
        busy = context.busy_workers(math.ceil(elements / loop.vector))
        if len(others) <= 1:
            cycles = context.loop_cycles(elements, loop, v.UNARY_START)
            work = context.spread("elementwise", cycles, steps=0, local_steps=1, layout=layout)
            return replace(work, busy_workers=busy)
        others.remove(_base(context, layout))
        # One operand that comes from other tiles makes supersteps of all these passes.
        compute = exchange = 0.0
        for i in others:
            cycles, received = self._second(context, i, elements, layout)
            compute += cycles
            exchange += context.exchange_cycles(received)
        far = math.ceil(exchange) > 0
        work = context.spread(
            "elementwise",
            compute,
            exchange,
            steps=len(others) if far else 0,
            local_steps=0 if far else len(others),
            layout=layout,
        )
        return replace(work, busy_workers=busy)

    def _gathered(self, context: Context, layout: Layout) -> Work:
        """Return the work of a node whose operand is fragmented into single elements, such as by
        slices with steps. The elements are brought together first, and the result is contiguous."""
        unsplit = replace(
            linear(context.result, context.node.output[0]), imbalance=layout.imbalance
        )
        layouts = [
            unsplit if operand_layout == layout else operand_layout
            for operand_layout in context.layouts
        ]
        work = self(replace(context, layouts=layouts))
        width = context.result.bytes_per_element
        moved = context.fullest(context.result.size, layout) * width
        cycles = moved * v.REARRANGE_CYCLES_PER_BYTE[max(HALF_BYTES, width)]
        return work.plus(cycles, context.exchange_cycles(moved), steps=1)

    def _second(
        self, context: Context, i: int, elements: int, layout: Layout | None
    ) -> tuple[float, float]:
        """Return the cycles of the pass that reads operand `i`, and the bytes of it that a tile
        receives."""
        value, result = context.inputs[i], context.result
        assert value is not None
        # A scalar is on every tile, as a constant of the vertex. An operand of the result's size is
        # read element by element. All others are repeated (section 4.1).
        loop = self.loop(context.source)
        if value.size == 1:
            fast = BROADCAST.loop(context.source) if self.broadcasts else loop
            return context.loop_cycles(elements, fast, v.BROADCAST_START), 0.0
        if value.size == result.size:
            cycles = context.loop_cycles(elements, loop, v.BINARY_START)
            return self._taken(context, i, elements, layout, cycles)
        return broadcast_cycles(
            context, value, elements, layout, loop if not self.broadcasts else None
        )

    @staticmethod
    def _taken(
        context: Context, i: int, elements: int, layout: Layout | None, cycles: float
    ) -> tuple[float, float]:
        """Return `cycles` plus those of moving an operand as large as the result to it, if another
        operator placed it elsewhere, and the bytes moved. Weights lie as their first reader needs
        them."""
        # Same identity: equal elements are on the same tiles already.
        value, own = context.inputs[i], context.layout(i)
        if value is None or own is None or layout is None or own.identity == layout.identity:
            return cycles, 0.0
        moved = elements * value.bytes_per_element
        return cycles + turning_cycles(value, own, layout, moved), moved

    def loop(self, value: TensorSize) -> v.InnerLoop:
        """Return the loop for the width of a tensor."""
        return self.single if is_wide(value) else self.half


BROADCAST = Elementwise(v.InnerLoop(2, 4), v.InnerLoop(2, 2))
"""Cost of adding or multiplying a scalar."""
ADDED = Elementwise(v.InnerLoop(3, 4), v.InnerLoop(3, 2), broadcasts=True)
"""Cost of adding or multiplying two tensors."""
COMPARED = Elementwise(v.InnerLoop(4, 4), v.InnerLoop(3, 2))
"""Extremes, and PopRT's own operators of a comparison, whose vertices are not public."""
ORDERED = Elementwise(v.InnerLoop(9, 4), v.InnerLoop(14, 4))
"""Comparisons with a truth as result."""
INFINITE = Elementwise(v.InnerLoop(9, 4), v.InnerLoop(9, 2))
CHOSEN = Elementwise(v.InnerLoop(5, 1), v.InnerLoop(5, 1))
"""A choice between two tensors."""
GELU = Elementwise(v.InnerLoop(8, 4), v.InnerLoop(21, 2))
ERF = Elementwise(v.InnerLoop(4, 1), v.InnerLoop(41, 1))
"""The error function. In half poplibs' estimator says 13, which is about 10 too many for BERT and
RoBERTa with 384 tokens on a C600, compiled by PopRT, which has a vertex of its own (ErfV2). 4 is
chosen; the vertex is not public."""
_DIVISION = Elementwise(v.InnerLoop(21, 4), v.InnerLoop(10, 2))
_QUARTER_CAST = v.InnerLoop(2, 8)
"""Loop of a cast from or to fp8: two issue slots for 8 elements, either way (popops'
inlineAssemblerCast.hpp; section 4.2)."""
_CAST = Elementwise(v.InnerLoop(2, 4), v.InnerLoop(2, 4))


def _is_fragmented(layout: Layout, value: TensorSize) -> bool:
    """Return whether the pieces are parts of rows that are shorter than a vector."""
    is_short = layout.piece * value.bytes_per_element < WHOLE_ATOM_BYTES
    return is_short and bool(value.shape) and layout.piece < value.shape[layout.axis]


def result_layout(context: Context) -> Layout | None:
    """Return the layout of the operand with the result's size that is spread best (popops'
    createOutputForElementWiseOp); None if all such operands are weights."""
    layouts = [
        layout
        for value, layout in zip(context.inputs, context.layouts, strict=False)
        if value is not None and layout is not None and value.size == context.result.size
    ]
    return min(layouts, key=lambda layout: layout.imbalance, default=None)


def _base(context: Context, layout: Layout | None) -> int:
    """Return the index of the operand with the result's layout; the others are moved to it."""
    for i, value in enumerate(context.inputs):
        if value is not None and value.size == context.result.size and context.layout(i) == layout:
            return i
    sizes = [value.size if value else 0 for value in context.inputs]
    return sizes.index(max(sizes))


def broadcast_cycles(
    context: Context,
    value: TensorSize,
    elements: int,
    layout: Layout | None,
    loop: v.InnerLoop | None = None,
) -> tuple[float, float]:
    """Return the cycles of a pass over `elements` of a tile whose second operand is repeated, and
    the bytes of it that a tile receives. `loop` is for an operator that has no broadcasting
    vertices in popops (section 4.1).

    A value for each row uses the outer vector's vertex, a row of values for all rows the inner
    vector's. Floats have no inner vector's vertex, and division has no outer vector's: then the
    operand is copied to the size of the result.
    """
    #          axis of the pieces
    #         +-----+-----+-----+
    #  value  | run | run | run |  a value for each row, as a norm's mean: a tile receives one for
    #         +-----+-----+-----+  each of its runs
    #          a row of values     a row for all rows, as a bias: a tile receives the part that its
    #                              row parts need, once, and repeats it for each of its rows
    lay = layout or linear(context.result)
    run, grain = lay.piece, lay.grain
    width = value.bytes_per_element
    copied = elements * width / context.target.copy_bytes_per_cycle
    # The operand's axis that is broadcast along the pieces; axes that it lacks have one element.
    own = lay.axis - (len(context.result.shape) - len(value.shape))
    if own < 0 or value.shape[own : own + 1] in ((), (1,)):
        rows = math.ceil(elements / run)
        received = min(rows, value.size) * width
        if loop is None:
            workers = context.target.workers_per_tile
            return v.outer_vector_cycles(rows, run, width, workers, grain), received
        return context.loop_cycles(elements, loop, v.BINARY_START) + copied, received
    tile_elements = min(elements, math.ceil(value.size / lay.row_parts))
    repeats = elements / max(1, tile_elements)
    received = tile_elements * width
    # The general way copies the operand to the size of the result, then reads both. The inner
    # vector's vertex needs halves in whole pieces of 4; short repeats may make it the slower.
    general = context.loop_cycles(elements, loop or ADDED.loop(context.result), v.BINARY_START)
    general += copied if repeats > 1 else 0
    if loop is not None or is_wide(context.result) or grain % v.INNER_GRAIN:
        return general, received
    inner = v.inner_vector_cycles(
        tile_elements / run, run, repeats, context.target.workers_per_tile
    )
    return min(inner, general), received


def multiply(context: Context) -> Work:
    """Return the cost of Mul. A tensor times itself is its square."""
    first, second = context.node.input[:2]
    return _SQUARE(_alone(context)) if first == second else ADDED(context)


def _alone(context: Context) -> Context:
    """Return the context of the same node without its second operand."""
    return replace(context, inputs=context.inputs[:1], layouts=context.layouts[:1])


def divide(context: Context) -> Work:
    """Return the cost of Div. PopRT multiplies by the inverse of a constant divisor (its pass
    replace_div_with_mul)."""
    is_broadcast = min(value.size for value in context.inputs if value) < context.result.size
    return (ADDED if is_broadcast and context.is_constant(1) else _DIVISION)(context)


_SQUARE = Elementwise(v.InnerLoop(2, 4), v.InnerLoop(2, 2))
_ROOT = Elementwise(v.InnerLoop(23, 4), v.InnerLoop(10, 2))
_INVERSE_ROOT = Elementwise(v.InnerLoop(19, 4), v.InnerLoop(8, 2))
_INVERSE = Elementwise(v.InnerLoop(15, 4), v.InnerLoop(6, 2))
_BY_EXPONENT = {2.0: _SQUARE, 0.5: _ROOT, -0.5: _INVERSE_ROOT, -1.0: _INVERSE}


def power(context: Context) -> Work:
    """Return the cost of Pow, by its exponent if that is known. A square, root, inverse or inverse
    root has its own vertex (popops simplifies them, and PopRT's replace_pow writes them); other
    exponents use the general vertex."""
    exponent = context.known_scalar(1)
    if exponent == 1.0:
        return Work("view")
    if exponent in _BY_EXPONENT:
        return _BY_EXPONENT[exponent](_alone(context))
    loop = v.InnerLoop(context.calibration.pow_cycles, 1)
    return Elementwise(loop, loop)(context)


def is_quarter_cast(context: Context) -> bool:
    """Return whether it is a Cast from or to fp8; only these have a scale. It is not computed at
    compile time, because fp8 weights must stay small."""
    return context.node.op_type == "Cast" and context.attribute("scale", None) is not None


def cast(context: Context) -> Work:
    """Return the cost of Cast; conversions to or from 8 bits have a vertex of their own."""
    if is_quarter_cast(context) or (
        context.result.bytes_per_element == 1 and not is_wide(context.source)
    ):
        layout = result_layout(context)
        cycles = quarter_cast_cycles(context.result, context, layout)
        return context.spread("elementwise", cycles, steps=0, local_steps=1, layout=layout)
    return _CAST(context)


def quarter_cast_cycles(value: TensorSize, context: Context, layout: Layout | None = None) -> float:
    """Return the cycles of narrowing halves to fp8, or of widening them."""
    return context.loop_cycles(context.fullest(value.size, layout), _QUARTER_CAST)


def guess(context: Context) -> Work:
    """Return a guess for an operator without a formula, marked as such: expensive passes over the
    largest operand and the result, both of which are moved."""
    # A pass over what is read and one over what is written, in four supersteps: an unknown operator
    # is rather estimated too expensive than too cheap.
    loop = v.InnerLoop(context.calibration.guess_cycles_per_element, 1)
    compute = context.pass_over(context.source, loop) + context.pass_over(context.result, loop)
    moved = context.bytes_per_tile(context.source) + context.bytes_per_tile(context.result)
    return replace(
        context.spread("fallback", compute, context.exchange_cycles(moved), steps=4), fallback=True
    )
