"""The operator table: every operator of the ONNX standard up to opset 24, and our own.

Families share an entry. If an operator has no row rule, no formula of its own or cannot run on the
chip, its entry gives the reason. Vertices' loops are cycles and elements of halves, then of floats
(docs/ipu-performance.md, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx
from onnxgraph import CHIP_DOMAIN, STANDARD_DOMAINS

from simipu.operators import counts, extremes, guards
from simipu.operators.counts import Count
from simipu.operators.entry import Formula, Indexing, Operator, Rounding
from simipu.operators.facts import add_facts
from simipu.operators.formulas import composite, layout, products, reducing
from simipu.operators.formulas import elementwise as ew
from simipu.operators.formulas import moving as moves
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.graphcore_domain import CHIP_OPERATORS
from simipu.operators.ranges import narrow_input
from simipu.operators.rules import computing as rows
from simipu.operators.rules import moving as places
from simipu.operators.rules.places import Rule
from simipu.operators.signed_operands import dequantized, signed_operand
from simipu.operators.windows import window_fault

IPU_COPY = "IpuCopy"
"""Our own operator, with its name in PopART, which copies a tensor to another IPU."""

EXACT, BOUNDED, GROWING = Rounding.EXACT, Rounding.BOUNDED, Rounding.GROWING
PRODUCT = Rounding.PRODUCT
_SIMPLE = Elementwise(InnerLoop(3, 4), InnerLoop(3, 2))
_COMPARED = Elementwise(InnerLoop(4, 4), InnerLoop(3, 2))
_ROUNDED_OFF = Elementwise(InnerLoop(6, 4), InnerLoop(6, 2))
_TRIGONOMETRIC = Elementwise(InnerLoop(25, 1), InnerLoop(2300, 1))
_INVERSE_SINE = Elementwise(InnerLoop(106, 1), InnerLoop(106, 1))
_SIGMOID = Elementwise(InnerLoop(5, 4), InnerLoop(11, 2))
_SWISH = Elementwise(InnerLoop(5, 4), InnerLoop(11, 2))
_LOGICAL = Elementwise(InnerLoop(4, 4), InnerLoop(4, 4))
_ORDERED = Elementwise(InnerLoop(9, 4), InnerLoop(14, 4))
_SELECTING = Elementwise(InnerLoop(8, 1), InnerLoop(10, 1))
"""Loop of a compare, a select and a product or two in one generated vertex. A vertex with a select
is not vectorised (ExpressionGenerator.cpp). The cost is half of `Shrink`'s, which has two."""
_CONVERTED = Elementwise(InnerLoop(16, 4), InnerLoop(16, 4))
_WIDENED = Elementwise(InnerLoop(9, 4), InnerLoop(9, 4))


_BOTH_SCALED = signed_operand(3, zero_point=5, other=0)
"""Guard of products with a scale and a zero point behind each operand."""
_MAX_INPUTS = 100
"""Upper bound on the number of inputs of a node with any number of inputs."""
_REGIONS = "its regions are numbered over the whole batch"
_ONE_SHAPE = "its inputs are sizes, one for the whole batch"


def _family(
    names: str,
    rule: Rule | None = None,
    cost: Formula | None = ew.guess,
    rounding: Rounding = Rounding.ROUNDED,
    **entry: Any,
) -> dict[str, Operator]:
    """Return one entry for several operators: row rule, cost formula, rounding and other fields."""
    return dict.fromkeys(names.split(), Operator(rule, cost=cost, rounding=rounding, **entry))


def _elementwise(
    names: str, cost: Any, rounding: Rounding = Rounding.ROUNDED
) -> dict[str, Operator]:
    return _family(names, rows.elementwise, cost, rounding)


def _product(
    names: str,
    rule: Rule,
    cost: Formula,
    count: Count,
    apart: Sequence[int],
    rounding: Rounding = Rounding.ROUNDED,
    **entry: Any,
) -> dict[str, Operator]:
    return _family(names, rule, cost, rounding, count=count, apart=apart, **entry)


