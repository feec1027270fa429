"""Operators that are several others in one: attention, einsum, products of whole numbers, transforms, samples
and sorting. Nobody measured them: their parts are added up (section 7.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx
from onnxgraph import Value

from simipu.operators.formulas import products
from simipu.operators.formulas.code import Code
from simipu.operators.formulas.elementwise import BROADCAST, guess
from simipu.operators.formulas.layout import WHOLE_ATOM_BYTES
from simipu.operators.formulas.moving import move
from simipu.operators.formulas.plan import Product
from simipu.operators.formulas.reducing import reduction, softmax_of
from simipu.operators.formulas.vertices import (
    BINARY_START,
    REARRANGE_CYCLES_PER_BYTE,
    REARRANGE_START,
    InnerLoop,
)
from simipu.operators.formulas.work import Context, Work, is_wide
from simipu.target import HALF_BYTES

_ADD_HALF, _ADD_FLOAT = InnerLoop(3, 4), InnerLoop(3, 2)
_CORNERS = 4
"""Of a picture's grid around a point, whose values are weighed and added up."""
_SAMPLING_PASSES = 8
"""Over the samples: the point's place in both axes, its corner's weights, and a sum of four products."""
_COMPARE_AND_SWAP = InnerLoop(25, 1)
"""Of two values with their indices (section 6.3)."""
_INDEX_BYTES = 4
_PARTS = 2
"""Of a complex number."""
_MASK, _PAST_KEYS = 3, 4
"""Inputs of Attention; keys of the past come before those that are given."""
_HEADS_AXIS, _HEADS_RANK = 1, 4


def in_turn(kind: str, *works: Work) -> Work:
    """Works that follow one another: times and code add up, of memory the most counts."""
    plans = [work.plan for work in works if work.plan]
    return Work(
        kind,
        compute=sum(work.compute for work in works),
        exchange=sum(work.exchange for work in works),
        steps=sum(work.steps for work in works),
        tiles=max(work.tiles for work in works),
        temporary_bytes=max(work.temporary_bytes for work in works),
        code=sum((work.code for work in works), Code()),
        macs=sum(work.macs for work in works),
        plan=", ".join(plans),
    )


def passes(context: Context, kind: str, value: Value, count: int) -> Work:
    """So many additions or multiplications of the elements of a tensor, each in a step of its own."""
    loop = _ADD_FLOAT if is_wide(value) else _ADD_HALF
    return context.spread(kind, count * context.pass_over(value, loop, BINARY_START), steps=count)


def attention(context: Context) -> Work:
    """Scores, their softmax, and the mean of the values that they weigh; a mask is added to the scores."""
    query, key, value = context.inputs[:3]
    if query is None or key is None or value is None:
        return guess(context)
    heads, lengths, widths = _find_heads(context, query, key, value)
    past = context.inputs[_PAST_KEYS] if context.has(_PAST_KEYS) else None
    lengths = (lengths[0], lengths[1] + (past.shape[2] if past else 0))
    batch = query.shape[0]
    element, partial = products.find_widths(context, query, key)
    scores = Value((batch, heads, *lengths), query.bytes_per_element)
    first = Product(batch * heads, lengths[0], widths[0], lengths[1], element, partial)
    second = Product(batch * heads, lengths[0], lengths[1], widths[1], element, partial)
    mask = context.spread("mask", context.pass_over(scores, BROADCAST.loop(scores)))
    return in_turn(
        "attention",
        products.planned(context, first),
        *([mask] if context.has(_MASK) else []),
        softmax_of(context, scores),
        products.planned(context, second),
    )


