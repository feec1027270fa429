"""Rules of operators that change shapes, select or move elements by constants, and make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import numpy_helper
from onnxgraph import Results
from onnxgraph.opsets import PAD_TAKES_SIZES, SLICE_TAKES_BOUNDS

from popart.enums import DataType
from popart.errors import format_shape, popart_exception
from popart.lowering.elementwise import check_type
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule, cut_pads, match_widths, rule
from popart.tensorinfo import to_onnx_type


@rule("Reshape")
def _reshape(op: Graph, node: Operation) -> Results:
    return op.reshape(node.x, _settle(node, node.whole_numbers(1, "shape")))


@chip_rule("Reshape")
def _chip_reshape(op: Graph, node: Operation) -> Results:
    return op.reshape(node.x, _settle(node, list(node.get("shape", []))))


def _settle(node: Operation, shape: Sequence[int]) -> list[int]:
    """Return the shape that a Reshape means: 0 is the input's size, -1 what is left."""
    x = node.x
    for size in shape:
        if size < -1:
            raise popart_exception(
                f"Dimension, {size}, of new shape for Reshape cannot be smaller than -1."
            )
    sizes = [
        x.shape[axis] if size == 0 and axis < x.rank else size for axis, size in enumerate(shape)
    ]
    if sizes.count(-1) > 1:
        raise popart_exception(
            "shape input to ReshapeOp can only use -1 to specify one unknown dimension"
        )
    product = prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if product == 0 or x.size % product:
            raise popart_exception("Incompatible inferred dimension, not whole number.")
        sizes[sizes.index(-1)] = x.size // product
    if prod(sizes) != x.size:
        raise popart_exception(
            f"Failure in ReshapeOp::setup() for {node.describe()}. Trying to reshape from "
            f"{format_shape(x.shape)} to {format_shape(sizes)}. The number of elements of the "
            f"input is {x.size}, while the number of elements of the output is {prod(sizes)}. The "
            "number of elements cannot change for a ReshapeOp"
        )
    return sizes