def _reading(
    name: str, rule: Rule, indexing: Indexing, cost: Any = moves.gather, **entry: Any
) -> dict[str, Operator]:
    return _family(name, rule, cost, EXACT, indexing=indexing, **entry)


def _writing(name: str, rule: Rule, indexing: Indexing, **entry: Any) -> dict[str, Operator]:
    return _reading(name, rule, indexing, unguarded_indices=1, guard=extremes.scatter, **entry)


def _reduced(
    names: str, rounding: Rounding = Rounding.ROUNDED, **entry: Any
) -> dict[str, Operator]:
    return _family(names, rows.reduce, reducing.reduction, rounding, shaped_by=(1,), **entry)


def _drawn(names: str, cost: Any) -> dict[str, Operator]:
    reason = "its values are drawn for the whole batch"
    return _family(names, whole_batch=reason, cost=cost, last_opset=21, is_random=True)


def _counted(name: str, shaped_by: Sequence[int], **entry: Any) -> dict[str, Operator]:
    refusal = "as many results as the data have; gone where it is folded"
    return _family(name, shaped_by=shaped_by, counts_data=True, refusal=refusal, **entry)


_ELEMENTWISE = {
    **_elementwise("Abs", Elementwise(InnerLoop(5, 1), InnerLoop(5, 1)), EXACT),
    **_elementwise("Clip Neg", Elementwise(InnerLoop(2, 4), InnerLoop(2, 2)), EXACT),
    **_elementwise("Relu", _SIMPLE, EXACT),
    **_elementwise("Sign", Elementwise(InnerLoop(9, 4), InnerLoop(9, 2)), EXACT),
    **_elementwise("Add Sub", ew.ADDED),
    **_elementwise("Mul", ew.multiply),
    **_elementwise("Mean Sum", _SIMPLE),
    **_elementwise("Ceil Floor Round", _ROUNDED_OFF, EXACT),
    **_elementwise("Max Min", _COMPARED, EXACT),
    # PopART's expressions of these select by the sign; the exponential of some adds little to that.
    **_elementwise("Celu Elu LeakyRelu PRelu Selu ThresholdedRelu", _SELECTING),
    **_family("Div", rows.elementwise, ew.divide, guard=guards.division),
    **_family(
        "Mod",
        rows.elementwise,
        Elementwise(InnerLoop(225, 4), InnerLoop(93, 2)),
        guard=guards.remainder,
    ),
    **_elementwise("Reciprocal", Elementwise(InnerLoop(15, 4), InnerLoop(6, 2))),
    **_elementwise("Sqrt", Elementwise(InnerLoop(23, 4), InnerLoop(10, 2)), BOUNDED),
    **_elementwise("Exp", Elementwise(InnerLoop(4, 4), InnerLoop(6, 2)), GROWING),
    **_elementwise("Log", Elementwise(InnerLoop(6, 4), InnerLoop(12, 2)), BOUNDED),
    **_elementwise("Pow", ew.power, GROWING),
    **_elementwise("Erf", ew.ERF, BOUNDED),
    **_elementwise("Tanh", Elementwise(InnerLoop(3, 4), InnerLoop(12, 2)), BOUNDED),
    **_elementwise("HardSigmoid Sigmoid", _SIGMOID, BOUNDED),
    **_elementwise("Softsign", _SWISH, BOUNDED),
    **_elementwise("Softplus", _SWISH),
    **_family("HardSwish Mish Swish", rows.elementwise, _SWISH, is_defined=True),
    **_elementwise("Gelu", Elementwise(InnerLoop(8, 4), InnerLoop(21, 2))),
    **_elementwise("Cos Sin", _TRIGONOMETRIC, BOUNDED),
    **_elementwise("Acos Asin Atan", _INVERSE_SINE, BOUNDED),
    **_elementwise("Tan", Elementwise(InnerLoop(5700, 1), InnerLoop(5100, 1))),
    # PopART writes these as one expression: two exponentials, a difference or a sum, a half.
    **_elementwise("Cosh Sinh", Elementwise(InnerLoop(13, 4), InnerLoop(17, 2)), GROWING),
    # A square, two sums, a root and a logarithm.
    **_elementwise("Acosh Asinh Atanh", Elementwise(InnerLoop(37, 4), InnerLoop(29, 2))),
    **_elementwise("Where", Elementwise(InnerLoop(5, 1), InnerLoop(5, 1)), EXACT),
    **_elementwise("Equal Greater GreaterOrEqual Less LessOrEqual", _ORDERED),
    **_elementwise("And Or Xor", _LOGICAL),
    **_elementwise("Not", Elementwise(InnerLoop(21, 1), InnerLoop(21, 1))),
    **_elementwise("IsNaN", Elementwise(InnerLoop(7, 4), InnerLoop(7, 2))),
    **_elementwise("IsInf", Elementwise(InnerLoop(9, 4), InnerLoop(9, 2))),
    **_elementwise(
        "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor",
        Elementwise(InnerLoop(6, 1), InnerLoop(6, 1)),
    ),
    # Two compares, selects and additions for each element, in one vertex (PopART's shrinkx.cpp).
    **_elementwise("Shrink", Elementwise(InnerLoop(16, 1), InnerLoop(20, 1))),
    **_family("Cast", rows.elementwise, ew.cast, guard=guards.cast),
    **_family("QuantizeLinear", rows.quantize, composite.scaled(_CONVERTED), apart=(1, 2)),
    **_family(
        "DequantizeLinear",
        rows.quantize,
        composite.scaled(_WIDENED),
        apart=(1, 2),
        guard=dequantized,
    ),
    **_family(
        "DynamicQuantizeLinear",
        whole_batch="its scale comes of the values of the whole batch",
        cost=composite.scaled(_CONVERTED, finds_range=True),
    ),
}

