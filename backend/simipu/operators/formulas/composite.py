"""Costs of operators that consist of several others: attention, einsum, products of whole numbers,
transforms, samples and sorting. No measurements of them exist: the costs of their parts are added
up (section 7.2)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnxgraph import TensorSize

from simipu.chip.target import HALF_BYTES
from simipu.operators.formulas import products
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.code import Code
from simipu.operators.formulas.elementwise import BROADCAST, Elementwise, broadcast_cycles, guess
from simipu.operators.formulas.layout import WHOLE_ATOM_BYTES
from simipu.operators.formulas.moving import INDEX_BYTES, move
from simipu.operators.formulas.plan import Product
from simipu.operators.formulas.reducing import reduction, softmax_of
from simipu.operators.formulas.work import Context, Layer, Work, is_wide

_ADDED = Elementwise(v.InnerLoop(3, 4), v.InnerLoop(3, 2))
_CORNERS = 4
"""Corners of a picture's grid around a point, whose values are weighted and added up."""
_SAMPLING_PASSES = 8
"""Passes over the samples: the point's place in both axes, its corners' weights, and a sum of four
products."""
_COMPARE_AND_SWAP = v.InnerLoop(25, 1)
"""Loop of comparing and swapping two values with their indices (section 6.3)."""
_PARTS = 2
"""Parts of a complex number."""
_ELLIPSIS, _FIRST_LETTER, _FIRST_DIGIT = "...", "A", ord("0")
"""Characters of an einsum's equation."""
_MASK, _PAST_KEYS = 3, 4
"""Indices of inputs of Attention; keys of the past come before those that are given."""
_HEADS_AXIS, _HEADS_RANK = 1, 4


def in_turn(kind: str, *works: Work) -> Work:
    """Return the sum of works that follow one another: times and code add up, of memory the maximum
    counts."""
    return Work(
        kind,
        compute=sum(work.compute for work in works),
        exchange=sum(work.exchange for work in works),
        steps=sum(work.steps for work in works),
        local_steps=sum(work.local_steps for work in works),
        tiles=max(work.tiles for work in works),
        temporary_bytes=max(work.temporary_bytes for work in works),
        code=sum((work.code for work in works), Code()),
        macs=sum(work.macs for work in works),
        plan=", ".join(work.plan for work in works if work.plan),
    )


def passes(
    context: Context, kind: str, value: TensorSize, count: int, loops: Elementwise | None = None
) -> Work:
    """Return the cost of `count` additions or multiplications of a tensor's elements, each in a
    step of its own."""
    loop = (loops or _ADDED).loop(value)
    return context.spread(kind, count * context.pass_over(value, loop, v.BINARY_START), steps=count)


def attention(context: Context) -> Work:
    """Return the cost of attention: scores, their softmax, and the weighted mean of the values; a
    mask is added to the scores."""
    query, key, value = context.inputs[:3]
    if query is None or key is None or value is None:
        return guess(context)
    heads, lengths, widths = _find_heads(context, query, key, value)
    past = context.inputs[_PAST_KEYS] if context.has(_PAST_KEYS) else None
    lengths = (lengths[0], lengths[1] + (past.shape[2] if past else 0))
    # Each head of each sample is a group of two products:
    #     [queries, width] x [width, keys] = scores        softmax(scores) x [keys, width] = mean
    # Keys of the past are concatenated, which is a view: they only make the scores longer.
    batch = query.shape[0]
    element, partial = products.find_widths(context, query, key)
    scores = TensorSize((batch, heads, *lengths), query.bytes_per_element)
    first = Product(batch * heads, lengths[0], widths[0], lengths[1], element, partial)
    second = Product(batch * heads, lengths[0], lengths[1], widths[1], element, partial)
    mask = context.spread("mask", context.pass_over(scores, BROADCAST.loop(scores)))
    layer = Layer.ATTENTION if lengths[0] > 1 else Layer.ATTENTION_STEP
    return in_turn(
        layer,
        products.planned(context, first),
        *([mask] if context.has(_MASK) else []),
        softmax_of(context, scores),
        products.planned(context, second),
    )


