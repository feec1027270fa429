"""Rules of operators that select or write elements by indices that are known at run time only.

A window whose place is fed has a known size, so all shapes are static: its elements are gathered,
and a window is written by a choice between the window and the tensor, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, rule

_INT32 = TensorProto.INT32


@rule("Gather")
def _gather(op: Graph, node: Operation) -> Results:
    x, axis = node.x, _read_axis(node, 0)
    indices = node.input(1)
    if indices.element_type not in (TensorProto.INT64, _INT32):
        indices = op.cast(indices, _INT32)
    return op.Gather(x, indices, axis=axis)


def _read_axis(node: Operation, default: int) -> int:
    axis, rank = int(node.get("axis", default)), node.x.rank
    if not -rank <= axis < rank:
        raise popart_exception(
            f"GatherOp::setup axis = {axis} is outside the acceptable range [{-rank}, {rank - 1}]"
        )
    return axis % rank


@chip_rule("GroupedGather")
def _grouped_gather(op: Graph, node: Operation) -> Results:
    """Group g of axis 0 is gathered along `axis` with indices[g]: the groups are laid end to end
    along that axis, and the indices of each moved to its group."""
    x, indices = node.x, op.cast(node.input(1), _INT32)
    axis, groups = _read_axis(node, 0), int(node.get("group_size", 1))
    if groups == 1:
        return op.Gather(x, indices, axis=axis)
    if axis == 0:
        raise popart_exception("GatherOp::setup axis = 0 indicates the dimension of the group")
    if x.shape[0] != groups or indices.shape[:1] != (groups,):
        raise popart_exception(
            f"{node.describe()}: expected {groups} groups along axis 0, found "
            f"{format_shape(x.shape)} and indices {format_shape(indices.shape)}"
        )
    size = x.shape[axis]
    between, behind = list(range(1, axis)), list(range(axis + 1, x.rank))
    joined = op.transpose(x, [0, axis, *between, *behind])
    joined = op.reshape(joined, [groups * size, *joined.shape[2:]])
    starts = np.arange(groups, dtype=np.int32).reshape(groups, *[1] * (indices.rank - 1)) * size
    rows = op.Gather(joined, indices + starts, axis=0)
    new = list(range(1, indices.rank))
    between = [indices.rank + place for place in range(len(between))]
    behind = list(range(indices.rank + len(between), rows.rank))
    return op.transpose(rows, [0, *between, *new, *behind])


@rule("GatherElements", "GatherND", "ScatterND")
def _as_it_is(op: Graph, node: Operation) -> Results:
    x, indices, *updates = node.operands
    indices = op.cast(indices, TensorProto.INT64)
    return op.add(node.node.op_type, x, indices, *updates, axis=node.get("axis"))


@rule("ReverseSequence")
def _reverse_sequence(op: Graph, node: Operation) -> Results:
    lengths = op.cast(node.input(1), TensorProto.INT64)
    places = {name: node.get(name) for name in ("batch_axis", "time_axis")}
    return op.ReverseSequence(node.x, lengths, **places)


@rule("Scatter", "ScatterElements")
def _scatter(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(0)
    indices, updates = node.input(1), node.input(2)
    return op.ScatterElements(x, indices, updates, axis=axis)


_NEUTRAL = {"sum": 0, "none": 0, "mul": 1}
_ONNX_REDUCTIONS = {"sum": "add", "none": "none", "mul": "mul", "max": "max", "min": "min"}


@chip_rule("ScatterReduce")
def _scatter_reduce(op: Graph, node: Operation) -> Results:
    """Write each element of the source to the place along `axis` that its index names, and reduce
    those that meet there. Without initial values the neutral one of the reduction is there."""
    source, indices = node.x, node.input(1)
    size, groups = int(node.get("axis_size")), int(node.get("group_size", 1))
    for name, value in (("axis_size", size), ("group_size", groups)):
        if value < 1:
            raise popart_exception(f"ScatterReduceOp {name} = {value} is not valid: must be > 0.")
    axis, rank = int(node.get("axis", -1)), source.rank
    if not -rank <= axis < rank:
        raise popart_exception(
            f"ScatterReduceOp::setup axis = {axis} is outside the acceptable range [{-rank}, "
            f"{rank - 1}]"
        )
    axis %= rank
    if groups > 1 and (axis == 0 or source.shape[0] != groups or indices.shape[:1] != (groups,)):
        raise popart_exception(
            f"{node.describe()}: expected {groups} groups along axis 0 of the source and the "
            f"indices, and another axis, found {format_shape(source.shape)}, "
            f"{format_shape(indices.shape)} and axis {axis}"
        )
    column = _align(indices.shape, source.shape, axis, groups > 1)
    indices = op.reshape(op.cast(indices, TensorProto.INT64), column)
    if node.get("enable_index_broadcast", 1):
        indices = _expand(op, indices, source.shape)
        shape = list(source.shape)
    else:
        shape = list(column)
    kind = node.get("reduction", "sum")
    initial = node.optional(2)
    if initial is None:
        shape[axis] = size
        filler = op.like([_neutral(kind, source)], source.element_type)
        initial = op.Expand(filler, op.ints(shape))
    return op.ScatterElements(
        initial,
        indices,
        source,
        axis=axis,
        reduction=_ONNX_REDUCTIONS[kind],
    )


def _neutral(kind: str, tensor: Tensor) -> float:
    if kind in _NEUTRAL:
        return _NEUTRAL[kind]
    is_float = np.issubdtype(tensor.dtype, np.floating)
    ends = np.finfo(tensor.dtype) if is_float else np.iinfo(tensor.dtype)
    return float(ends.min if kind == "max" else ends.max)


def _align(indices: Sequence[int], source: Sequence[int], axis: int, is_grouped: bool) -> list[int]:
    """Return the shape of indices with an axis for each of the source's."""
    if len(indices) > len(source):
        raise popart_exception(
            f"Invalid rank for indices input. Indices rank {len(indices)} must be <= data input "
            f"rank {len(source)}."
        )
    shape, first = list(indices), int(is_grouped)
    if len(indices) - first == 1:
        shape[first:first] = [1] * (axis - first)
    shape += [1] * (len(source) - len(shape))
    if any(count > size for count, size in zip(shape, source, strict=True)):
        raise popart_exception(
            f"Failed to expand 'indices' shape {format_shape(indices)} to match 'src' shape "
            f"{format_shape(source)} using reduction axis = {axis}."
        )
    return shape