_PRODUCTS = {
    **_product(
        "MatMul",
        rows.matmul,
        products.matmul,
        counts.matmul,
        (0, 1),
        PRODUCT,
        reads_mapped_weights=True,
        guard=guards.vector_product,
    ),
    **_product(
        "Gemm", rows.gemm, products.gemm, counts.gemm, (1,), PRODUCT, reads_mapped_weights=True
    ),
    **_product(
        "Conv",
        rows.grouped("group"),
        products.convolution,
        counts.convolution,
        (1, 2),
        PRODUCT,
        fault=window_fault(filters=1),
    ),
    **_product(
        "ConvTranspose",
        rows.leading_axis,
        products.convolution,
        counts.transposed_convolution,
        (1, 2),
        Rounding.SUMMED,
    ),
    **_product(
        "ConvInteger",
        rows.leading_axis,
        composite.WIDENED_CONVOLUTION,
        counts.convolution,
        (1, 2, 3),
        # ONNX Runtime multiplies filters by windows, not windows by filters.
        guard=signed_operand(0, zero_point=2, other=1),
        fault=window_fault(filters=1),
    ),
    **_product(
        "QLinearConv",
        rows.leading_axis,
        composite.SCALED_CONVOLUTION,
        counts.convolution,
        range(1, 9),
        guard=_BOTH_SCALED,
        fault=window_fault(filters=3),
    ),
    **_product(
        "DeformConv", rows.leading_axes(0, 2, 4), composite.deformed, counts.convolution, (1, 3)
    ),
    **_product(
        "MatMulInteger",
        rows.integer_matmul,
        composite.WIDENED_MATMUL,
        counts.matmul,
        range(4),
        guard=signed_operand(1, zero_point=3, other=0),
    ),
    **_product(
        "QLinearMatMul",
        rows.quantized_matmul,
        composite.SCALED_MATMUL,
        counts.matmul,
        range(1, 8),
        guard=_BOTH_SCALED,
    ),
    **_product("Einsum", rows.einsum, composite.einsum, counts.einsum, range(_MAX_INPUTS)),
    **_family("Attention", rows.attention, composite.attention, apart=(3,), unchecked_input=6),
    **_product(
        "GRU LSTM RNN",
        rows.recurrent,
        products.recurrent,
        counts.recurrent,
        range(1, 8),
        guard=guards.recurrence,
    ),
}