def _find_heads(
    context: Context, query: TensorSize, key: TensorSize, value: TensorSize
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Return the number of heads, the lengths of queries and keys, and the widths of a head's keys
    and values. Inputs have four axes, or three with the heads side by side."""
    if len(query.shape) == _HEADS_RANK:
        lengths, widths = (query.shape[2], key.shape[2]), (key.shape[3], value.shape[3])
        return query.shape[_HEADS_AXIS], lengths, widths
    heads = max(1, context.attribute("q_num_heads", 1))
    shared = max(1, context.attribute("kv_num_heads", heads))
    widths = (key.shape[2] // shared, value.shape[2] // shared)
    return heads, (query.shape[1], key.shape[1]), widths


@dataclass(frozen=True, slots=True)
class _Equation:
    """An einsum: the letters of each operand and of the result, and their sizes. Dimensions of an
    ellipsis have letters of their own, the same for all operands, counted from the last."""

    terms: Sequence[str]
    result: str
    sizes: Mapping[str, int]

    @staticmethod
    def parse(text: str, shapes: Sequence[Sequence[int]]) -> _Equation | None:
        """Parse an equation. Returns None if it does not fit the operands' shapes."""
        operands, arrow, result = text.replace(" ", "").partition("->")
        terms, sizes = [], dict[str, int]()
        for term, shape in zip(operands.split(","), shapes, strict=False):
            term = _named(term, len(shape) - len(term.replace(_ELLIPSIS, "")))
            if len(term) != len(shape):
                return None
            terms.append(term)
            for letter, size in zip(term, shape, strict=True):
                sizes[letter] = max(size, sizes.get(letter, 1))
        # Without an arrow the result has the letters that occur once, in alphabetical order, after
        # the ellipsis' dimensions. These are named 0, 1, ... from the last, because operands of
        # different ranks align at the end.
        everything = "".join(terms)
        most = max((sum(letter < _FIRST_LETTER for letter in term) for term in terms), default=0)
        if not arrow:
            single = [c for c in everything if c >= _FIRST_LETTER and everything.count(c) == 1]
            result = _ELLIPSIS + "".join(sorted(single))
        return _Equation(terms, _named(result, most), sizes)

    def count(self, letters: Collection[str]) -> int:
        """Return the number of elements of a tensor with these dimensions."""
        return max(1, math.prod(self.sizes.get(letter, 1) for letter in letters))

    def products(self, element_bytes: int, partial_bytes: int) -> Iterator[Product]:
        """Yield the product of the first two operands, then of their result and the third, and so
        on. A dimension that neither a later operand nor the result has is summed at once."""
        # "bij,bjk,kl->bil": first [b] i x j x k, then of its result [bik] and [kl] (b i) x k x l.
        #     letter in        left and right   left only    right only    summed
        #     the product      groups           rows         columns       k
        left = set(self.terms[0])
        for i, term in enumerate(self.terms[1:], 2):
            right, later = set(term), set(self.result).union(*self.terms[i:])
            remaining = (left | right) & later
            yield Product(
                self.count(left & right & remaining),
                self.count((left - right) & remaining),
                self.count((left | right) - remaining),
                self.count((right - left) & remaining),
                element_bytes,
                partial_bytes,
            )
            left = remaining


def _named(term: str, hidden: int) -> str:
    """Return a term with its ellipsis replaced by a digit for each hidden dimension, counted from
    the last; no equation contains digits."""
    digits = "".join(chr(_FIRST_DIGIT + i) for i in reversed(range(hidden)))
    return term.replace(_ELLIPSIS, digits)


def einsum(context: Context) -> Work:
    """Return the cost of an einsum. One operand is moved or summed; two are a product, as PopRT's
    replace_einsum_with_matmul makes of it; more are successive products. Transposes of operands and
    results are views."""
    values = [value for value in context.inputs if value is not None]
    if len(values) == 1:
        shrinks = context.result.size < context.source.size
        return reduction(context) if shrinks else move(context)
    text = context.attribute("equation", b"").decode("utf-8", "replace")
    equation = _Equation.parse(text, [value.shape for value in values])
    if equation is None or len(equation.terms) != len(values):
        return guess(context)
    pairs = list(equation.products(*products.find_widths(context, *context.operands)))
    if len(pairs) == 1:
        work = products.planned(context, products.with_stored(context, pairs[0]))
        return products.with_dynamic_operands(context, work)
    return in_turn("matmul", *(products.planned(context, product) for product in pairs))


def scaled(loop: Elementwise, *, finds_range: bool = False) -> products.Formula:
    """Return the formula of a conversion from or to 8-bit whole numbers: a cast, a product with the
    scale and a sum with the zero point. Scale and zero point are scalars or have a value for each
    channel. With `finds_range` two reductions are added."""

    def formula(context: Context) -> Work:
        # Scale and zero point work on the wide side: the source of a quantization, the result of a
        # dequantization. All passes have as many elements.
        wide = context.result if is_wide(context.result) else context.source
        value = replace(wide, bytes_per_element=max(HALF_BYTES, min(4, wide.bytes_per_element)))
        own = context.spread(
            "cast", context.pass_over(value, loop.loop(value)), steps=0, local_steps=1
        )
        ranges = [reduction(context)] * 2 if finds_range else []
        return in_turn("cast", *ranges, passes(context, "cast", value, 2, BROADCAST), own)

    return formula


def batch_norm(context: Context) -> Work:
    """Return the cost of BatchNormalization with learnt parameters: a vector for each channel is
    subtracted, multiplied, multiplied again and added (poplin's Norms.cpp: whiten, then scale and
    bias). Usually a converter has folded it."""
    rank = len(context.result.shape)
    channels = context.result.shape[1] if rank > 1 else 1
    vector = TensorSize((channels, *[1] * max(0, rank - 2)), context.result.bytes_per_element)
    layout = context.source_layout
    elements = context.fullest(context.result.size, layout)
    count = 4
    cycles, received = broadcast_cycles(context, vector, elements, layout)
    exchange = context.exchange_cycles(count * received)
    return context.spread("norm", count * cycles, exchange, steps=count, layout=layout)


def local_response(context: Context) -> Work:
    """Return the cost of LRN: squares, their sums over `size` neighbouring channels, which are
    exchanged once, a power, and a product."""
    # result = x * (bias + alpha * sum of the neighbours' squares) ** -beta: besides the power, a
    # pass for each neighbour, one for the squares and one for the product.
    value, size = context.result, max(1, context.attribute("size", 1))
    powers = context.pass_over(value, v.InnerLoop(context.calibration.pow_cycles, 1))
    power = context.spread("norm", powers, steps=0, local_steps=1)
    neighbours = context.exchange_cycles(context.bytes_per_tile(value))
    sums = passes(context, "norm", value, size + 2).plus(exchange=neighbours)
    return in_turn("norm", sums, power)


def arg_extreme(context: Context) -> Work:
    """Return the cost of a reduction of values with their indices. Each pair is a compare and two
    selects, float or not (popops' ReductionVertexDefs: the vertices are not vectorised; 8 cycles
    are assumed for an element)."""
    return reduction(context).plus(context.pass_over(context.source, v.InnerLoop(8, 1)))


def cumulative(context: Context) -> Work:
    """Return the cost of CumSum: PopART multiplies by a triangle of ones (cumsumx.cpp), because
    processing rows one by one is too slow."""
    source, rank = context.source, len(context.source.shape)
    scalar = context.known_scalar(1) if context.has(1) else None
    axis = int(scalar) if scalar is not None and -rank <= scalar < rank else -1
    length = source.shape[axis] if rank else 1
    return _transform(context, max(1, source.size // max(1, length)), length, length)


def resized(context: Context) -> Work:
    """Return the cost of Resize. Nearest values are a view of a copy (PopART's resizex.cpp);
    interpolated values are a weighted sum of the neighbours along each axis that changes."""
    source = context.source
    if context.attribute("mode", b"nearest") == b"nearest":
        copied = context.bytes_per_tile(source)
        compute = v.SPREAD_START + copied / context.target.copy_bytes_per_cycle
        return context.spread("data movement", compute, steps=0, local_steps=1, temporary=copied)
    return sample(context, context.result)


def widened(product: products.Formula, left: int, right: int) -> products.Formula:
    """Return the formula of a product of 8-bit whole numbers, which the chip does not have. The
    operands, at inputs `left` and `right`, become halves, which hold them exactly. Sums are floats,
    which are then rounded to the result."""

    def formula(context: Context) -> Work:
        original = context.node
        values = [
            value and replace(value, bytes_per_element=HALF_BYTES)
            for value in (context.inputs[left], context.inputs[right])
        ]
        node = onnx.NodeProto(
            name=original.name, op_type=original.op_type, attribute=original.attribute
        )
        node.input.extend([original.input[left], original.input[right]])
        layouts = [context.layout(left), context.layout(right)]
        inner = replace(context, node=node, inputs=values, layouts=layouts, half_partials=False)
        # Popops' casts: 9 cycles for four to halves, and floats to whole numbers no faster
        # (section 4).
        casts = [*filter(None, values), context.result]
        cast = context.spread(
            "cast", sum(context.pass_over(value, v.InnerLoop(9, 4)) for value in casts), steps=3
        )
        return in_turn("matmul", cast, product(inner))

    return formula


WIDENED_MATMUL, SCALED_MATMUL = (widened(products.matmul, 0, right) for right in (1, 3))
WIDENED_CONVOLUTION, SCALED_CONVOLUTION = (
    widened(products.convolution, 0, right) for right in (1, 3)
)
"""Costs of integer products. The scaled ones have each operand's scale and zero point after it."""


def rotary(context: Context) -> Work:
    """Return the cost of RotaryEmbedding: halves of each head swap places; then two products with
    the tables, and their sum."""
    return in_turn("rotary", move(context), passes(context, "rotary", context.source, 3))


def sampled(context: Context) -> Work:
    """Return the cost of GridSample: values between the points of a picture; four neighbours of
    each are fetched one by one."""
    return sample(context, context.result)


def sample(context: Context, samples: TensorSize) -> Work:
    """Return the cost of interpolating `samples`."""
    moved = _CORNERS * context.bytes_per_tile(samples)
    atom = min(WHOLE_ATOM_BYTES, max(HALF_BYTES, samples.bytes_per_element))
    compute = moved * v.REARRANGE_CYCLES_PER_BYTE[atom]
    fetch = context.spread("sampling", compute, context.exchange_cycles(moved), temporary=moved)
    return in_turn("sampling", fetch, passes(context, "sampling", samples, _SAMPLING_PASSES))


def deformed(context: Context) -> Work:
    """Return the cost of DeformConv: a sample for each kernel position and channel of the input,
    then a convolution of them."""
    source, weights = context.operands
    taps = math.prod(weights.shape[2:])
    positions = math.prod(context.result.shape[2:])
    samples = TensorSize(
        (source.shape[0], source.shape[1], taps, positions), source.bytes_per_element
    )
    # Its bias comes after its offsets.
    inner = replace(context, inputs=[source, weights, *context.inputs[3:4]], layouts=[])
    return in_turn("convolution", sample(context, samples), products.convolution(inner))


def regions(context: Context) -> Work:
    """Return the cost of RoiAlign: `sampling_ratio` squared samples for each result; 2 by 2 are
    assumed if the regions' sizes determine the number."""
    ratio = max(1, context.attribute("sampling_ratio", 0) or 2)
    value = context.result
    return sample(context, TensorSize((*value.shape, ratio * ratio), value.bytes_per_element))


def affine_grid(context: Context) -> Work:
    """Return the cost of AffineGrid: a small product for each position."""
    return passes(context, "grid", context.result, 3)


def folded(context: Context) -> Work:
    """Return the cost of Col2Im: blocks move to their places and are added where they overlap."""
    return in_turn("data movement", move(context), passes(context, "addition", context.source, 1))


def written(context: Context) -> Work:
    """Return the cost of TensorScatter: only the update is moved; the cache stays in place."""
    _, update = context.operands
    moved = context.bytes_per_tile(update)
    compute = moved * v.REARRANGE_CYCLES_PER_BYTE[WHOLE_ATOM_BYTES]
    return context.spread("data movement", compute, context.exchange_cycles(moved))


def fourier(context: Context) -> Work:
    """Return the cost of DFT: a product with the matrix of the transform, whose elements are
    complex, because neither PopART nor poplibs has a faster way. An axis that is an input is
    assumed to be the last before the complex parts, because values are not read."""
    source, axis = context.source, context.attribute("axis", -2)
    # The source has [..., 1] real or [..., 2] complex parts, the result always 2: the matrix takes
    # the source's parts to the result's, [k parts, n parts].
    k, n = source.shape[axis] * source.shape[-1], context.result.shape[axis] * _PARTS
    return _transform(context, max(1, source.size // max(1, k)), k, n)


def short_fourier(context: Context) -> Work:
    """Return the cost of STFT: a DFT of each frame."""
    batch, frames, bins, _ = context.result.shape
    # A one-sided result has half of a frame's frequencies and the constant: bins = frame / 2 + 1.
    length = (context.inputs[0] or context.source).shape[1]
    frame = min(length, _PARTS * (bins - 1) if context.attribute("onesided", 1) else bins)
    return _transform(context, batch * frames, frame, bins * _PARTS)


def _transform(context: Context, rows: int, k: int, n: int) -> Work:
    widths = products.find_widths(context, context.source, context.source)
    return products.planned(context, Product(1, rows, max(1, k), max(1, n), *widths))


def top_k(context: Context) -> Work:
    """Return the cost of TopK by a bitonic network that sorts whole rows; for fewer values a part
    of it would suffice."""
    source = context.source
    length = source.shape[context.attribute("axis", -1)] if source.shape else 1
    # Sorting 2^r values takes r rounds; round i merges sorted runs of 2^i values in i stages, each
    # of which compares all pairs: 1 + 2 + ... + r stages. Between stages values and indices move.
    rounds = max(1, math.ceil(math.log2(max(2, length))))
    stages = rounds * (rounds + 1) // 2
    pairs = TensorSize((source.size // 2,), source.bytes_per_element)
    moved = context.bytes_per_tile(source) + context.per_tile(source.size) * INDEX_BYTES
    return context.spread(
        "sort",
        stages * context.pass_over(pairs, _COMPARE_AND_SWAP),
        stages * context.exchange_cycles(moved),
        steps=stages,
        temporary=moved,
    )
