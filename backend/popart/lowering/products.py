"""Rules of products and windows: matrix products, convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.graphcore import GROUP_SIZE
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import FLOATS, Operation, broadcast, chip_rule, cut_pads, rule
from popart.lowering.pooling import SPATIAL, check_positive
from popart.windows import check_lengths

_OUTPUT_TYPE = "__output_type"


@rule("MatMul")
def _matmul(op: Graph, node: Operation) -> Results:
    left, right = node.input(0), node.input(1)
    for place, side in ((0, "lhs"), (1, "rhs")):
        if not node.input(place).rank:
            raise popart_exception(
                f"{node.describe()} doesn't support scalar tensor "
                f"{node.node.input[place]} as the {side} input"
            )
    rows = (1, *left.shape) if left.rank == 1 else left.shape
    columns = (*right.shape, 1) if right.rank == 1 else right.shape
    broadcast(node, rows[:-2] or (1,), columns[:-2] or (1,))
    if rows[-1] != columns[-2]:
        names = node.node.input
        raise popart_exception(
            f"{node.describe()} contracting dimensions unequal: lhs '{names[0]}' "
            f"{format_shape(rows)}, rhs '{names[1]}' {format_shape(columns)}"
        )
    if left.element_type not in FLOATS:
        return op.MatMul(left, right)
    product = op.MatMul(left, op.cast(right, left.element_type))
    output_type = node.get(_OUTPUT_TYPE)
    return op.cast(product, getattr(TensorProto, output_type)) if output_type else product


@rule("Gemm")
def _gemm(op: Graph, node: Operation) -> Results:
    attributes = _attributes(node, "alpha", "beta", "transA", "transB")
    return op.Gemm(*(node.optional(place) for place in range(3)), **attributes)


def _attributes(node: Operation, *names: str) -> dict[str, Any]:
    """Return the attributes that the node has, of those named."""
    values = {name: node.get(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@rule("Conv")
def _conv(op: Graph, node: Operation) -> Results:
    attributes = _attributes(node, *_WINDOW)
    inputs = (node.input(0), node.input(1), node.optional(2))
    return _add_conv(op, node, *inputs, **attributes)


def _check_ranks(node: Operation, x: Tensor, weights: Tensor) -> None:
    """Raise popart_exception unless both have batch, channels and the same spatial axes."""
    if x.rank < 3 or weights.rank != x.rank:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: expected an input of at least 3 axes and weights of as many, "
            f"found {format_shape(x.shape)} and {format_shape(weights.shape)}"
        )


def _add_conv(
    op: Graph, node: Operation, x: Tensor, weights: Tensor, bias: Tensor | None, **kept: Any
) -> Tensor:
    _check_ranks(node, x, weights)
    channels = x.shape[1]
    groups = int(kept.setdefault("group", channels // (weights.shape[1] or 1)))
    if groups < 1:
        raise popart_exception(f"group attribute in {node.describe()} must be greater than zero")
    if channels != groups * weights.shape[1]:
        raise popart_exception(
            f"{node.describe()}: number of input channels (dim 1 of "
            f"{format_shape(x.shape)}) is not the number of groups, {groups}, times that of the "
            f"weights (dim 1 of {format_shape(weights.shape)})"
        )
    if bias is not None and bias.shape != weights.shape[:1]:
        raise popart_exception(
            f"{node.describe()}: expected a bias {format_shape(weights.shape[:1])}, found "
            f"{format_shape(bias.shape)}"
        )
    if kept.get("auto_pad") == "NOTSET":
        del kept["auto_pad"]
    check_lengths(kept, x.rank - 2)
    check_positive(node, kept)
    if kept.get("pads") is not None:
        x, kept["pads"] = cut_pads(op, x, kept["pads"], SPATIAL)
    result = op.Conv(x, weights, bias, **kept)
    if min(result.shape) <= 0:
        raise popart_exception(
            f"Window parameter values combine to give invalid spatial output shape: "
            f"{format_shape(result.shape[2:])}"
        )
    return result


@rule("ConvTranspose")
def _conv_transpose(op: Graph, node: Operation) -> Results:
    x, weights = node.x, node.input(1)
    _check_ranks(node, x, weights)
    if any(dilation != 1 for dilation in node.get("dilations") or ()):
        raise popart_exception("Non default value for dilations is not supported.")
    if x.shape[1] != weights.shape[0]:
        raise popart_exception(
            f"Unexpected number of channels in the input tensor: {x.shape[1]}. Given "
            f"non-transposed weight tensor of shape {format_shape(weights.shape)}, transposed "
            f"convolution expects input tensor of size {format_shape(x.shape)} to have "
            f"{weights.shape[0]} channels."
        )
    groups = int(node.get("group", 1))
    if groups < 1 or weights.shape[0] % groups:
        raise popart_exception(
            f"group attribute in {node.describe()} must be greater than zero and divide the "
            f"channels {weights.shape[0]}, found {groups}"
        )
    result = _transposed(op, node, x, weights, groups)
    if min(result.shape[2:], default=1) <= 0:
        raise popart_exception(
            f"{node.describe()}: pads and output_shape leave no output: "
            f"{format_shape(result.shape)}"
        )
    bias = node.optional(2)
    if bias is None:
        return result
    if bias.shape != result.shape[1:2]:
        raise popart_exception(
            f"{node.describe()}: expected a bias {format_shape(result.shape[1:2])}, found "
            f"{format_shape(bias.shape)}"
        )
    column = [1, bias.size, *[1] * (x.rank - 2)]
    return result + op.reshape(bias, column)


def _transposed(op: Graph, node: Operation, x: Tensor, weights: Tensor, groups: int) -> Tensor:
    """Return the transposed convolution: what the pads leave of all places that an element of the
    input reaches, and zeros where pads are negative."""
    axes = x.rank - 2
    strides = _resized(node.get("strides"), axes, 1)
    check_positive(node, {"strides": strides})
    if node.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER") and not (
        node.get("output_shape")
    ):
        attributes = _attributes(node, *_WINDOW, "output_padding")
        return op.ConvTranspose(x, weights, **attributes)
    begins, ends = _transposed_pads(node, x, weights, groups, strides)
    cut = [max(pad, 0) for pad in (*begins, *ends)]
    result = op.ConvTranspose(x, weights, group=groups, strides=strides, pads=cut)
    added = [max(-pad, 0) for pad in (*begins, *ends)]
    if not any(added):
        return result
    pads = op.ints([0, 0, *added[:axes], 0, 0, *added[axes:]])
    return op.Pad(result, pads, op.like(0, result.element_type), mode="constant")


def _transposed_pads(
    node: Operation, x: Tensor, weights: Tensor, groups: int, strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return how much is cut off before and behind each spatial axis.

    The sizes of `output_shape` say it in sum. PopART cuts the larger half off behind, and with
    SAME_UPPER in front: ONNX does the reverse.
    """
    axes = x.rank - 2
    pads = _resized(node.get("pads"), 2 * axes, 0)
    more = _resized(node.get("output_padding"), axes, 0)
    reached = [
        stride * (size - 1) + kernel
        for stride, size, kernel in zip(strides, x.shape[2:], weights.shape[2:], strict=True)
    ]
    begins, ends = pads[:axes], [pad - added for pad, added in zip(pads[axes:], more, strict=True)]
    output_sizes = _output_sizes(node, (x.shape[0], groups * weights.shape[1]), axes)
    sizes = [reached[i] - begins[i] - ends[i] for i in range(axes)]
    if not output_sizes or output_sizes == sizes:
        return begins, ends
    if node.get("auto_pad") == "VALID":
        raise popart_exception(
            "`VALID` type for auto_pad cannot be used if the `output_shape` is also set"
        )
    totals = [reached[i] + more[i] - output_sizes[i] for i in range(axes)]
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    if node.get("auto_pad") == "SAME_UPPER":
        halves, rests = rests, halves
    return halves, [rest - added for rest, added in zip(rests, more, strict=True)]