_REDUCING = {
    **_reduced("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSum ReduceSumSquare"),
    **_reduced("ReduceMax ReduceMin", EXACT, guard=extremes.reduction),
    **_reduced("ReduceMean", BOUNDED),
    **_reduced("ReduceProd", GROWING),
    **_family("ArgMax ArgMin", rows.arg, composite.arg_extreme, guard=extremes.place),
    **_family("CumSum", rows.cumulative, composite.cumulative),
    **_family("CumProd", rows.cumulative, composite.cumulative, GROWING),
    **_family("Softmax", rows.softmax, reducing.softmax, BOUNDED),
    **_family("Hardmax", rows.softmax, reducing.softmax, EXACT, guard=extremes.hardmax),
    **_family("LogSoftmax", rows.softmax, reducing.softmax),
    **_family("BatchNormalization", rows.batch_norm, composite.batch_norm, apart=range(1, 5)),
    **_family("InstanceNormalization", rows.instance_norm, reducing.channel_norm, apart=(1, 2)),
    **_family("LRN", rows.along(1), composite.local_response),
    **_family("LayerNormalization RMSNormalization", rows.inner_axes, reducing.norm),
    **_family("LpNormalization", rows.along(-1), reducing.norm),
    **_family(
        "MeanVarianceNormalization",
        rows.mean_variance,
        reducing.norm,
        condition="`axes` must be given",
    ),
    **_family(
        "AveragePool", rows.pool, reducing.pool, BOUNDED, count=counts.pool, fault=window_fault()
    ),
    **_family(
        "MaxPool",
        rows.pool,
        reducing.pool,
        EXACT,
        count=counts.pool,
        guard=extremes.pool,
        fault=window_fault(),
    ),
    **_family("LpPool", rows.pool, reducing.pool, count=counts.pool, fault=window_fault()),
    **_family("GlobalAveragePool", rows.pool, reducing.reduction, BOUNDED),
    **_family("GlobalMaxPool", rows.pool, reducing.reduction, EXACT, guard=extremes.pool),
    **_family("GlobalLpPool", rows.pool, reducing.reduction, last_opset=21),
    **_family(
        "TopK",
        rows.along(-1),
        composite.top_k,
        EXACT,
        shaped_by=(1,),
        guard=narrow_input(1, "k", 0),
    ),
}

