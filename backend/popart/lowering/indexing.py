"""Rules of operators that select or write elements by indices that are known at run time only.

A window whose place is fed has a known size, so all shapes are static: its elements are gathered,
and a window is written by a choice between the window and the tensor, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import Operation, chip_rule, rule

_INT32 = TensorProto.INT32


@rule("Gather")
def _gather(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, _read_axis(operation, 0)
    indices = operation.input(1)
    if indices.type not in (TensorProto.INT64, _INT32):
        indices = operation.cast(indices, _INT32)
    return [operation.add("Gather", x, indices, axis=axis)]


def _read_axis(operation: Operation, default: int) -> int:
    axis, rank = int(operation.attribute("axis", default)), operation.x.rank
    if not -rank <= axis < rank:
        raise popart_exception(
            f"GatherOp::setup axis = {axis} is outside the acceptable range [{-rank}, {rank - 1}]"
        )
    return axis % rank


@chip_rule("GroupedGather")
def _grouped_gather(operation: Operation) -> Sequence[Tensor]:
    """Group g of axis 0 is gathered along `axis` with indices[g]: the groups are laid end to end
    along that axis, and the indices of each moved to its group."""
    x, indices = operation.x, operation.cast(operation.input(1), _INT32)
    axis, groups = _read_axis(operation, 0), int(operation.attribute("group_size", 1))
    if groups == 1:
        return [operation.add("Gather", x, indices, axis=axis)]
    if axis == 0:
        raise popart_exception("GatherOp::setup axis = 0 indicates the dimension of the group")
    if x.shape[0] != groups or indices.shape[:1] != (groups,):
        raise popart_exception(
            f"{operation.describe()}: expected {groups} groups along axis 0, found "
            f"{format_shape(x.shape)} and indices {format_shape(indices.shape)}"
        )
    size = x.shape[axis]
    between, behind = list(range(1, axis)), list(range(axis + 1, x.rank))
    joined = operation.transpose(x, [0, axis, *between, *behind])
    joined = operation.reshape(joined, [groups * size, *joined.shape[2:]])
    starts = np.arange(groups, dtype=np.int32).reshape(groups, *[1] * (indices.rank - 1)) * size
    moved = operation.add("Add", indices, operation.constant(starts.astype(np.int32)))
    found = operation.add("Gather", joined, moved, axis=0)
    new = list(range(1, indices.rank))
    between = [indices.rank + place for place in range(len(between))]
    behind = list(range(indices.rank + len(between), found.rank))
    return [operation.transpose(found, [0, *between, *new, *behind])]


@rule("GatherElements", "GatherND", "ScatterND")
def _as_it_is(operation: Operation) -> Sequence[Tensor]:
    tensors = [operation.input(place) for place in range(len(operation.inputs))]
    axis = operation.attribute("axis")
    tensors[1] = operation.cast(tensors[1], TensorProto.INT64)
    return [operation.add(operation.node.op_type, *tensors, axis=axis)]


@rule("ReverseSequence")
def _reverse_sequence(operation: Operation) -> Sequence[Tensor]:
    lengths = operation.cast(operation.input(1), TensorProto.INT64)
    places = {name: operation.attribute(name) for name in ("batch_axis", "time_axis")}
    return [operation.add("ReverseSequence", operation.x, lengths, **places)]


@rule("Scatter", "ScatterElements")
def _scatter(operation: Operation) -> Sequence[Tensor]:
    x, axis = operation.x, operation.axis(0)
    indices, updates = operation.input(1), operation.input(2)
    return [operation.add("ScatterElements", x, indices, updates, axis=axis)]


_NEUTRAL = {"sum": 0, "none": 0, "mul": 1}
_ONNX_REDUCTIONS = {"sum": "add", "none": "none", "mul": "mul", "max": "max", "min": "min"}


@chip_rule("ScatterReduce")
def _scatter_reduce(operation: Operation) -> Sequence[Tensor]:
    """Write each element of the source to the place along `axis` that its index names, and reduce
    those that meet there. Without initial values the neutral one of the reduction is there."""
    source, indices = operation.x, operation.input(1)
    size, groups = int(operation.attribute("axis_size")), int(operation.attribute("group_size", 1))
    for name, value in (("axis_size", size), ("group_size", groups)):
        if value < 1:
            raise popart_exception(f"ScatterReduceOp {name} = {value} is not valid: must be > 0.")
    axis, rank = int(operation.attribute("axis", -1)), source.rank
    if not -rank <= axis < rank:
        raise popart_exception(
            f"ScatterReduceOp::setup axis = {axis} is outside the acceptable range [{-rank}, "
            f"{rank - 1}]"
        )
    axis %= rank
    if groups > 1 and (axis == 0 or source.shape[0] != groups or indices.shape[:1] != (groups,)):
        raise popart_exception(
            f"{operation.describe()}: expected {groups} groups along axis 0 of the source and the "
            f"indices, and another axis, found {format_shape(source.shape)}, "
            f"{format_shape(indices.shape)} and axis {axis}"
        )
    column = _align(indices.shape, source.shape, axis, groups > 1)
    indices = operation.reshape(operation.cast(indices, TensorProto.INT64), column)
    if operation.attribute("enable_index_broadcast", 1):
        indices = _expand(operation, indices, source.shape)
        wanted = list(source.shape)
    else:
        wanted = list(column)
    kind = operation.attribute("reduction", "sum")
    initial = operation.optional(2)
    if initial is None:
        wanted[axis] = size
        neutral = _neutral(kind, source)
        filler = operation.constant(np.full(1, neutral, source.dtype))
        initial = operation.add("Expand", filler, operation.numbers(np.asarray(wanted, np.int64)))
    return [
        operation.add(
            "ScatterElements",
            initial,
            indices,
            source,
            axis=axis,
            reduction=_ONNX_REDUCTIONS[kind],
        )
    ]


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
    if any(found > size for found, size in zip(shape, source, strict=True)):
        raise popart_exception(
            f"Failed to expand 'indices' shape {format_shape(indices)} to match 'src' shape "
            f"{format_shape(source)} using reduction axis = {axis}."
        )
    return shape


def _expand(operation: Operation, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if tuple(shape) == tensor.shape:
        return tensor
    return operation.add("Expand", tensor, operation.numbers(np.asarray(shape, np.int64)))


@rule("OneHot")
def _one_hot(operation: Operation) -> Sequence[Tensor]:
    """Compare the indices with the numbers of the classes. Indices may be negative."""
    indices, depth = operation.cast(operation.x, _INT32), operation.value(1)
    if depth is None:
        raise popart_exception(f"The depth Tensor `{operation.node.input[1]}' does not have data")
    if depth.size != 1:
        raise popart_exception("The depth tensor should be rank 0 in OneHot")
    count, values = int(np.ravel(depth)[0]), operation.input(2)
    rank = indices.rank + 1
    axis = operation.axis(-1, rank)
    if not 0 <= axis < rank or count < 1 or values.shape != (2,):
        raise popart_exception(
            f"{operation.describe()}: expected an axis in [{-rank}, {rank - 1}], a depth of at "
            f"least 1 and two values, found axis {operation.attribute('axis', -1)}, depth {count} "
            f"and values {format_shape(values.shape)}"
        )
    column = operation.reshape(indices, [*indices.shape[:axis], 1, *indices.shape[axis:]])
    is_negative = operation.add("Less", column, operation.constant(np.int32(0)))
    turned = operation.add("Add", column, operation.constant(np.int32(count)))
    column = operation.add("Where", is_negative, turned, column)
    shape = [count if place == axis else 1 for place in range(rank)]
    classes = operation.constant(np.arange(count, dtype=np.int32).reshape(shape))
    off, on = (
        operation.add("Gather", values, operation.numbers(np.int64(place)), axis=0)
        for place in (0, 1)
    )
    return [operation.add("Where", operation.add("Equal", column, classes), on, off)]


def _starts(operation: Operation, sizes: Sequence[int], axes: Sequence[int]) -> list[Tensor]:
    """Return the first place of the window along each axis, inside the tensor."""
    x, index = operation.x, operation.cast(operation.input(1), _INT32)
    flat = operation.reshape(index, [index.size])
    if index.size != len(axes):
        raise popart_exception(
            f"{operation.describe()}: expected one index for each of the {len(axes)} axes, found "
            f"{index.size}"
        )
    found = []
    for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        number = operation.numbers(np.asarray([place]))
        start = operation.add("Gather", flat, number, axis=0)
        last = operation.constant(np.asarray([x.shape[axis] - size], np.int32))
        found.append(operation.add("Min", start, last))
    return found


def _window(operation: Operation) -> tuple[list[int], list[int]]:
    axes, sizes = (
        [int(each) for each in operation.attribute(name, [])] for name in ("axes", "sizes")
    )
    rank = operation.x.rank
    if not axes or len(axes) != len(sizes) or len(set(axes)) < len(axes):
        raise popart_exception(
            f"{operation.describe()}: expected a size for each axis of the window, found axes "
            f"{format_shape(axes)} and sizes {format_shape(sizes)}"
        )
    for axis, size in zip(axes, sizes, strict=True):
        if not 0 <= axis < rank or not 0 < size <= operation.x.shape[axis]:
            raise popart_exception(
                f"{operation.describe()}: a window of size {size} along axis {axis} does not fit "
                f"into {format_shape(operation.x.shape)}"
            )
    return axes, sizes


@chip_rule("DynamicSlice")
def _dynamic_slice(operation: Operation) -> Sequence[Tensor]:
    axes, sizes = _window(operation)
    found = operation.x
    for start, axis, size in zip(_starts(operation, sizes, axes), axes, sizes, strict=True):
        steps = operation.constant(np.arange(size, dtype=np.int32))
        found = operation.add("Gather", found, operation.add("Add", start, steps), axis=axis)
    buffer = operation.optional(2)
    return [found if buffer is None else operation.reshape(found, buffer.shape)]


@chip_rule("DynamicUpdate", "DynamicAdd", "DynamicZero")
def _dynamic_write(operation: Operation) -> Sequence[Tensor]:
    """Write, add or clear a window."""
    x = operation.x
    axes, sizes = _window(operation)
    kind = operation.node.op_type
    zero = operation.constant(np.zeros([1] * x.rank, x.dtype))
    update = zero
    if kind != "DynamicZero":
        shape = list(x.shape)
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = size
        update = operation.reshape(operation.input(2), shape)
    inside: Tensor | None = None
    for start, axis, size in zip(_starts(operation, sizes, axes), axes, sizes, strict=True):
        places = operation.constant(np.arange(x.shape[axis], dtype=np.int32))
        off = operation.add("Sub", places, start)
        ends = operation.constant(np.int32(0)), operation.constant(np.int32(size - 1))
        near = operation.add("Clip", off, *ends)
        if kind != "DynamicZero":
            update = operation.add("Gather", update, near, axis=axis)
        column = [-1 if place == axis else 1 for place in range(x.rank)]
        column[axis] = x.shape[axis]
        within = operation.reshape(operation.add("Equal", off, near), column)
        inside = within if inside is None else operation.add("And", inside, within)
    assert inside is not None  # a window has axes
    if kind == "DynamicAdd":
        return [operation.add("Add", x, operation.add("Where", inside, update, zero))]
    return [operation.add("Where", inside, update, x)]
