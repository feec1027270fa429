"""For each operator, where its rows go: a rule gives the places of the results, or raises `NotIndependent`
with the reason.

Operators that compute stand here, those that only move values in `moves`; the table at the end has them all.
An operator without a rule only costs speed, never correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from simipu.rows import moves
from simipu.rows.places import Node, NotIndependent, Rows

Rule = Callable[[Node], Sequence[Rows]]


def elementwise(node: Node) -> list[Rows]:
    """Broadcasting: rows must line up; what carries no rows must not tell them apart."""
    rank = len(node.results[0])
    aligned = {
        rows.moved(rows.axis + rank - len(node.shape(index)))
        for index, rows in enumerate(node.rows)
        if rows is not None
    }
    if len(aligned) != 1:
        raise NotIndependent("its inputs carry their rows along different axes")
    (place,) = aligned
    for index, rows in enumerate(node.rows):
        if rows is not None or not node.has(index):
            continue
        axis = place.axis - (rank - len(node.shape(index)))
        if axis >= 0 and node.shape(index)[axis] != 1:
            node.forget_rows(index, axis, place)
    return [place] * len(node.results)


def _matmul(node: Node) -> list[Rows]:
    left, right = node.rows[:2]
    rank = len(node.results[0])
    left_rank, right_rank = len(node.shape(0)), len(node.shape(1))
    if left is not None and left.axis == left_rank - 1:
        raise NotIndependent("rows lie along the summed dimension")
    if right is not None and right.axis == max(0, right_rank - 2):
        raise NotIndependent("rows lie along the summed dimension of the right operand")
    if right_rank == 1 and left is not None:
        return [left]
    if left_rank == 1 and right is not None:
        return [right.moved(min(right.axis, rank - 1))]
    if left is not None and left.axis == left_rank - 2 and right is None:
        return [left.moved(rank - 2)]
    if right is not None and right.axis == right_rank - 1 and left is None:
        return [right.moved(rank - 1)]
    if (left is not None and left.axis == left_rank - 2) or (
        right is not None and right.axis == right_rank - 1
    ):
        raise NotIndependent("it multiplies rows with rows")
    # Rows lie before the matrices: there a product broadcasts as elementwise operators do.
    return elementwise(node)


def _integer_matmul(node: Node) -> list[Rows]:
    if node.rows[2:] != [None] * len(node.rows[2:]) or (node.has(2) and node.shape(2) not in ((), (1,))):
        raise NotIndependent("its rows have zero points of their own")
    return _matmul(node)


def _quantized_matmul(node: Node) -> list[Rows]:
    """Scales and zero points of the left operand are one number each."""
    rows = node.only_rows()
    if rows.axis == len(node.shape(0)) - 1:
        raise NotIndependent("rows lie along the summed dimension")
    if any(node.shape(index) not in ((), (1,)) for index in (1, 2, 6, 7)):
        raise NotIndependent("its rows have scales of their own")
    return [rows.moved(rows.axis + len(node.results[0]) - len(node.shape(0)))]


def _gemm(node: Node) -> list[Rows]:
    rows, bias = node.rows[0], node.rows[2] if len(node.rows) > 2 else None
    if node.rows[1] is not None or rows is None:
        raise NotIndependent("rows come in through its right operand")
    if rows.axis != int(node.attribute("transA", 0)):
        raise NotIndependent("rows lie along the summed dimension")
    place = rows.moved(0)
    if bias is not None and bias != place:
        raise NotIndependent("its bias carries rows along another axis")
    if bias is None and node.has(2) and len(node.shape(2)) == 2 and node.shape(2)[0] != 1:
        node.forget_rows(2, 0, place)
    return [place]


def _einsum(node: Node) -> list[Rows]:
    """The rows' letter must be one in all operands that carry rows, stand in no other, and in the result."""
    equation = str(node.attribute("equation", b"").decode()).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation:
        raise NotIndependent("its equation leaves the result, or axes, to be understood")
    letters = {operands[index][rows.axis] for index, rows in enumerate(node.rows) if rows is not None}
    places = {rows.moved(0) for rows in node.rows if rows is not None}
    letter = letters.pop()
    if letters or len(places) != 1 or result.count(letter) != 1:
        raise NotIndependent("it sums or mixes the rows")
    for index, operand in enumerate(operands):
        if operand.count(letter) > 1 or (node.rows[index] is None and letter in operand):
            raise NotIndependent("rows meet an axis of another operand")
    return [places.pop().moved(result.index(letter))]


