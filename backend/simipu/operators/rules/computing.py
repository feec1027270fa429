"""Row rules of operators that compute; those that only move values are in `moving`."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import helper
from onnxgraph import drop_attribute
from onnxgraph.opsets import DFT_TAKES_AXIS, DROPOUT_NEVER_TRAINS, SOFTMAX_HAS_ONE_AXIS

from simipu.operators.rules.places import Node, NotIndependent, Rows, Rule

_MATRIX_AXES = 2
"""Number of last axes that are multiplied; the axes before are broadcast."""
_SCALARS: tuple[tuple[int, ...], ...] = ((), (1,))
"""Shapes of one number for a whole tensor."""


def elementwise(node: Node) -> list[Rows]:
    """Row rule of broadcasting operators: rows must be aligned, and inputs without rows must be the
    same for all of them."""
    place = node.align()
    node.settle(place)
    return [place] * len(node.results)


def dropout(node: Node) -> list[Rows]:
    """Row rule of Dropout: it drops nothing except in training, where the dropped elements are
    drawn for the whole batch."""
    training = 2
    is_drawn = node.has(training) and bool(node.constant(training))
    if is_drawn or (node.opset < DROPOUT_NEVER_TRAINS and not node.attribute("is_test", 0)):
        raise NotIndependent("it drops elements at random, drawn for the whole batch")
    return [node.only_rows()] * len(node.results)


def matmul(node: Node) -> list[Rows]:
    """Row rule of MatMul: rows lie along the left operand's rows, the right one's columns, or
    before both matrices."""
    # R is the axis of the rows:
    #     [.., R, k] x [k, n]          axis -2 of the result
    #     [m, k]     x [k, R]          axis -1
    #     [R, m, k]  x [R, k, n]       before the matrices; one operand may lack R
    #     [m, R]     x [R, n]          summed: dependent
    #     [R, k]     x [k, R]          every row with every row: dependent
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
    is_left = left is not None and left.axis == left_rank - 2
    if is_left or (right is not None and right.axis == right_rank - 1):
        raise NotIndependent("it multiplies rows with rows")
    # Rows lie before the matrices: there a product broadcasts like an elementwise operator.
    return elementwise(node)


def integer_matmul(node: Node) -> list[Rows]:
    """Row rule of MatMulInteger: a zero point is one number, or is not combined with rows."""
    left, right, left_zero, right_zero = range(4)
    for operand, zero in ((left, left_zero), (right, right_zero)):
        has_own = node.has(zero) and node.shape(zero) not in _SCALARS
        if any(node.rows[zero : zero + 1]) or (has_own and node.rows[operand] is not None):
            raise NotIndependent("its rows have zero points of their own")
    (place,) = matmul(node)
    if place.axis < len(node.results[0]) - _MATRIX_AXES:
        node.settle(place, left_zero, right_zero)
    return [place]


def quantized_matmul(node: Node) -> list[Rows]:
    """Row rule of QLinearMatMul: scales and zero points of the left operand and the result are one
    number each."""
    rows = node.only_rows()
    if rows.axis == len(node.shape(0)) - 1:
        raise NotIndependent("rows lie along the summed dimension")
    if any(node.shape(index) not in _SCALARS for index in (1, 2, 6, 7)):
        raise NotIndependent("its rows have scales of their own")
    place = node.align()
    if place.axis < len(node.results[0]) - _MATRIX_AXES:
        node.settle(place, 3, 4, 5)
    return [place]


def gemm(node: Node) -> list[Rows]:
    """Row rule of Gemm: rows lie along the left operand's; a bias may have a row for each."""
    rows, bias = node.rows[0], 2
    if node.rows[1] is not None or rows is None:
        raise NotIndependent("rows come in through its right operand")
    if rows.axis != int(node.attribute("transA", 0)):
        raise NotIndependent("rows lie along the summed dimension")
    place = rows.moved(0)
    if node.carries(bias):
        if node.place_of(bias) != place:
            raise NotIndependent("its bias carries rows along another axis")
    else:
        node.settle(place, bias)
    return [place]