def _expand(op: Graph, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if tuple(shape) == tensor.shape:
        return tensor
    return op.Expand(tensor, op.ints(shape))


@rule("OneHot")
def _one_hot(op: Graph, node: Operation) -> Results:
    """Compare the indices with the numbers of the classes. Indices may be negative."""
    indices, depth = op.cast(node.x, _INT32), node.value(1)
    if depth is None:
        raise popart_exception(f"The depth Tensor `{node.node.input[1]}' does not have data")
    if depth.size != 1:
        raise popart_exception("The depth tensor should be rank 0 in OneHot")
    count, values = int(np.ravel(depth)[0]), node.input(2)
    rank = indices.rank + 1
    given_axis = int(node.get("axis", -1))
    axis = given_axis + rank if given_axis < 0 else given_axis
    if not 0 <= axis < rank or count < 1 or values.shape != (2,):
        raise popart_exception(
            f"{node.describe()}: expected an axis in [{-rank}, {rank - 1}], a depth of at "
            f"least 1 and two values, found axis {given_axis}, depth {count} "
            f"and values {format_shape(values.shape)}"
        )
    column = op.reshape(indices, [*indices.shape[:axis], 1, *indices.shape[axis:]])
    column = op.Where(op.Less(column, 0), column + count, column)
    classes = np.arange(count).reshape([count if place == axis else 1 for place in range(rank)])
    off, on = (op.Gather(values, op.ints(place), axis=0) for place in (0, 1))
    return op.Where(op.Equal(column, classes), on, off)


def _starts(op: Graph, node: Operation, sizes: Sequence[int], axes: Sequence[int]) -> list[Tensor]:
    """Return the first place of the window along each axis, inside the tensor."""
    x, index = node.x, op.cast(node.input(1), _INT32)
    flat = op.reshape(index, [index.size])
    if index.size != len(axes):
        raise popart_exception(
            f"{node.describe()}: expected one index for each of the {len(axes)} axes, found "
            f"{index.size}"
        )
    return [
        op.Min(op.Gather(flat, op.ints([place]), axis=0), [x.shape[axis] - size])
        for place, (axis, size) in enumerate(zip(axes, sizes, strict=True))
    ]


def _window(node: Operation) -> tuple[list[int], list[int]]:
    axes, sizes = ([int(number) for number in node.get(name, [])] for name in ("axes", "sizes"))
    rank = node.x.rank
    if not axes or len(axes) != len(sizes) or len(set(axes)) < len(axes):
        raise popart_exception(
            f"{node.describe()}: expected a size for each axis of the window, found axes "
            f"{format_shape(axes)} and sizes {format_shape(sizes)}"
        )
    for axis, size in zip(axes, sizes, strict=True):
        if not 0 <= axis < rank or not 0 < size <= node.x.shape[axis]:
            raise popart_exception(
                f"{node.describe()}: a window of size {size} along axis {axis} does not fit "
                f"into {format_shape(node.x.shape)}"
            )
    return axes, sizes


@chip_rule("DynamicSlice")
def _dynamic_slice(op: Graph, node: Operation) -> Results:
    axes, sizes = _window(node)
    window = node.x
    for start, axis, size in zip(_starts(op, node, sizes, axes), axes, sizes, strict=True):
        window = op.Gather(window, start + np.arange(size), axis=axis)
    buffer = node.optional(2)
    return window if buffer is None else op.reshape(window, buffer.shape)


@chip_rule("DynamicUpdate", "DynamicAdd", "DynamicZero")
def _dynamic_write(op: Graph, node: Operation) -> Results:
    """Write, add or clear a window."""
    x = node.x
    axes, sizes = _window(node)
    kind = node.node.op_type
    zero = op.constant(np.zeros([1] * x.rank, x.dtype))
    update = zero
    if kind != "DynamicZero":
        shape = list(x.shape)
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
        update = op.reshape(node.input(2), shape)
    inside: Tensor | None = None
    for start, axis, size in zip(_starts(op, node, sizes, axes), axes, sizes, strict=True):
        places = op.constant(np.arange(x.shape[axis], dtype=np.int32))
        off = places - start
        near = op.Clip(off, 0, size - 1)
        if kind != "DynamicZero":
            update = op.Gather(update, near, axis=axis)
        column = [-1 if place == axis else 1 for place in range(x.rank)]
        column[axis] = x.shape[axis]
        within = op.reshape(op.Equal(off, near), column)
        inside = within if inside is None else op.And(inside, within)
    assert inside is not None  # a window has axes
    if kind == "DynamicAdd":
        return x + op.Where(inside, update, zero)
    return op.Where(inside, update, x)