_MOVING = {
    **_family("Constant", cost=None, rounding=EXACT),
    **_family(
        "ConstantOfShape",
        whole_batch=_ONE_SHAPE,
        cost=None,
        rounding=EXACT,
        shaped_by=(0,),
        sizes=0,
    ),
    **_elementwise("Identity", None, EXACT),
    **_family("Dropout", rows.dropout, None, EXACT),
    **_family("Flatten", places.flatten, None, EXACT, view=layout.reshaped_view),
    **_family(
        "Unsqueeze", places.unsqueeze, None, EXACT, view=layout.reshaped_view, shaped_by=(1,)
    ),
    **_family("Squeeze", places.squeeze, None, EXACT, view=layout.reshaped_view, shaped_by=(1,)),
    **_family(
        "Reshape", places.reshape, None, EXACT, view=layout.reshaped_view, shaped_by=(1,), sizes=1
    ),
    **_family("Shape Size", whole_batch="what it says is of the compiled batch", cost=None),
    **_family(
        "Transpose",
        places.transpose,
        None,
        EXACT,
        view=layout.transposed_view,
        guard=guards.transpose,
    ),
    **_family("Concat", places.concat, None, EXACT, view=layout.joined_view),
    **_family("Slice", places.slice_, None, EXACT, view=layout.cut_view, shaped_by=(1, 2, 3, 4)),
    **_family("Split", rows.along(0), None, EXACT, view=layout.cut_view, shaped_by=(1,)),
    **_family(
        "Expand", places.expand, None, EXACT, view=layout.spread_out_view, shaped_by=(1,), sizes=1
    ),
    **_family("Tile", places.tile, None, EXACT, view=layout.spread_out_view, shaped_by=(1,)),
    **_family("Pad", places.pad, None, EXACT, view=layout.cut_view, apart=(3,), shaped_by=(1,)),
    **_family("Trilu", places.trilu, moves.move, EXACT, unguarded_indices=1),
    **_family("DepthToSpace", places.depth_to_space, moves.move, EXACT),
    **_family("SpaceToDepth", places.space_to_depth, moves.move, EXACT),
    **_family("Resize", places.resize, composite.resized, shaped_by=(1, 2, 3)),
    **_family("Upsample", places.upsample, composite.resized, shaped_by=(1,), last_opset=9),
    **_family("OneHot", places.one_hot, moves.move, EXACT, apart=(2,), shaped_by=(1,)),
    **_family("ReverseSequence", places.reverse_sequence, moves.move, EXACT),
    **_family(
        "EyeLike", whole_batch="its diagonal runs across the rows", cost=moves.move, rounding=EXACT
    ),
    **_family("Range", whole_batch=_ONE_SHAPE, cost=moves.move, shaped_by=(0, 1, 2)),
    **_reading(
        "Gather", places.gather, Indexing.ALONG_AXIS, apart=(0, 1), reads_mapped_weights=True
    ),
    **_reading(
        "GatherElements", places.gather_elements, Indexing.ALONG_AXIS, moves.gather_elements
    ),
    **_reading("GatherND", places.gather_nd, Indexing.TUPLES, apart=(0, 1)),
    **_writing("ScatterElements", places.scatter_elements, Indexing.ALONG_AXIS),
    **_writing("ScatterND", places.scatter_nd, Indexing.TUPLES, apart=(1,)),
    **_writing("Scatter", places.scatter_elements, Indexing.ALONG_AXIS, last_opset=10),
    **_family(
        "TensorScatter",
        rows.leading_axes(0, 1, 2),
        composite.written,
        EXACT,
        unguarded_indices=2,
    ),
    **_family("Col2Im", rows.leading_axis, composite.folded, shaped_by=(1, 2)),
    **_family("GridSample", rows.leading_axes(0, 1), composite.sampled),
    **_family(
        "RotaryEmbedding",
        rows.rotary_embedding,
        composite.rotary,
        apart=(1, 2),
        unchecked_input=3,
    ),
    **_family(
        "MaxUnpool",
        whole_batch="its indices number elements over the whole batch",
        cost=moves.gather,
        rounding=EXACT,
        shaped_by=(2,),
        unguarded_indices=1,
    ),
    **_family(
        "RoiAlign",
        whole_batch=_REGIONS,
        cost=composite.regions,
        last_opset=21,
        unguarded_indices=2,
        guard=guards.regions,
    ),
    **_family("AffineGrid", places.affine_grid, composite.affine_grid, shaped_by=(1,)),
    **_family("OptionalGetElement", rows.elementwise, None, EXACT),
    **_family("OptionalHasElement", whole_batch="it says one thing of the whole batch", cost=None),
    **_family(IPU_COPY, rows.elementwise, moves.copy_between_ipus, EXACT, body=guards.pass_on),
}

_MAKING = {
    **_family(
        "BlackmanWindow HammingWindow HannWindow", whole_batch=_ONE_SHAPE, cost=None, shaped_by=(0,)
    ),
    **_family("MelWeightMatrix", whole_batch=_ONE_SHAPE, cost=None, shaped_by=(0, 1)),
    **_drawn("RandomUniform RandomUniformLike", Elementwise(InnerLoop(3, 4), InnerLoop(3, 2))),
    **_drawn("RandomNormal RandomNormalLike", Elementwise(InnerLoop(2, 4), InnerLoop(2, 2))),
    **_family(
        "DFT",
        rows.fourier,
        composite.fourier,
        shaped_by=(1, 2),
        guard=narrow_input(1, "dft_length", 1),
        unchecked_input=2,
    ),
    **_family(
        "STFT",
        rows.leading_axis,
        composite.short_fourier,
        apart=(2,),
        shaped_by=(1, 3),
        guard=guards.frames,
    ),
}