def _output_sizes(node: Operation, outer: tuple[int, int], axes: int) -> list[int]:
    """Return the sizes of `output_shape`, which may have batch and channels in front."""
    sizes = list(node.get("output_shape") or ())
    if len(sizes) == axes + 2 and tuple(sizes[:2]) == outer:
        return sizes[2:]
    if sizes and len(sizes) != axes:
        raise popart_exception(
            f"{node.describe()}: output_shape {format_shape(sizes)} has neither the {axes} "
            f"spatial sizes nor all sizes, which begin with {format_shape(outer)}"
        )
    return sizes


def _resized(values: Sequence[int] | None, count: int, neutral: int) -> list[int]:
    """Return a list of as many numbers as the operator has, as PopART does without a check."""
    return [*(values or ()), *[neutral] * count][:count]


_PER_GROUP = {"strides": ("stride", 1), "dilations": ("dilation", 1), "pads": ("pad", 2)}
"""Attributes of MultiConv that have values for each spatial axis of each convolution: their names
in errors, and the number of values."""


@chip_rule("MultiConv")
def _multiconv(op: Graph, node: Operation) -> Results:
    """Add a convolution for each output, with three inputs and parameters of its own."""
    for name, neutral in (("inDilations", 1), ("outPads", 0)):
        if any(number != neutral for number in node.get(name) or ()):
            raise popart_exception(f"{node.describe()}: {name} are not supported")
    places = [GROUP_SIZE * index for index in range(len(node.node.output))]
    axes = [max(0, node.input(place).rank - 2) for place in places]
    parts = {
        name: _split(node, name, shown, [count * axis for axis in axes])
        for name, (shown, count) in _PER_GROUP.items()
    }
    results = []
    for index, place in enumerate(places):
        x, weights = node.input(place), node.input(place + 1)
        attributes: dict[str, Any] = {
            name: values[index] for name, values in parts.items() if values
        }
        results.append(_add_conv(op, node, x, weights, node.optional(place + 2), **attributes))
    return results


def _split(node: Operation, name: str, shown: str, counts: Sequence[int]) -> list[list[int]]:
    """Return an attribute's values for each convolution; none if it is absent."""
    values = list(node.get(name) or ())
    if values and len(values) != sum(counts):
        raise popart_exception(
            f"Unexpected number of {shown} parameters for convolution op '{node.describe()}': "
            f"expected {sum(counts)}, found {len(values)}"
        )
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    parts = zip(ends, counts, strict=True)
    return [values[end - count : end] for end, count in parts] if values else []