def leading_axis(node: Node) -> list[Rows]:
    """Convolutions, pools and the like treat axis 0 as a batch by definition (MaxPool's indices do not)."""
    rows = node.only_rows()
    if rows.axis != 0:
        raise NotIndependent(f"rows lie along axis {rows.axis}, not 0")
    if len(node.results) > 1 or node.attribute("training_mode", 0):
        raise NotIndependent("its further outputs number elements, or are taken, over the whole batch")
    return [rows]


def _attention(node: Node) -> list[Rows]:
    """All inputs have the batch first, a mask only where it has all four axes, and not one for all rows."""
    masked = node.has(3) and len(node.shape(3)) == 4 and node.shape(3)[0] != 1
    return _leading_axes(node, [index for index in range(len(node.rows)) if index != 3 or masked])


def _rotary_embedding(node: Node) -> list[Rows]:
    """With positions the tables are looked up in; without, they have a batch of their own."""
    return _leading_axes(node, [0, 3] if node.has(3) else [0, 1, 2])


def _grid_sample(node: Node) -> list[Rows]:
    return _leading_axes(node, [0, 1])


def _leading_axes(node: Node, batched: Sequence[int]) -> list[Rows]:
    """Those inputs and all outputs have the batch first; an input without rows must be the same for all of
    them."""
    places = {rows for rows in node.rows if rows is not None}
    others = [rows for index, rows in enumerate(node.rows) if index not in batched]
    if len(places) != 1 or any(others) or (place := places.pop()).axis != 0:
        raise NotIndependent("its inputs do not all carry their rows along axis 0")
    for index in batched:
        if node.has(index) and node.rows[index] is None:
            node.forget_rows(index, 0, place, broadcasts=False)
    return [place] * len(node.results)


def _along(default: int) -> Rule:
    """Operators that work along one axis: independent when that is another axis than the rows'."""

    def rule(node: Node) -> list[Rows]:
        rows = node.only_rows()
        if node.axis(default, len(node.shape(0))) == rows.axis:
            raise NotIndependent("it works along the rows")
        return [rows] * len(node.results)

    return rule


def _inner_axes(node: Node) -> list[Rows]:
    """Normalisation over all axes from `axis` on."""
    rows = node.only_rows()
    if node.axis(-1, len(node.shape(0))) <= rows.axis:
        raise NotIndependent("it normalises over the rows")
    return [rows] * len(node.results)


def _softmax(node: Node) -> list[Rows]:
    """Before opset 13 it flattens everything from axis (default 1) on, so the rows must stand before it."""
    rows = node.only_rows()
    axis = node.axis(-1 if node.opset >= 13 else 1, len(node.shape(0)))
    if axis == rows.axis or (node.opset < 13 and axis < rows.axis):
        raise NotIndependent("it normalises along the rows")
    return [rows]


def _reduce(node: Node) -> list[Rows]:
    rows = node.only_rows()
    rank = len(node.shape(0))
    axes = node.attribute("axes")
    if axes is None:
        given = node.constant(1)
        if (given is None or not given.size) and node.attribute("noop_with_empty_axes", 0):
            return [rows]
        axes = list(range(rank)) if given is None or not given.size else given.tolist()
    reduced = {int(axis) % rank for axis in axes}
    if rows.axis in reduced:
        raise NotIndependent("it reduces over the rows")
    if node.attribute("keepdims", 1):
        return [rows]
    return [rows.moved(rows.axis - sum(axis < rows.axis for axis in reduced))]


def _mean_variance(node: Node) -> list[Rows]:
    rows = node.only_rows()
    if rows.axis in {axis % len(node.shape(0)) for axis in node.attribute("axes", [0, 2, 3])}:
        raise NotIndependent("it normalises over the rows")
    return [rows]


def _arg(node: Node) -> list[Rows]:
    rows = node.only_rows()
    axis = node.axis(0, len(node.shape(0)))
    if axis == rows.axis:
        raise NotIndependent("it searches along the rows")
    return [rows if node.attribute("keepdims", 1) or axis > rows.axis else rows.moved(rows.axis - 1)]


def _cumulative(node: Node) -> list[Rows]:
    rows = node.only_rows()
    axis = node.constant(1)
    if axis is None or int(axis.item()) % len(node.shape(0)) == rows.axis:
        raise NotIndependent("it sums along the rows")
    return [rows]


