"""Proves that a compiled batch is a stack of independent rows, and rewrites the graph to compute any number of them.

A tensor carries rows when one axis is the batch, outermost: row i is the slice [i * block, (i + 1) * block) of it. Each
operator has a rule that says where its rows go, or raises `NotIndependent`. The result computes for n rows exactly what the
compiled batch computes for those n rows and any padding; an operator without a rule only costs speed, never correctness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from simipu.shapes import collect_values

Shape = tuple[int, ...]


class NotIndependent(Exception):
    """Rows cannot be shown to be independent: says at which node and why. A reason, not a failure."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a tensor lie: along `axis`, `block` elements of that axis each."""

    axis: int
    block: int = 1

    def moved(self, axis: int) -> Rows:
        return Rows(axis, self.block)


@dataclass(slots=True)
class Node:
    """One node with everything its rule may look at; `rewrites` replaces constant inputs by position."""

    proto: onnx.NodeProto
    batch: int
    rows: list[Rows | None]
    shapes: list[Shape | None]
    results: list[Shape]
    constants: list[npt.NDArray[Any] | None]
    rewrites: dict[int, npt.NDArray[Any]] = field(default_factory=dict)

    def attribute(self, name: str, default: Any = None) -> Any:
        found = [a for a in self.proto.attribute if a.name == name]
        return helper.get_attribute_value(found[0]) if found else default

    def shape(self, index: int) -> Shape:
        shape = self.shapes[index]
        if shape is None:
            raise NotIndependent(f"input {index} has no known shape")
        return shape

    def constant(self, index: int) -> npt.NDArray[Any] | None:
        """The constant at that input, None if there is no such input; NotIndependent if it is computed."""
        if index >= len(self.shapes) or not self.proto.input[index]:
            return None
        constant = self.constants[index]
        if constant is None:
            raise NotIndependent(f"input {index} is computed at run time")
        return constant

    def only_rows(self) -> Rows:
        """The rows of input 0, provided that no other input carries any."""
        if any(self.rows[1:]) or self.rows[0] is None:
            raise NotIndependent("rows come in through another input than the first")
        return self.rows[0]

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        return int(self.attribute(name, default)) % max(1, rank)


def make_row_independent(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """`model`, compiled for `batch` rows, as a graph of as many rows as it is given (symbolic leading dimension).

    Raises NotIndependent, with the node and the reason, when that cannot be proven.
    """
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph = rewritten.graph
    shapes = {name: value.shape for name, value in collect_values(model).items()}
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if _is_inline(t)}
    rows: dict[str, Rows | None] = {value.name: Rows(0) for value in graph.input}
    added: list[onnx.TensorProto] = []
    for proto in graph.node:
        _trace(proto, batch, rows, shapes, constants, added)
    for value in graph.output:
        if rows.get(value.name) != Rows(0):
            raise NotIndependent(f"output {value.name!r} does not have one row for each input row along its first axis")
    graph.initializer.extend(added)
    _drop_unused_initializers(graph)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    del graph.value_info[:]
    return rewritten


def _is_inline(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location != onnx.TensorProto.EXTERNAL)