def _find_heads(
    context: Context, query: Value, key: Value, value: Value
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Heads, the lengths of queries and keys, and the widths of a head's keys and values: in four axes, or in
    three with the heads side by side."""
    if len(query.shape) == _HEADS_RANK:
        return query.shape[_HEADS_AXIS], (query.shape[2], key.shape[2]), (key.shape[3], value.shape[3])
    heads = max(1, context.attribute("q_num_heads", 1))
    shared = max(1, context.attribute("kv_num_heads", heads))
    return (
        heads,
        (query.shape[1], key.shape[1]),
        (key.shape[2] // shared, value.shape[2] // shared),
    )


@dataclass(frozen=True, slots=True)
class _Equation:
    """An einsum of two operands as a product: sizes of the letters that both and the result have, that only
    one operand has beside the result, and that are summed."""

    groups: int
    rows: int
    k: int
    n: int

    @staticmethod
    def parse(text: str, left: Value, right: Value) -> _Equation | None:
        """None for equations that leave something to be understood."""
        terms, arrow, result = text.replace(" ", "").partition("->")
        sides = terms.split(",")
        if not arrow or "." in text or [len(side) for side in sides] != [len(left.shape), len(right.shape)]:
            return None
        sizes = dict(zip(sides[0] + sides[1], (*left.shape, *right.shape), strict=True))
        first, second, kept = set(sides[0]), set(sides[1]), set(result)

        def count(letters: set[str]) -> int:
            return max(1, math.prod(sizes[letter] for letter in letters))

        return _Equation(
            count(first & second & kept),
            count((first - second) & kept),
            count((first | second) - kept),
            count((second - first) & kept),
        )


def einsum(context: Context) -> Work:
    """One operand is moved or added up; two are a product, as PopRT's replace_einsum_with_matmul makes of it;
    more are guessed."""
    if len(context.inputs) == 1:
        shrinks = context.result.size < context.source.size
        return reduction(context) if shrinks else move(context)
    operands = 2
    left, right = context.operands
    text = context.attribute("equation", b"").decode("utf-8", "replace")
    found = _Equation.parse(text, left, right) if len(context.inputs) == operands else None
    if found is None:
        return guess(context)
    widths = products.find_widths(context, left, right)
    return products.with_dynamic_operands(
        context, products.planned(context, Product(found.groups, found.rows, found.k, found.n, *widths))
    )


def widened(product: products.Formula, left: int, right: int) -> products.Formula:
    """A product of 8-bit whole numbers, of which the chip has none: the operands, at those inputs, become
    halves, which hold them exactly, and sums are floats, which then are rounded to the result."""

    def formula(context: Context) -> Work:
        given = context.node
        values = [
            value and replace(value, bytes_per_element=HALF_BYTES)
            for value in (context.inputs[left], context.inputs[right])
        ]
        node = onnx.NodeProto(name=given.name, op_type=given.op_type, attribute=given.attribute)
        node.input.extend([given.input[left], given.input[right]])
        layouts = [context.layout(left), context.layout(right)]
        inner = replace(context, node=node, inputs=values, layouts=layouts, half_partials=False)
        # Popops' casts: 9 cycles for four to halves, and floats to whole numbers no faster (section 4).
        casts = [*filter(None, values), context.result]
        cast = context.spread(
            "cast", sum(context.pass_over(value, InnerLoop(9, 4)) for value in casts), steps=3
        )
        return in_turn("matmul", cast, product(inner))

    return formula


WIDENED_MATMUL, WIDENED_SCALED_MATMUL = (widened(products.matmul, 0, right) for right in (1, 3))
WIDENED_CONVOLUTION, WIDENED_SCALED_CONVOLUTION = (
    widened(products.convolution, 0, right) for right in (1, 3)
)
"""The scaled ones have each operand's scale and zero point behind it."""


def rotary(context: Context) -> Work:
    """Halves of each head change places; then two products with the tables, and their sum."""
    count = 3
    return in_turn("rotary", move(context), passes(context, "rotary", context.source, count))


def sampled(context: Context) -> Work:
    """Values between the points of a picture: four neighbours of each are fetched one by one."""
    return sample(context, context.result)


def sample(context: Context, samples: Value) -> Work:
    """So many values."""
    moved = _CORNERS * context.bytes_per_tile(samples)
    atom = min(WHOLE_ATOM_BYTES, max(HALF_BYTES, samples.bytes_per_element))
    fetch = context.spread(
        "sampling",
        REARRANGE_START + moved * REARRANGE_CYCLES_PER_BYTE[atom],
        context.exchange_cycles(moved),
        temporary=moved,
    )
    return in_turn("sampling", fetch, passes(context, "sampling", samples, _SAMPLING_PASSES))


def deformed(context: Context) -> Work:
    """A sample for each kernel position and channel of the input, then a convolution of them."""
    source, weights = context.operands
    taps = math.prod(weights.shape[2:])
    positions = math.prod(context.result.shape[2:])
    samples = Value((source.shape[0], source.shape[1], taps, positions), source.bytes_per_element)
    # Its bias is behind its offsets.
    inner = replace(context, inputs=[source, weights, *context.inputs[3:4]], layouts=[])
    return in_turn("convolution", sample(context, samples), products.convolution(inner))


def regions(context: Context) -> Work:
    """RoiAlign: as many samples for each result as it says; two by two are assumed where it leaves that to
    the regions' sizes."""
    ratio = max(1, context.attribute("sampling_ratio", 0) or 2)
    value = context.result
    return sample(context, Value((*value.shape, ratio * ratio), value.bytes_per_element))


def affine_grid(context: Context) -> Work:
    """A small product for each position."""
    count = 3
    return passes(context, "grid", context.result, count)


def folded(context: Context) -> Work:
    """Col2Im: blocks go to their places and are added up where they overlap."""
    return in_turn("data movement", move(context), passes(context, "addition", context.source, 1))


def written(context: Context) -> Work:
    """TensorScatter: only what is new is moved; the cache stays where it is."""
    _, update = context.operands
    moved = context.bytes_per_tile(update)
    compute = REARRANGE_START + moved * REARRANGE_CYCLES_PER_BYTE[WHOLE_ATOM_BYTES]
    return context.spread("data movement", compute, context.exchange_cycles(moved))


def fourier(context: Context) -> Work:
    """A product with the matrix of the transform, whose elements are complex: neither PopART nor poplibs has
    a faster way. An axis that is an input is taken to be the last before the complex parts: values are not
    looked at."""
    source, axis = context.source, context.attribute("axis", -2)
    k, n = source.shape[axis] * source.shape[-1], context.result.shape[axis] * _PARTS
    return _transform(context, max(1, source.size // max(1, k)), k, n)


def short_fourier(context: Context) -> Work:
    """The same for each frame."""
    batch, frames, bins, _ = context.result.shape
    length = (context.inputs[0] or context.source).shape[1]
    frame = min(length, _PARTS * (bins - 1) if context.attribute("onesided", 1) else bins)
    return _transform(context, batch * frames, frame, bins * _PARTS)


def _transform(context: Context, rows: int, k: int, n: int) -> Work:
    widths = products.find_widths(context, context.source, context.source)
    return products.planned(context, Product(1, rows, max(1, k), max(1, n), *widths))


def top_k(context: Context) -> Work:
    """A bitonic network that sorts whole rows; of fewer values than all a part of it would do."""
    source = context.source
    length = source.shape[context.attribute("axis", -1)] if source.shape else 1
    rounds = max(1, math.ceil(math.log2(max(2, length))))
    stages = rounds * (rounds + 1) // 2
    pairs = Value((source.size // 2,), source.bytes_per_element)
    moved = context.bytes_per_tile(source) + context.per_tile(source.size) * _INDEX_BYTES
    return context.spread(
        "sort",
        stages * context.pass_over(pairs, _COMPARE_AND_SWAP),
        stages * context.exchange_cycles(moved),
        steps=stages,
        temporary=moved,
    )