@rule("Flatten")
def _flatten(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(1)
    if not 0 <= axis <= x.rank:
        raise popart_exception(f"invalid axis {axis} in flattenOpFactory")
    return op.reshape(node.x, [prod(x.shape[:axis]), prod(x.shape[axis:])])


@rule("Squeeze")
def _squeeze(op: Graph, node: Operation) -> Results:
    """Without axes, or with an empty list, all axes of one element go."""
    x, axes = node.x, node.get("axes")
    if not axes:
        return op.reshape(node.x, [size for size in x.shape if size != 1])
    gone = {_check_axis(axis, x.rank) for axis in axes}
    for axis in gone:
        if x.shape[axis] != 1:
            raise popart_exception(
                f"{node.describe()}: cannot squeeze axis {axis} of shape "
                f"{format_shape(x.shape)}: its size is not 1"
            )
    return op.reshape(node.x, [size for axis, size in enumerate(x.shape) if axis not in gone])


@rule("Unsqueeze")
def _unsqueeze(op: Graph, node: Operation) -> Results:
    x, axes = node.x, node.get("axes") or []
    rank = x.rank + len(axes)
    added = {_check_axis(axis, rank) for axis in axes}
    if len(added) < len(axes):
        raise popart_exception(
            f"{node.describe()}: axes {format_shape(axes)} name an axis of the result twice"
        )
    sizes = iter(x.shape)
    return op.reshape(node.x, [1 if axis in added else next(sizes) for axis in range(rank)])


def _check_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise popart_exception(f"Axis {axis} is out of acceptable range [{-rank}, {rank - 1}]")
    return axis % rank


@rule("Transpose")
def _transpose(op: Graph, node: Operation) -> Results:
    x, order = node.x, node.get("perm")
    order = list(order) if order else list(range(x.rank))[::-1]
    if len(order) != x.rank:
        raise popart_exception(
            f"Rank of permutation tensor {format_shape(order)}, rank {len(order)} must be equal to "
            f"rank of input tensor, shape {format_shape(x.shape)}, rank {x.rank}."
        )
    return op.Transpose(x, perm=order)


@rule("Expand")
def _expand(op: Graph, node: Operation) -> Results:
    x, shape = node.x, node.whole_numbers(1, "shape")
    try:
        expanded = np.broadcast_shapes(x.shape, tuple(shape))
    except ValueError:
        raise popart_exception(
            "Expand shape constraint: corresponding dimensions must have the same value or one of "
            "them must be 1"
        ) from None
    return op.Expand(x, op.ints(expanded))


@rule("Tile")
def _tile(op: Graph, node: Operation) -> Results:
    """The repeats must be a constant of INT64."""
    x, repeats = node.x, node.input(1)
    name = node.node.input[1]
    value = node.value(1)
    if value is None:
        raise popart_exception(f"The 'Repeats' Tensor `{name}' must be of type Constant")
    if repeats.dtype != np.int64:
        raise popart_exception(f"'Repeats' tensor `{name}' is not INT64")
    if repeats.rank != 1:
        raise popart_exception(f"'Repeats' tensor `{name}' should be rank 1 in TileOp constructor")
    if repeats.size != x.rank:
        raise popart_exception(
            f"'Repeats' tensor `{name}' should have one element for each dimension of the data "
            "tensor"
        )
    if (value < 0).any():
        raise popart_exception(
            f"Invalid 'repeats' {format_shape(value)} of Tile. Values must be non-negative in each "
            "shape dimension"
        )
    return op.Tile(x, op.ints(value.tolist()))


@chip_rule("Slice")
@rule("Slice")
def _slice(op: Graph, node: Operation) -> Results:
    if node.version < SLICE_TAKES_BOUNDS:
        starts, ends, axes = (node.get(name) for name in ("starts", "ends", "axes"))
        return _cut(op, node, list(starts or []), list(ends or []), axes, None)
    starts = node.whole_numbers(1, "starts")
    ends = node.whole_numbers(2, "ends")
    axes = node.whole_numbers(3, "axes") if node.optional(3) else None
    steps = node.whole_numbers(4, "steps", "slicing direction") if node.optional(4) else None
    return _cut(op, node, starts, ends, axes, steps)


def _cut(
    op: Graph,
    node: Operation,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    """Return a part of the input. Bounds beyond the ends are the ends."""
    x = node.x
    axes = list(axes) if axes else list(range(len(starts)))
    steps = list(steps) if steps else [1] * len(starts)
    for axis in axes:
        if axis < -x.rank:
            raise popart_exception(
                f"slice op input tensor {node.node.input[0]}, rank {x.rank}, axis {axis} is "
                "out of range"
            )
        if axis >= x.rank:
            raise popart_exception(
                "Invalid input shape in BaseSliceOp::getSlices. The input shape has rank "
                f"{x.rank}, but axis = {axis}. axis must be less than the input shape's rank. This "
                f"error is for Op {node.describe()}."
            )
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise popart_exception(
            f"{node.describe()}: expected as many starts, ends, axes and steps, which are not "
            f"0, found {list(starts)}, {list(ends)}, {axes} and {steps}"
        )
    bounds = [slice(*part) for part in zip(starts, ends, steps, strict=True)]
    ranges = [part.indices(x.shape[axis]) for part, axis in zip(bounds, axes, strict=True)]
    # Where nothing is left, a start before the first element has no number of its own either.
    ranges = [range_ if len(range(*range_)) else (0, 0, 1) for range_ in ranges]
    if not axes:
        return x
    firsts, lasts, strides = zip(*ranges, strict=True)
    # A stop before the first element has no number of its own: -1 means the last one.
    lasts = tuple(last if last >= 0 else -(1 << 31) for last in lasts)
    return op.Slice(x, starts=firsts, ends=lasts, axes=axes, steps=strides)


@chip_rule("Subsample")
def _subsample(op: Graph, node: Operation) -> Results:
    x, strides = node.x, list(node.get("strides", []))
    for index, stride in enumerate(strides):
        if stride <= 0:
            raise popart_exception(f"Strides invalid. {stride} stride at index {index}")
    count = len(strides)
    if count > x.rank:
        raise popart_exception(f"{node.describe()}: {count} strides for an input of {x.rank} axes")
    ends, axes = x.shape[:count], list(range(count))
    return op.Slice(x, starts=[0] * count, ends=ends, axes=axes, steps=strides)


@chip_rule("Reverse")
def _reverse(op: Graph, node: Operation) -> Results:
    x, axes = node.x, list[int]()
    for axis in node.get("dimensions", []):
        name = node.describe()
        if axis < 0:
            raise popart_exception(
                f"ReverseOp '{name}' invalid dimension '{axis}'. Only positive dimensions are "
                "supported"
            )
        if axis >= x.rank:
            raise popart_exception(
                f"ReverseOp '{name}' invalid dimension '{axis}' for input tensor of rank {x.rank}"
            )
        if axis in axes:
            raise popart_exception(
                f"Dimension {axis} appears multiple times in the list of dimensions of ReverseOp "
                f"'{name}'"
            )
        axes.append(axis)
    if not axes:
        return x
    count = len(axes)
    backwards = [-1] * count
    ends = [-(1 << 31)] * count  # before the first element
    return op.Slice(x, starts=backwards, ends=ends, axes=axes, steps=backwards)


@rule("Concat")
def _concat(op: Graph, node: Operation) -> Results:
    tensors = match_widths(op, node.operands)
    if not tensors:
        raise popart_exception("Cannot concat zero tensors")
    rank = tensors[0].rank
    axis = int(node.get("axis", 1))
    if not -rank <= axis < rank:
        raise popart_exception(
            f"Attribute 'axis' of ConcatOp, {axis}, is outside of acceptable range [{-rank}, "
            f"{rank - 1}]"
        )
    if len({tensor.element_type for tensor in tensors}) > 1:
        raise popart_exception(
            "All input tensor types to a concat operation must be equal. This is for op "
            f"{node.describe()}"
        )
    return op.Concat(*tensors, axis=axis % rank)


@rule("Split")
def _split(op: Graph, node: Operation) -> Results:
    x, axis = node.x, node.axis(0)
    count = len(node.node.output)
    if not 0 <= axis < x.rank:
        raise popart_exception(f"Axis {axis} is out of range for tensor with {x.rank} dims")
    size = x.shape[axis]
    sizes = list(node.get("split") or [])
    if not sizes:
        if size % count:
            raise popart_exception(
                f"Tensor {node.node.input[0]} ({format_shape(x.shape)}) may not be split into "
                f"equally sized parts along axis {axis}"
            )
        sizes = [size // count] * count
    if len(sizes) != count:
        raise popart_exception("Number of outputs does not match number of requested splits")
    if sum(sizes) != size:
        raise popart_exception(f"splits {sum(sizes)} invalid for dimension of size {size}")
    return op.add_all(count, "Split", x, split=sizes, axis=axis)


@rule("Pad")
def _pad(op: Graph, node: Operation) -> Results:
    x = node.x
    mode = node.get("mode", "constant")
    if node.version < PAD_TAKES_SIZES:
        pads = list(node.get("pads", []))
        fill = float(node.get("value", 0.0))
    else:
        pads = node.whole_numbers(1, "pads")
        value = node.value(2)
        fill = 0.0 if value is None else float(np.ravel(value)[0])
    if len(pads) != 2 * x.rank:
        raise popart_exception(
            f"Failure in BasePadOp::runtimeConfirmShapes, for {node.describe()}. This with "
            f"pads of size {len(pads)}, and input tensor of rank {x.rank}. Expected pads to be "
            "exactly 2x the unput Tensor's rank. "
        )
    x, pads = cut_pads(op, x, pads)
    return op.Pad(x, pads=pads, value=fill if mode == "constant" else None, mode=mode)


@rule("DepthToSpace")
@chip_rule("DepthToSpace")
def _depth_to_space(op: Graph, node: Operation) -> Results:
    x, mode = node.x, node.get("mode", "DCR")
    size = _block_size(node)
    if mode not in ("DCR", "CRD"):
        raise popart_exception(f"{node.describe()}: mode {mode} is neither DCR nor CRD")
    if x.shape[1] % size**2:
        raise popart_exception(
            f"{node.describe()}: {x.shape[1]} channels are no multiple of blocksize {size} squared"
        )
    return op.DepthToSpace(x, blocksize=size, mode=mode)


@rule("SpaceToDepth")
def _space_to_depth(op: Graph, node: Operation) -> Results:
    x, size = node.x, _block_size(node)
    if x.shape[2] % size or x.shape[3] % size:
        raise popart_exception(
            f"{node.describe()}: the spatial sizes of {format_shape(x.shape)} are no "
            f"multiples of blocksize {size}"
        )
    return op.SpaceToDepth(x, blocksize=size)


def _block_size(node: Operation) -> int:
    size = int(node.get("blocksize"))
    if node.x.rank != 4 or size < 1:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: expected an input of 4 axes and a positive blocksize, found "
            f"{format_shape(node.x.shape)} and {size}"
        )
    return size


@rule("Constant")
def _constant(op: Graph, node: Operation) -> Results:
    for entry in node.node.attribute:
        if entry.name == "value":
            check_type(entry.t.data_type)
            return op.add_constant(numpy_helper.to_array(entry.t))
        if not entry.name.startswith("__") and entry.name != "is_value_sparse":
            raise popart_exception(f"The Constant op attribute '{entry.name}' is not supported.")
    raise popart_exception(f"{node.describe()}: a Constant needs the attribute 'value'")


@rule("ConstantOfShape")
def _filled(op: Graph, node: Operation) -> Results:
    shape = node.whole_numbers(0, "input")
    value = next((entry.t for entry in node.node.attribute if entry.name == "value"), None)
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value).reshape(1)
    return _fill(op, op.constant(fill), shape)


def _fill(op: Graph, value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor whose elements have one value, a row of one element."""
    if not shape:
        return op.reshape(value, [])
    return op.Expand(value, op.ints(shape))


@rule("Shape")
def _shape(op: Graph, node: Operation) -> Results:
    return op.ints(node.x.shape)


@rule("Size")
def _size(op: Graph, node: Operation) -> Results:
    return op.ints(node.x.size)


@rule("EyeLike")
def _eye(op: Graph, node: Operation) -> Results:
    x = node.x
    if x.rank != 2:  # noqa: PLR2004
        raise popart_exception(f"{node.describe()}: expected two axes, found {x.rank}")
    kind = node.get("dtype")
    shift = int(node.get("k", 0))
    identity = op.constant(np.eye(x.shape[0], x.shape[1], shift, dtype=np.float32))
    return op.cast(identity, x.element_type if kind is None else int(kind))


@chip_rule("Init")
def _init(op: Graph, node: Operation) -> Results:
    """A tensor of zeros; one whose contents do not matter is zero, too."""
    shape = node.get("shape", [])
    kind = to_onnx_type(DataType(int(node.get("data_type"))))
    check_type(kind)
    zero = op.cast(op.constant(np.zeros(1, np.float32)), kind)
    return _fill(op, zero, list(shape))