def _quantize(node: Node) -> list[Rows]:
    """QuantizeLinear, DequantizeLinear: scales are of the whole tensor, or of another axis than the rows'."""
    rows = node.only_rows()
    scale = node.shape(1)
    if len(scale) > 1 or (scale not in ((), (1,)) and node.axis(1, len(node.shape(0))) == rows.axis):
        raise NotIndependent("its scale differs from row to row")
    return [rows]


def _recurrent(node: Node) -> list[Rows]:
    """LSTM, GRU, RNN: input and states have the batch at axis 1; Y at axis 2, the last states at 1. Layout 1:
    at axis 0."""
    batch_first = bool(node.attribute("layout", 0))
    place = node.rows[0]
    if place is None or place.axis != (0 if batch_first else 1) or any(node.rows[1:4]):
        raise NotIndependent("rows do not lie along the batch axis of its input alone")
    for index in range(4, len(node.rows)):
        _forget_state(node, index, place.moved(0) if index == 4 else place)
    places = [place, place, place] if batch_first else [place.moved(2), place, place]
    return [place for place, name in zip(places, node.proto.output, strict=False) if name]


def _forget_state(node: Node, index: int, place: Rows) -> None:
    """The lengths (input 4), initial states (5, 6) or peepholes (7) of a recurrent operator, which exporters
    write out for the compiled batch. No state means zeros, and that ONNX Runtime need not read any."""
    if not node.has(index) or index == 7:
        if index == 7 and node.rows[7] is not None:
            raise NotIndependent("its peepholes carry rows")
        return
    if node.rows[index] is not None:
        if node.rows[index] != place:
            raise NotIndependent("rows do not lie along the batch axis of its states")
        return
    value = node.constant(index)
    assert value is not None
    if index > 4 and not value.any():
        node.computed[index] = ""
    else:
        node.forget_rows(index, place.axis, place, broadcasts=False)


ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
    "CastLike Ceil Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual "
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul "
    "Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt "
    "Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
).split()

_FAMILIES: Sequence[tuple[Rule, str]] = (
    (
        leading_axis,
        "AveragePool BatchNormalization Col2Im Conv ConvInteger ConvTranspose DepthToSpace "
        "GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool "
        "MaxPool QLinearConv SpaceToDepth",
    ),
    (_integer_matmul, "MatMulInteger"),
    (_quantized_matmul, "QLinearMatMul"),
    (_attention, "Attention"),
    (_rotary_embedding, "RotaryEmbedding"),
    (_grid_sample, "GridSample"),
    (_along(-1), "LpNormalization TopK"),
    (_along(0), "Split"),
    (_inner_axes, "LayerNormalization RMSNormalization"),
    (_softmax, "Softmax LogSoftmax Hardmax"),
    (_arg, "ArgMax ArgMin"),
    (_cumulative, "CumSum CumProd"),
    (_quantize, "QuantizeLinear DequantizeLinear"),
    (_recurrent, "LSTM GRU RNN"),
    (_matmul, "MatMul"),
    (_gemm, "Gemm"),
    (_einsum, "Einsum"),
    (_mean_variance, "MeanVarianceNormalization"),
    (
        _reduce,
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
        "ReduceSum ReduceSumSquare",
    ),
    (moves.view, "Flatten Unsqueeze"),
    (moves.squeeze, "Squeeze"),
    (moves.reshape, "Reshape"),
    (moves.transpose, "Transpose"),
    (moves.concat, "Concat"),
    (moves.slice_, "Slice"),
    (moves.gather, "Gather"),
    (moves.gather_elements, "GatherElements"),
    (moves.gather_nd, "GatherND"),
    (moves.scatter_elements, "ScatterElements"),
    (moves.expand, "Expand"),
    (moves.tile, "Tile"),
    (moves.pad, "Pad"),
    (moves.resize, "Resize"),
    (moves.upsample, "Upsample"),
    (moves.trilu, "Trilu"),
    (moves.one_hot, "OneHot"),
    (moves.reverse_sequence, "ReverseSequence"),
)

RULES: MappingProxyType[str, Rule] = MappingProxyType(
    dict.fromkeys(ELEMENTWISE, elementwise)
    | {name: rule for rule, names in _FAMILIES for name in names.split()}
)
"""The rule of each operator that has one."""

WHOLE_BATCH = MappingProxyType(
    {
        "DynamicQuantizeLinear": "its scale comes of the values of the whole batch",
        "NonZero": "it numbers elements over the whole batch",
        "Unique": "it looks for equal values over the whole batch",
        "If": "a branch is chosen for the whole batch",
        "Loop": "rows are not followed into its body",
        "Scan": "rows are not followed into its body",
    }
)
"""Why some operators have none."""
