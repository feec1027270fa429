"""Rules of reductions, extremes, medians, sorts and cumulative sums.

Indices are INT32, whatever the standard says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from popart.errors import popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import (
    FLOATS,
    Operation,
    check_floats,
    chip_rule,
    match_widths,
    read_axes,
    rule,
)
from popart.tensorinfo import TensorInfo, from_onnx_type

_INT32 = TensorProto.INT32
_WRAPPING = frozenset(("ReduceSum", "ReduceProd", "ReduceSumSquare"))
"""Reductions whose results keep the low bits."""
_ROOTS = frozenset(("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"))
"""Reductions whose results are no whole numbers; the standard has some of them for integers, too,
so this is no fact about the operators."""


@rule(
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
def _reduce(operation: Operation) -> Sequence[Tensor]:
    """Without axes all axes are reduced; with no axes (an empty list) none."""
    x, axes, kind = operation.x, _axes(operation), operation.node.op_type
    if kind in _ROOTS:
        check_floats(operation, x)
    if kind == "ReduceMean" and x.type in FLOATS and not all(x.shape[axis] for axis in axes):
        return [_mean_of_nothing(operation, axes)]
    if not axes:
        return [_reduce_nothing(operation)]
    # Sums and products wrap around alike, with or without a sign; ONNX Runtime has the former.
    wraps = x.type == TensorProto.UINT32 and kind in _WRAPPING
    made = operation.add(
        kind,
        operation.cast(x, _INT32) if wraps else x,
        operation.numbers(np.asarray(axes, np.int64)),
        keepdims=int(operation.attribute("keepdims", 1)),
        noop_with_empty_axes=1,
    )
    return [operation.cast(made, x.type)]


def _mean_of_nothing(operation: Operation, axes: Sequence[int]) -> Tensor:
    """Return the mean of no elements, which is no number."""
    x, keeps = operation.x, bool(operation.attribute("keepdims", 1))
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    kept = [size for axis, size in enumerate(sizes) if keeps or axis not in axes]
    return operation.constant(np.full(kept, np.nan, x.dtype))


def _reduce_nothing(operation: Operation) -> Tensor:
    """Return what a reduction over no axes makes of each element."""
    x = operation.x
    match operation.node.op_type:
        case "ReduceL1" | "ReduceL2":
            return operation.add("Abs", x)
        case "ReduceSumSquare":
            return operation.add("Mul", x, x)
        case "ReduceLogSum":
            return operation.add("Log", x)
    return operation.add("Identity", x)


def _axes(operation: Operation) -> list[int]:
    rank, axes = operation.x.rank, operation.attribute("axes")
    return list(range(rank)) if axes is None else read_axes(axes, rank)


@chip_rule("ReduceMedian")
def _median(operation: Operation) -> Sequence[Tensor]:
    """The lower median, and its place in the reduced axes, flattened."""
    x, axes = operation.x, _axes(operation)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    count = int(np.prod([x.shape[axis] for axis in axes]))
    flat = operation.transpose(x, [*kept, *axes])
    flat = operation.reshape(flat, [*(x.shape[axis] for axis in kept), count])
    middle = (count - 1) // 2
    values, places = _take_smallest(operation, flat, middle + 1)
    last = operation.numbers(np.asarray([middle]))
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    if not operation.attribute("keepdims", 1):
        shape = [x.shape[axis] for axis in kept]
    found = [
        operation.reshape(operation.add("Gather", each, last, axis=-1), shape)
        for each in (values, places)
    ]
    return [found[0], operation.cast(found[1], _INT32)]


def _take_smallest(operation: Operation, x: Tensor, count: int) -> list[Tensor]:
    """Return the smallest elements of the last axis in order, and their indices."""
    number = operation.numbers(np.asarray([count]))
    return operation.add_all("TopK", x, number, outputs=2, axis=-1, largest=0, sorted=1)


@rule("ArgMax", "ArgMin")
def _extreme(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, operation.axis(0)
    if not x.rank:
        raise popart_exception(
            "ArgExtremaOp input rank must be greater than 0, invalid ArgExtremaOp "
            f"{operation.describe()}."
        )
    if not 0 <= axis < x.rank:
        raise popart_exception(
            f"Cannot compute ArgExtremaOp on axis {axis} when input rank is {x.rank}, invalid "
            f"ArgExtremaOp {operation.describe()}."
        )
    keepdims = int(operation.attribute("keepdims", 1))
    found = operation.add(operation.node.op_type, x, axis=axis, keepdims=keepdims)
    return [operation.cast(found, _INT32)]


def _check_axis(operation: Operation, axis: int) -> None:
    rank = operation.x.rank
    if not rank:
        raise popart_exception(
            "BaseSortOp input rank must be greater than 0, invalid BaseSortOp "
            f"{operation.describe()}."
        )
    if not 0 <= axis < rank:
        raise popart_exception(
            f"Cannot compute BaseSortOp on axis {axis} when input rank is {rank}, invalid "
            f"BaseSortOp {operation.describe()}."
        )


@rule("TopK")
def _topk(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, operation.axis(-1)
    _check_axis(operation, axis)
    if operation.version < 10:  # noqa: PLR2004
        count = int(operation.attribute("k"))
    else:
        count = operation.whole_numbers(1, "k")[0]
    if x.shape[axis] < count:
        raise popart_exception(
            f"Cannot take top-{count} on dim of size {x.shape[axis]}, invalid Op "
            f"{operation.describe()}"
        )
    values, places = operation.add_all(
        "TopK",
        x,
        operation.numbers(np.asarray([count])),
        outputs=2,
        axis=axis,
        largest=int(operation.attribute("largest", 1)),
        sorted=int(operation.attribute("sorted", 1)),
    )
    return [values, operation.cast(places, _INT32)]


@chip_rule("Sort")
def _sort(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, operation.axis(-1)
    _check_axis(operation, axis)
    number = operation.numbers(np.asarray([x.shape[axis]]))
    largest = int(bool(operation.attribute("descending", 0)))
    values, places = operation.add_all(
        "TopK", x, number, outputs=2, axis=axis, largest=largest, sorted=1
    )
    return [values, operation.cast(places, _INT32)]


@chip_rule("Bucketize")
def _bucketize(operation: Operation) -> Sequence[Tensor]:
    """Search each x among the boundaries by halving: the first boundary that is not below x, or
    with `right` the first above it. NaN is above all of them."""
    x, boundaries = match_widths(operation, [operation.x, operation.input(1)])
    if boundaries.rank != 1:
        raise popart_exception(
            "BucketizeOp::setup The boundaries tensor is not a 1-D tensor. The boundaries tensor "
            f"rank = {boundaries.rank}."
        )
    if x.type != boundaries.type:
        names = [
            TensorInfo(from_onnx_type(each.type), []).data_type_lcase() for each in (x, boundaries)
        ]
        raise popart_exception(
            "BucketizeOp::setup The input and boundaries tensors have different data types. The "
            f"input tensor data type = {names[0]}. The boundaries tensor data type = {names[1]}."
        )
    right = int(operation.attribute("right", 0))
    if right not in (0, 1):
        raise popart_exception(f"BucketizeOp right = {right} is not valid: must be either 0 or 1.")
    stops = "Greater" if right else "GreaterOrEqual"
    count = boundaries.shape[0]
    first = operation.constant(np.zeros(x.shape, np.int32))
    end = operation.constant(np.full(x.shape, count, np.int32))
    one, two, last = (operation.constant(np.int32(each)) for each in (1, 2, count - 1))
    for _ in range(count.bit_length()):
        middle = operation.add("Div", operation.add("Add", first, end), two)
        place = operation.add("Min", middle, last)  # where the search has ended
        is_here = operation.add(stops, operation.add("Gather", boundaries, place, axis=0), x)
        behind = operation.add("Where", is_here, first, operation.add("Add", middle, one))
        is_open = operation.add("Less", first, end)
        end = operation.add("Where", is_here, middle, end)
        first = operation.add("Where", is_open, behind, first)
    return [first]


@rule("CumSum")
def _cumulate(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, operation.input(1)
    if axis.size != 1:
        raise popart_exception("CumSum op, 'axis' tensor must have one element.")
    value = operation.value(1)
    if value is None:
        raise popart_exception(
            f"For CumSum op {operation.describe()}, the axis tensor {operation.node.input[1]} does "
            "not have data."
        )
    along = int(np.ravel(value)[0])
    if not -x.rank <= along < x.rank:
        raise popart_exception(
            f"CumSum op, 'axis' value, {along}, is out of range [{-x.rank}, {x.rank - 1}]"
        )
    axis = operation.numbers(np.int64(along))
    exclusive, reverse = (int(operation.attribute(name, 0)) for name in ("exclusive", "reverse"))
    return [operation.add("CumSum", x, axis, exclusive=exclusive, reverse=reverse)]
