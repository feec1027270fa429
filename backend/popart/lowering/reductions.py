"""Rules of reductions, extremes, medians, sorts and cumulative sums.

Indices are INT32, whatever the standard says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto
from onnxgraph import Results
from onnxgraph.opsets import TOP_K_TAKES_COUNT

from popart.errors import popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import (
    FLOATS,
    Operation,
    check_floats,
    chip_rule,
    keep,
    match_widths,
    read_axes,
    rule,
)
from popart.tensorinfo import TensorInfo, from_onnx_type

_INT32 = TensorProto.INT32


@rule("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
def _reduce_floats(op: Graph, node: Operation) -> Results:
    """Roots and logarithms: PopART has no whole numbers for them."""
    check_floats(node, node.x)
    return _reduce_axes(op, node)


@rule("ReduceProd", "ReduceSum", "ReduceSumSquare")
def _reduce_wrapping(op: Graph, node: Operation) -> Results:
    """Sums and products wrap around alike, with or without a sign; ONNX Runtime has the former."""
    return _reduce_axes(op, node, wraps=node.x.element_type == TensorProto.UINT32)


@rule("ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin")
def _reduce(op: Graph, node: Operation) -> Results:
    return _reduce_axes(op, node)


def _reduce_axes(op: Graph, node: Operation, *, wraps: bool = False) -> Results:
    """Without axes all axes are reduced; with no axes (an empty list) none."""
    x, axes, kind = node.x, _axes(node), node.node.op_type
    is_empty = not all(x.shape[axis] for axis in axes)
    if kind == "ReduceMean" and x.element_type in FLOATS and is_empty:
        return _mean_of_nothing(op, node, axes)
    if not axes:
        return _reduce_nothing(op, node)
    result = op.add(
        kind,
        op.cast(x, _INT32) if wraps else x,
        axes=axes,
        keepdims=int(node.get("keepdims", 1)),
        noop_with_empty_axes=1,
    )
    return op.cast(result, x.element_type)


def _mean_of_nothing(op: Graph, node: Operation, axes: Sequence[int]) -> Tensor:
    """Return the mean of no elements, which is no number."""
    x, keeps = node.x, bool(node.get("keepdims", 1))
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = [size for axis, size in enumerate(sizes) if keeps or axis not in axes]
    return op.constant(np.full(shape, np.nan, x.dtype))


def _reduce_nothing(op: Graph, node: Operation) -> Tensor:
    """Return what a reduction over no axes makes of each element."""
    x = node.x
    match node.node.op_type:
        case "ReduceL1" | "ReduceL2":
            return op.Abs(x)
        case "ReduceSumSquare":
            return x * x
        case "ReduceLogSum":
            return op.Log(x)
    return op.Identity(x)


def _axes(node: Operation) -> list[int]:
    rank, axes = node.x.rank, node.get("axes")
    return list(range(rank)) if axes is None else read_axes(axes, rank)


@chip_rule("ReduceMedian")
def _median(op: Graph, node: Operation) -> Results:
    """The lower median, and its place in the reduced axes, flattened."""
    x, axes = node.x, _axes(node)
    others = [axis for axis in range(x.rank) if axis not in axes]
    count = int(np.prod([x.shape[axis] for axis in axes]))
    flat = op.transpose(x, [*others, *axes])
    flat = op.reshape(flat, [*(x.shape[axis] for axis in others), count])
    middle = (count - 1) // 2
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not node.get("keepdims", 1):
        shape = [x.shape[axis] for axis in others]
    smallest = op.add_all(2, "TopK", flat, k=[middle + 1], axis=-1, largest=0, sorted=1)
    value, place = (
        op.reshape(op.Gather(column, op.ints([middle]), axis=-1), shape) for column in smallest
    )
    return [value, op.cast(place, _INT32)]


@rule("ArgMax", "ArgMin")
def _extreme(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(0)
    if not x.rank:
        raise popart_exception(
            "ArgExtremaOp input rank must be greater than 0, invalid ArgExtremaOp "
            f"{node.describe()}."
        )
    if not 0 <= axis < x.rank:
        raise popart_exception(
            f"Cannot compute ArgExtremaOp on axis {axis} when input rank is {x.rank}, invalid "
            f"ArgExtremaOp {node.describe()}."
        )
    return op.cast(keep(op, node)[0], _INT32)


def _check_axis(node: Operation, axis: int) -> None:
    rank = node.x.rank
    if not rank:
        raise popart_exception(
            f"BaseSortOp input rank must be greater than 0, invalid BaseSortOp {node.describe()}."
        )
    if not 0 <= axis < rank:
        raise popart_exception(
            f"Cannot compute BaseSortOp on axis {axis} when input rank is {rank}, invalid "
            f"BaseSortOp {node.describe()}."
        )


@rule("TopK")
def _topk(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(-1)
    _check_axis(node, axis)
    is_attribute = node.version < TOP_K_TAKES_COUNT
    count = int(node.get("k")) if is_attribute else node.whole_numbers(1, "k")[0]
    if x.shape[axis] < count:
        raise popart_exception(
            f"Cannot take top-{count} on dim of size {x.shape[axis]}, invalid Op {node.describe()}"
        )
    values, places = op.add_all(
        2,
        "TopK",
        x,
        k=[count],
        axis=axis,
        largest=int(node.get("largest", 1)),
        sorted=int(node.get("sorted", 1)),
    )
    return [values, op.cast(places, _INT32)]


@chip_rule("Sort")
def _sort(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(-1)
    _check_axis(node, axis)
    size, largest = x.shape[axis], int(bool(node.get("descending", 0)))
    values, places = op.add_all(2, "TopK", x, k=[size], axis=axis, largest=largest, sorted=1)
    return [values, op.cast(places, _INT32)]


@chip_rule("Bucketize")
def _bucketize(op: Graph, node: Operation) -> Results:
    """Search each x among the boundaries by halving: the first boundary that is not below x, or
    with `right` the first above it. NaN is above all of them."""
    x, boundaries = match_widths(op, [node.x, node.input(1)])
    if boundaries.rank != 1:
        raise popart_exception(
            "BucketizeOp::setup The boundaries tensor is not a 1-D tensor. The boundaries tensor "
            f"rank = {boundaries.rank}."
        )
    if x.element_type != boundaries.element_type:
        names = [
            TensorInfo(from_onnx_type(operand.element_type), []).data_type_lcase()
            for operand in (x, boundaries)
        ]
        raise popart_exception(
            "BucketizeOp::setup The input and boundaries tensors have different data types. The "
            f"input tensor data type = {names[0]}. The boundaries tensor data type = {names[1]}."
        )
    right = int(node.get("right", 0))
    if right not in (0, 1):
        raise popart_exception(f"BucketizeOp right = {right} is not valid: must be either 0 or 1.")
    stops = "Greater" if right else "GreaterOrEqual"
    count = boundaries.shape[0]
    first = op.constant(np.zeros(x.shape, np.int32))
    end = op.constant(np.full(x.shape, count, np.int32))
    for _ in range(count.bit_length()):
        middle = (first + end) / 2
        place = op.Min(middle, count - 1)  # where the search has ended
        is_here = op.add(stops, op.Gather(boundaries, place, axis=0), x)
        behind = op.Where(is_here, first, middle + 1)
        is_open = op.Less(first, end)
        end = op.Where(is_here, middle, end)
        first = op.Where(is_open, behind, first)
    return first


@rule("CumSum")
def _cumulate(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.input(1)
    if axis.size != 1:
        raise popart_exception("CumSum op, 'axis' tensor must have one element.")
    value = node.value(1)
    if value is None:
        raise popart_exception(
            f"For CumSum op {node.describe()}, the axis tensor {node.node.input[1]} does "
            "not have data."
        )
    along = int(np.ravel(value)[0])
    if not -x.rank <= along < x.rank:
        raise popart_exception(
            f"CumSum op, 'axis' value, {along}, is out of range [{-x.rank}, {x.rank - 1}]"
        )
    exclusive, reverse = (int(node.get(name, 0)) for name in ("exclusive", "reverse"))
    return op.CumSum(x, op.ints(along), exclusive=exclusive, reverse=reverse)