def einsum(node: Node) -> list[Rows]:
    """Row rule of Einsum: the rows' letter must be the same in all operands that carry rows, appear
    in no other operand, and appear in the result."""
    equation = str(node.attribute("equation", b"").decode()).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation:
        raise NotIndependent("its equation has no arrow, or an ellipsis")
    # "bij,bjk->bik" with rows along b in both operands: each row is a product of its own. In
    # "ij,jk->ik" rows along j would be summed. A letter that an operand without rows has, too,
    # would align the rows with something else.
    letters = {
        operands[index][rows.axis] for index, rows in enumerate(node.rows) if rows is not None
    }
    places = {rows.moved(0) for rows in node.rows if rows is not None}
    letter = letters.pop()
    if letters or len(places) != 1 or result.count(letter) != 1:
        raise NotIndependent("it sums or mixes the rows")
    for index, operand in enumerate(operands):
        if operand.count(letter) > 1 or (node.rows[index] is None and letter in operand):
            raise NotIndependent("rows meet an axis of another operand")
    return [places.pop().moved(result.index(letter))]


def batch_norm(node: Node) -> list[Rows]:
    """Row rule of BatchNormalization: every axis except the channels' is a batch. Along the
    channels, all rows must have the same scales."""
    rows = node.only_rows()
    is_trained = len(node.results) > 1 or node.attribute("training_mode", 0)
    if is_trained or not node.attribute("spatial", 1):
        return leading_axis(node)
    return _of_channels(node, rows, range(1, 5))


def instance_norm(node: Node) -> list[Rows]:
    """Row rule of InstanceNormalization: each channel of each row is normalised separately."""
    rows = node.only_rows()
    if rows.axis > 1:
        raise NotIndependent("it normalises over the rows")
    return _of_channels(node, rows, (1, 2))


def _of_channels(node: Node, rows: Rows, parameters: Sequence[int]) -> list[Rows]:
    """Make parameters, which have one number for each channel (axis 1), independent of the number
    of rows."""
    if rows.axis == 1:
        node.repeat_others(rows.moved(0), *parameters)
    return [rows]