def _drop_unused_initializers(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _trace(
    proto: onnx.NodeProto,
    batch: int,
    rows: dict[str, Rows | None],
    shapes: Mapping[str, Shape],
    constants: dict[str, npt.NDArray[Any]],
    added: list[onnx.TensorProto],
) -> None:
    if proto.op_type == "Constant":
        constants[proto.output[0]] = _constant_value(proto)
    node = Node(
        proto,
        batch,
        [rows.get(name) for name in proto.input],
        [shapes.get(name) for name in proto.input],
        [shapes[name] for name in proto.output if name],
        [constants.get(name) for name in proto.input],
    )
    if not any(node.rows):
        return
    rule = _RULES.get(proto.op_type)
    try:
        if rule is None:
            raise NotIndependent("no rule for this operator")
        placed = rule(node)
        for name, place in zip((name for name in proto.output if name), placed, strict=False):
            _check_place(shapes[name], place, batch)
            rows[name] = place
    except NotIndependent as reason:
        raise NotIndependent(f"node {proto.name!r} ({proto.op_type}): {reason}") from None
    for index, value in node.rewrites.items():
        name = f"{proto.output[0]}/rows/{index}"
        added.append(numpy_helper.from_array(value, name))
        proto.input[index] = name


def _constant_value(proto: onnx.NodeProto) -> npt.NDArray[Any]:
    attribute = proto.attribute[0]
    value = helper.get_attribute_value(attribute)
    return numpy_helper.to_array(value) if attribute.name == "value" else np.asarray(value)


def _check_place(shape: Shape, place: Rows, batch: int) -> None:
    if shape[place.axis] != batch * place.block:
        raise NotIndependent(f"its result has shape {shape}, without {batch * place.block} along axis {place.axis}")


# --- the rules ---------------------------------------------------------------------------------------------------------


def _elementwise(node: Node) -> list[Rows]:
    """Broadcasting: rows must line up; what carries no rows must not tell them apart."""
    rank = len(node.results[0])
    aligned = {
        rows.moved(rows.axis + rank - len(node.shape(index))) for index, rows in enumerate(node.rows) if rows is not None
    }
    if len(aligned) != 1:
        raise NotIndependent("its inputs carry their rows along different axes")
    (place,) = aligned
    _forget_rows_of_constants(node, place, rank)
    return [place] * len(node.results)


def _forget_rows_of_constants(node: Node, place: Rows, rank: int) -> None:
    for index, rows in enumerate(node.rows):
        if rows is not None or not node.proto.input[index]:
            continue
        axis = place.axis - (rank - len(node.shape(index)))
        if axis < 0 or node.shape(index)[axis] == 1:
            continue
        value = node.constant(index)
        assert value is not None
        first = value.take([0], axis)
        if place.block != 1 or not np.array_equal(
            value, np.broadcast_to(first, value.shape), equal_nan=value.dtype.kind == "f"
        ):
            raise NotIndependent(f"constant {node.proto.input[index]!r} differs from row to row")
        node.rewrites[index] = first


def _matmul(node: Node) -> list[Rows]:
    left, right = node.rows
    rank = len(node.results[0])
    left_rank, right_rank = len(node.shape(0)), len(node.shape(1))
    if min(left_rank, right_rank) < 2:
        raise NotIndependent("a vector operand")
    if right is not None and right.axis >= right_rank - 2:
        raise NotIndependent("rows lie along the matrix of the right operand")
    if left is not None and left.axis == left_rank - 1:
        raise NotIndependent("rows lie along the summed dimension")
    if left is not None and left.axis == left_rank - 2 and right is None:
        return [left.moved(rank - 2)]
    return _elementwise(node)


def _gemm(node: Node) -> list[Rows]:
    rows = node.only_rows()
    if rows.axis != int(node.attribute("transA", 0)):
        raise NotIndependent("rows lie along the summed dimension")
    bias = node.shape(2) if len(node.shapes) > 2 and node.proto.input[2] else ()
    if len(bias) == 2 and bias[0] != 1:
        raise NotIndependent("its bias differs from row to row")
    return [Rows(0, rows.block)]


def _leading_axis(node: Node) -> list[Rows]:
    """Convolutions, pools and the like treat axis 0 as a batch by definition (MaxPool's indices do not)."""
    rows = node.only_rows()
    if rows.axis != 0:
        raise NotIndependent(f"rows lie along axis {rows.axis}, not 0")
    if len(node.results) > 1:
        raise NotIndependent("its further outputs number elements over the whole batch")
    return [rows]


def _along(default: int) -> Callable[[Node], list[Rows]]:
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
    return [rows]


def _softmax(node: Node) -> list[Rows]:
    """Before opset 13 it flattens everything from axis (default 1) on, so the rows must stand before it."""
    rows = node.only_rows()
    if node.axis(1, len(node.shape(0))) <= rows.axis:
        raise NotIndependent("it normalises along the rows")
    return [rows]


def _reduce(node: Node) -> list[Rows]:
    rows = node.only_rows()
    rank = len(node.shape(0))
    axes = node.attribute("axes")
    if axes is None:
        given = node.constant(1)
        axes = list(range(rank)) if given is None or not given.size else given.tolist()
    reduced = {int(axis) % rank for axis in axes}
    if rows.axis in reduced:
        raise NotIndependent("it reduces over the rows")
    if node.attribute("keepdims", 1):
        return [rows]
    return [rows.moved(rows.axis - sum(axis < rows.axis for axis in reduced))]


def _arg(node: Node) -> list[Rows]:
    rows = node.only_rows()
    axis = node.axis(0, len(node.shape(0)))
    if axis == rows.axis:
        raise NotIndependent("it searches along the rows")
    return [rows if node.attribute("keepdims", 1) or axis > rows.axis else rows.moved(rows.axis - 1)]


def _cumsum(node: Node) -> list[Rows]:
    rows = node.only_rows()
    axis = node.constant(1)
    if axis is None or int(axis.item()) % len(node.shape(0)) == rows.axis:
        raise NotIndependent("it sums along the rows")
    return [rows]


def _transpose(node: Node) -> list[Rows]:
    rows = node.only_rows()
    order = node.attribute("perm") or list(range(len(node.shape(0))))[::-1]
    return [rows.moved(list(order).index(rows.axis))]


def _reshaped(node: Node) -> Rows:
    """Row-major order is kept: the rows stay where as many elements come before their axis as did."""
    rows = node.only_rows()
    shape, result = node.shape(0), node.results[0]
    before = math.prod(shape[: rows.axis])
    for axis, size in enumerate(result):
        if math.prod(result[:axis]) == before and size % node.batch == 0 and size:
            return Rows(axis, size // node.batch)
    raise NotIndependent(f"from {shape} to {result} mixes rows with what stands before them")


def _view(node: Node) -> list[Rows]:
    return [_reshaped(node)]


def _reshape(node: Node) -> list[Rows]:
    place = _reshaped(node)
    if node.constant(1) is None or 0 in node.shape(0):
        raise NotIndependent("its shape is not known")
    target = np.asarray(node.results[0], np.int64)
    target[place.axis] = -1
    node.rewrites[1] = target
    return [place]


def _concat(node: Node) -> list[Rows]:
    places = set(node.rows)
    if None in places or len(places) != 1:
        raise NotIndependent("not all its inputs carry rows along the same axis")
    rows = node.rows[0]
    assert rows is not None
    if node.axis(0, len(node.shape(0))) == rows.axis:
        raise NotIndependent("it joins rows")
    return [rows]


def _slice(node: Node) -> list[Rows]:
    rows = node.only_rows()
    rank = len(node.shape(0))
    starts, ends, axes, steps = (node.attribute(name) for name in ("starts", "ends", "axes", "steps"))
    if starts is None:
        starts, ends, axes, steps = (node.constant(index) for index in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise NotIndependent("its range is not known")
    places = [int(axis) % rank for axis in (axes if axes is not None else range(len(starts)))]
    if rows.axis not in places:
        return [rows]
    index = places.index(rows.axis)
    step = 1 if steps is None else int(steps[index])
    if int(starts[index]) or step != 1 or int(ends[index]) < node.shape(0)[rows.axis]:
        raise NotIndependent("it slices the rows")
    if node.attribute("ends") is None:  # all rows: the end must not name their number
        node.rewrites[2] = np.asarray(ends).copy()
        node.rewrites[2][index] = np.iinfo(node.rewrites[2].dtype).max
        return [rows]
    if int(ends[index]) < np.iinfo(np.int32).max:
        raise NotIndependent("its range names the number of rows")
    return [rows]


def _gather(node: Node) -> list[Rows]:
    data, indices = node.rows
    axis = node.axis(0, len(node.shape(0)))
    if data is None and indices is not None:
        return [indices.moved(axis + indices.axis)]
    if data is None or indices is not None:
        raise NotIndependent("both its inputs carry rows")
    if axis == data.axis:
        raise NotIndependent("it picks among the rows")
    grown = len(node.shape(1)) - 1
    return [data if data.axis < axis else data.moved(data.axis + grown)]


def _gather_elements(node: Node) -> list[Rows]:
    data, indices = node.rows
    if data is None or data != indices or node.axis(0, len(node.shape(0))) == data.axis:
        raise NotIndependent("its indices may point at other rows")
    return [data]


def _expand(node: Node) -> list[Rows]:
    rows = node.only_rows()
    shape = node.constant(1)
    if shape is None:
        raise NotIndependent("its shape is not known")
    place = rows.moved(rows.axis + len(node.results[0]) - len(node.shape(0)))
    target = np.asarray(shape, np.int64).copy()
    from_end = place.axis - len(node.results[0])
    if -from_end <= target.size:
        target[from_end] = 1
    node.rewrites[1] = target
    return [place]


def _tile(node: Node) -> list[Rows]:
    rows = node.only_rows()
    repeats = node.constant(1)
    if repeats is None or repeats[rows.axis] != 1:
        raise NotIndependent("it repeats the rows")
    return [rows]


def _pad(node: Node) -> list[Rows]:
    rows = node.only_rows()
    rank = len(node.shape(0))
    pads = node.attribute("pads")
    if pads is None:
        given = node.constant(1)
        if given is None or node.constant(3) is not None:
            raise NotIndependent("its pads are not known for all axes")
        pads = given
    if pads[rows.axis] or pads[rows.axis + rank]:
        raise NotIndependent("it pads the rows")
    return [rows]


def _resize(node: Node) -> list[Rows]:
    if len(node.shapes) > 3 and node.proto.input[3]:
        sizes = node.constant(3)
        if sizes is None or node.attribute("axes") is not None:
            raise NotIndependent("its sizes are not known for all axes")
        raise NotIndependent("it is given sizes, which fix the number of rows")
    return _leading_axis(node)


def _recurrent(node: Node) -> list[Rows]:
    """LSTM, GRU, RNN: input and states have the batch at axis 1; Y at axis 2, the last states at 1."""
    if node.attribute("layout", 0):
        raise NotIndependent("layout 1")
    states = [rows for index, rows in enumerate(node.rows) if index >= 5 and node.proto.input[index]]
    if node.rows[0] != Rows(1) or any(node.rows[1:5]) or any(state not in (None, Rows(1)) for state in states):
        raise NotIndependent("rows do not lie along the batch axis of its inputs")
    for index in range(5, len(node.rows)):
        if node.rows[index] is None and node.constant(index) is not None:
            raise NotIndependent("a constant initial state fixes the number of rows")
    places = [Rows(2), Rows(1), Rows(1)]
    return [place for place, name in zip(places, node.proto.output, strict=False) if name]


def _rules() -> dict[str, Callable[[Node], list[Rows]]]:
    families: Sequence[tuple[Callable[[Node], list[Rows]], str]] = (
        (
            _elementwise,
            "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil "
            "Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity "
            "IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round "
            "Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor",
        ),
        (
            _leading_axis,
            "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool GlobalMaxPool "
            "GroupNormalization InstanceNormalization LRN LpPool MaxPool SpaceToDepth",
        ),
        (_along(-1), "LpNormalization TopK"),
        (_along(0), "Split"),
        (_inner_axes, "LayerNormalization RMSNormalization"),
        (_softmax, "Softmax LogSoftmax Hardmax"),
        (_arg, "ArgMax ArgMin"),
        (_view, "Flatten Squeeze Unsqueeze"),
        (_recurrent, "LSTM GRU RNN"),
        (
            _reduce,
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
            "ReduceSumSquare",
        ),
    )
    rules = {name: rule for rule, names in families for name in names.split()}
    singles = {
        "MatMul": _matmul,
        "Gemm": _gemm,
        "Transpose": _transpose,
        "Reshape": _reshape,
        "Concat": _concat,
        "Slice": _slice,
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "Expand": _expand,
        "Tile": _tile,
        "CumSum": _cumsum,
        "Pad": _pad,
        "Resize": _resize,
    }
    return {**rules, **singles}


_RULES = _rules()