_GUESSED = {
    **_family("Det", rows.determinant),
    **_family("MaxRoiPool", whole_batch=_REGIONS, rounding=EXACT, last_opset=21),
    **_drawn("Multinomial", ew.guess),
    **_family("TfIdfVectorizer", rows.count_terms),
}
"""Operators that have no counterpart in PopART or poplibs, and are not composed of operators that
have one; their work depends on their values. A profile names them."""

_BODIES = {
    **_family(
        "If", whole_batch="a branch is chosen for the whole batch", rounding=EXACT, shaped_by=(0,)
    ),
    **_family(
        "Loop", whole_batch="rows are not followed into its body", rounding=EXACT, shaped_by=(0, 1)
    ),
    **_family("Scan", whole_batch="rows are not followed into its body", rounding=EXACT),
}
"""Operators with graphs inside. Their cost is that of the inner nodes; their own is in
`moving.control`."""

_TAKEN_APART = {
    **_family("CastLike", rows.elementwise, ew.cast, taken_apart=True),
    **_family(
        "GroupNormalization",
        rows.leading_axis,
        reducing.channel_norm,
        apart=(1, 2),
        taken_apart=True,
    ),
    **_family("Bernoulli", taken_apart=True, last_opset=21, is_random=True),
    **_family("CenterCropPad", taken_apart=True, shaped_by=(1,)),
    **_family(
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", taken_apart=True, unchecked_input=1
    ),
}

_REFUSED = {
    **_family(
        "ConcatFromSequence Optional SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
        "SequenceInsert SequenceLength SequenceMap SplitToSequence",
        refusal="the IPU has tensors only; written as tensors where constants say what is in them",
    ),
    **_family(
        "RegexFullMatch StringConcat StringNormalizer StringSplit", refusal="the IPU has no strings"
    ),
    **_counted("Compress", (1,), cost=moves.move),
    **_counted("NonMaxSuppression", (0, 1, 2, 3), count=counts.suppression),
    **_counted("NonZero", (0,), whole_batch="it numbers elements over the whole batch"),
    **_counted("Unique", (0,), whole_batch="it looks for equal values over the whole batch"),
    **_family("ImageDecoder", refusal="ONNX Runtime has no kernel"),
}

_COMPUTING = _ELEMENTWISE | _PRODUCTS | _REDUCING
_FAMILIES = _COMPUTING | _MOVING | _MAKING | _GUESSED | _BODIES | _TAKEN_APART | _REFUSED
OPERATORS: Mapping[str, Operator] = MappingProxyType(add_facts(_FAMILIES))
"""Entries of the standard's operators, by name."""
_UNKNOWN = Operator()
_TABLED = (*STANDARD_DOMAINS, CHIP_DOMAIN)
"""Domains whose operators are in the table; our own copy is in the chip's domain."""


_DOMAINS: dict[str, Operator] = {}
"""Entries of the domains of users' libraries, one for all operators of a domain."""


def register_domain(domain: str, entry: Operator) -> None:
    """Set the entry of all operators of `domain`, which must not be in the table."""
    assert domain not in _TABLED, "the operators of that domain have entries of their own"
    _DOMAINS[domain] = entry


def find_operator(op_type: str, domain: str = "") -> Operator:
    """Return the entry of an operator. An operator that is newer than the table, or a user's, gets
    a default that is always correct: the whole batch, a guessed cost, and rounding."""
    if domain == CHIP_DOMAIN and op_type != IPU_COPY:
        return CHIP_OPERATORS.get(op_type, _UNKNOWN)
    return OPERATORS.get(op_type, _UNKNOWN) if domain in _TABLED else _DOMAINS.get(domain, _UNKNOWN)


def operator_of(node: onnx.NodeProto) -> Operator:
    """Return the entry of a node's operator; its domain distinguishes operators of the same
    name."""
    return find_operator(node.op_type, node.domain)


def names_where(holds: Callable[[Operator], bool]) -> frozenset[str]:
    """Return the names of the operators whose entries satisfy `holds`."""
    return frozenset(name for name, operator in OPERATORS.items() if holds(operator))