def grouped(attribute: str) -> Rule:
    """Return the rule of operators with groups of channels, axis 1, whose parameters (inputs 1 and
    2) have a part for each channel; `attribute` is the number of groups.

    Axis 0 is a batch by definition. The channels can be one, too, if every group belongs to one row
    and the parameters are the same for all rows. Then the rule moves the rows to axis 0: [a, rows *
    b, ...] becomes [a * rows, b, ...].
    """

    def rule(node: Node) -> list[Rows]:
        rows, groups = node.only_rows(), int(node.attribute(attribute, 1))
        if rows.axis != 1 or rows.before != 1 or groups % node.batch or len(node.results) > 1:
            return leading_axis(node)
        shape, result = node.shape(0), node.results[0]
        # [a, batch * c, h, w] with g groups  ->  [a * batch, c, h, w] with g / batch groups, and
        # back after the node. The parameters keep the part of one row.
        own = Rows(0, result[1] // node.batch)
        for index in filter(node.has, (1, 2)):
            node.take_own(index, own)
        sizes = node.op.ints([-1, rows.block, *shape[2:]])
        node.computed[0] = node.op.add("Reshape", node.proto.input[0], sizes)
        drop_attribute(node.proto, attribute)
        node.proto.attribute.append(helper.make_attribute(attribute, groups // node.batch))
        sizes, name = node.after.ints([result[0], -1, *result[2:]]), node.proto.output[0]
        node.after.add_as(name, "Reshape", node.rename_result(), sizes)
        return [Rows(1, own.block)]

    return rule


def pool(node: Node) -> list[Rows]:
    """Row rule of pools: windows lie within one channel, so batch and channels are both
    independent."""
    rows = node.only_rows()
    return [rows] if rows.axis == 1 and len(node.results) == 1 else leading_axis(node)


def leading_axis(node: Node) -> list[Rows]:
    """Row rule of convolutions, pools and similar operators, which treat axis 0 as a batch by
    definition (MaxPool's indices do not)."""
    rows = node.only_rows()
    if rows.axis != 0:
        raise NotIndependent(f"rows lie along axis {rows.axis}, not 0")
    if len(node.results) > 1 or node.attribute("training_mode", 0):
        raise NotIndependent(
            "its further outputs number elements, or are taken, over the whole batch"
        )
    return [rows]


def attention(node: Node) -> list[Rows]:
    """Row rule of Attention: all inputs have the batch first. A mask has it only if it has all four
    axes and is not one for all rows."""
    mask, axes = 3, 4
    masked = node.has(mask) and len(node.shape(mask)) == axes
    masked = masked and (node.carries(mask) or node.shape(mask)[0] != 1)
    batched = [index for index in range(len(node.rows)) if index != mask or masked]
    return _leading_axes(node, batched)


def rotary_embedding(node: Node) -> list[Rows]:
    """Row rule of RotaryEmbedding: with positions the tables are lookup tables; without, they have
    a batch and tokens of their own. It turns each token by itself, so that tokens, axis 1, or axis
    2 behind the heads, may be rows, too."""
    tokens = 1
    beside = [3] if node.has(3) else [1, 2]
    rows = node.rows[0]
    if rows is None or rows.axis == 0 or rows.axis != len(node.shape(0)) - 2:
        return _leading_axes(node, [0, *beside])
    place = rows.moved(tokens)
    if any(node.rows[index] not in (None, place) for index in beside):
        raise NotIndependent("its positions carry rows along another axis")
    node.repeat_others(place, *beside)
    return [rows]


def leading_axes(*batched: int) -> Rule:
    """Return the row rule of operators whose inputs `batched` have the batch first: pictures and
    grids, offsets or masks, caches and their updates."""
    return lambda node: _leading_axes(node, batched)


def _leading_axes(node: Node, batched: Sequence[int]) -> list[Rows]:
    """Return the places of rows if the inputs `batched` and all outputs have the batch first. A
    batched input without rows must be the same for all rows."""
    places = {rows for rows in node.rows if rows is not None}
    others = [rows for index, rows in enumerate(node.rows) if index not in batched]
    if len(places) != 1 or any(others) or (place := places.pop()).axis != 0:
        raise NotIndependent("its inputs do not all carry their rows along axis 0")
    node.repeat_others(place, *batched)
    return [place] * len(node.results)


def determinant(node: Node) -> list[Rows]:
    """Row rule of Det: the matrices are the last two axes."""
    rows, matrix_axes = node.only_rows(), 2
    if rows.axis >= len(node.shape(0)) - matrix_axes:
        raise NotIndependent("rows lie along its matrices")
    return [rows]


def count_terms(node: Node) -> list[Rows]:
    """Row rule of TfIdfVectorizer: of two axes the first is a batch; a single axis is one text."""
    if len(node.shape(0)) == 1:
        raise NotIndependent("rows lie along its text")
    return leading_axis(node)


def fourier(node: Node) -> list[Rows]:
    """Row rule of DFT: it works along one axis, which later opsets have as an input; the last axis
    has the parts of complex numbers."""
    rows, rank, axis_input = node.only_rows(), len(node.shape(0)), 2
    if node.opset < DFT_TAKES_AXIS:
        axis = int(node.attribute("axis", 1))
    else:
        axis_value = node.constant(axis_input)
        axis = -2 if axis_value is None else int(axis_value.item())
    if rows.axis in (axis % rank, rank - 1):
        raise NotIndependent("it works along the rows")
    return [rows]


def along(default: int) -> Rule:
    """Return the row rule of operators that work along one axis: rows are independent if they lie
    along another axis."""

    def rule(node: Node) -> list[Rows]:
        rows = node.only_rows()
        if node.axis(default, len(node.shape(0))) == rows.axis:
            raise NotIndependent("it works along the rows")
        return [rows] * len(node.results)

    return rule


def inner_axes(node: Node) -> list[Rows]:
    """Row rule of normalisation over all axes from `axis` on; scale and bias are broadcast."""
    rows = node.only_rows()
    if node.axis(-1, len(node.shape(0))) <= rows.axis:
        raise NotIndependent("it normalises over the rows")
    node.settle(rows)
    return [rows] * len(node.results)


def softmax(node: Node) -> list[Rows]:
    """Row rule of Softmax. Before opset 13 it flattens everything from axis (default 1) on, so the
    rows must lie before that axis."""
    rows = node.only_rows()
    flattens = node.opset < SOFTMAX_HAS_ONE_AXIS
    axis = node.axis(1 if flattens else -1, len(node.shape(0)))
    if axis == rows.axis or (flattens and axis < rows.axis):
        raise NotIndependent("it normalises along the rows")
    return [rows]


def reduce(node: Node) -> list[Rows]:
    """Row rule of reductions over other axes than the rows'. Without `keepdims` the reduced axes
    before the rows' are removed."""
    rows = node.only_rows()
    rank = len(node.shape(0))
    axes = node.attribute("axes")
    if axes is None:
        axes_value = node.constant(1)
        if (axes_value is None or not axes_value.size) and node.attribute(
            "noop_with_empty_axes", 0
        ):
            return [rows]
        axes = (
            list(range(rank)) if axes_value is None or not axes_value.size else axes_value.tolist()
        )
    reduced = {int(axis) % rank for axis in axes}
    if rows.axis in reduced:
        raise NotIndependent("it reduces over the rows")
    if node.attribute("keepdims", 1):
        return [rows]
    return [rows.moved(rows.axis - sum(axis < rows.axis for axis in reduced))]


def mean_variance(node: Node) -> list[Rows]:
    """Row rule of MeanVarianceNormalization: it normalises over the axes that it names."""
    rows = node.only_rows()
    if rows.axis in {axis % len(node.shape(0)) for axis in node.attribute("axes", [0, 2, 3])}:
        raise NotIndependent("it normalises over the rows")
    return [rows]


def arg(node: Node) -> list[Rows]:
    """Row rule of ArgMax and ArgMin: they search along one axis, which is removed without
    `keepdims`."""
    rows = node.only_rows()
    axis = node.axis(0, len(node.shape(0)))
    if axis == rows.axis:
        raise NotIndependent("it searches along the rows")
    stays = node.attribute("keepdims", 1) or axis > rows.axis
    return [rows if stays else rows.moved(rows.axis - 1)]


def cumulative(node: Node) -> list[Rows]:
    """Row rule of CumSum and CumProd: their axis is an input."""
    rows = node.only_rows()
    axis = node.constant(1)
    if axis is None or int(axis.item()) % len(node.shape(0)) == rows.axis:
        raise NotIndependent("it sums along the rows")
    return [rows]


def quantize(node: Node) -> list[Rows]:
    """Row rule of QuantizeLinear and DequantizeLinear: scales belong to the whole tensor, or to
    another axis than the rows'."""
    # Scales of blocks (more than one axis) follow the tensor's shape, and so its rows.
    rows = node.only_rows()
    scale = node.shape(1)
    if len(scale) > 1 or (scale not in _SCALARS and node.axis(1, len(node.shape(0))) == rows.axis):
        raise NotIndependent("its scale differs from row to row")
    return [rows]


_LENGTHS, _STATES, _PEEPHOLES = 4, (5, 6), 7
"""Indices of the inputs of a recurrent operator."""


def recurrent(node: Node) -> list[Rows]:
    """Row rule of LSTM, GRU and RNN: input and states have the batch at axis 1; Y at axis 2, the
    last states at 1. With layout 1 all have it at axis 0."""
    batch_first = bool(node.attribute("layout", 0))
    place = node.rows[0]
    if place is None or place.axis != (0 if batch_first else 1) or any(node.rows[1:_LENGTHS]):
        raise NotIndependent("rows do not lie along the batch axis of its input alone")
    if any(node.rows[_PEEPHOLES:]):
        raise NotIndependent("its peepholes carry rows")
    _forget_state(node, _LENGTHS, place.moved(0))
    for index in _STATES:
        _forget_state(node, index, place)
    places = [place, place, place] if batch_first else [place.moved(2), place, place]
    return [place for place, name in zip(places, node.proto.output, strict=False) if name]


def _forget_state(node: Node, index: int, place: Rows) -> None:
    """Make the lengths or initial states of a recurrent operator independent of the number of rows;
    exporters write them out for the compiled batch. States of zeros are dropped: they are the
    default, and ONNX Runtime need not read them."""
    if not node.has(index):
        return
    if node.rows[index] is not None:
        if node.rows[index] != place:
            raise NotIndependent("rows do not lie along the batch axis of its states")
        return
    value = node.constant(index)
    assert value is not None
    if index != _LENGTHS and not value.any():
        node.computed[index] = ""
    else:
        node.forget_rows(index, place.axis, place, broadcasts=False)


def attention_mask(node: Node) -> list[Rows]:
    """Row rule of AttentionMask: the mask and its result have the batch first; of the scores only
    the shape counts."""
    rows = node.rows[0]
    if rows is None or rows.axis:
        raise NotIndependent("its mask does not carry rows along axis 0")
    return [rows]


def split_inputs(node: Node) -> list[Rows]:
    """Row rule of HCSR: inputs are stacked along axis 0, each with its rows along axis 1."""
    rows, width = node.only_rows(), int(list(node.attribute("shape"))[1])
    if rows.axis != 1 or rows.before != 1 or rows.block % width:
        raise NotIndependent("rows do not lie along its second axis")
    return [Rows(0, rows.block // width)] * len(node.results)
