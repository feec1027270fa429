"""Rules of products and windows: matrix products, convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.graphcore import GROUP_SIZE
from popart.lowering.graph import Tensor
from popart.lowering.operation import FLOATS, Operation, broadcast, chip_rule, rule
from popart.lowering.pooling import check_positive, cut_pads
from popart.windows import check_lengths

_OUTPUT_TYPE = "__output_type"


@rule("MatMul")
def _matmul(operation: Operation) -> Sequence[Tensor]:
    left, right = operation.input(0), operation.input(1)
    for place, side in ((0, "lhs"), (1, "rhs")):
        if not operation.input(place).rank:
            raise popart_exception(
                f"{operation.describe()} doesn't support scalar tensor "
                f"{operation.node.input[place]} as the {side} input"
            )
    rows = (1, *left.shape) if left.rank == 1 else left.shape
    columns = (*right.shape, 1) if right.rank == 1 else right.shape
    broadcast(operation, rows[:-2] or (1,), columns[:-2] or (1,))
    if rows[-1] != columns[-2]:
        names = operation.node.input
        raise popart_exception(
            f"{operation.describe()} contracting dimensions unequal: lhs '{names[0]}' "
            f"{format_shape(rows)}, rhs '{names[1]}' {format_shape(columns)}"
        )
    if left.type not in FLOATS:
        return [operation.add("MatMul", left, right)]
    made = operation.add("MatMul", left, operation.cast(right, left.type))
    wanted = operation.attribute(_OUTPUT_TYPE)
    return [operation.cast(made, getattr(TensorProto, wanted)) if wanted else made]


@rule("Gemm")
def _gemm(operation: Operation) -> Sequence[Tensor]:
    kept = _attributes(operation, "alpha", "beta", "transA", "transB")
    return [operation.add("Gemm", *(operation.optional(place) for place in range(3)), **kept)]


def _attributes(operation: Operation, *names: str) -> dict[str, Any]:
    """Return the attributes that the node has, of those named."""
    found = {name: operation.attribute(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@rule("Conv")
def _conv(operation: Operation) -> Sequence[Tensor]:
    kept = _attributes(operation, *_WINDOW)
    inputs = (operation.input(0), operation.input(1), operation.optional(2))
    return [_add_conv(operation, *inputs, **kept)]


def _check_ranks(operation: Operation, x: Tensor, weights: Tensor) -> None:
    """Raise popart_exception unless both have batch, channels and the same spatial axes."""
    if x.rank < 3 or weights.rank != x.rank:  # noqa: PLR2004
        raise popart_exception(
            f"{operation.describe()}: expected an input of at least 3 axes and weights of as many, "
            f"found {format_shape(x.shape)} and {format_shape(weights.shape)}"
        )


def _add_conv(
    operation: Operation, x: Tensor, weights: Tensor, bias: Tensor | None, **kept: Any
) -> Tensor:
    _check_ranks(operation, x, weights)
    channels = x.shape[1]
    groups = int(kept.setdefault("group", channels // (weights.shape[1] or 1)))
    if groups < 1:
        raise popart_exception(
            f"group attribute in {operation.describe()} must be greater than zero"
        )
    if channels != groups * weights.shape[1]:
        raise popart_exception(
            f"{operation.describe()}: number of input channels (dim 1 of "
            f"{format_shape(x.shape)}) is not the number of groups, {groups}, times that of the "
            f"weights (dim 1 of {format_shape(weights.shape)})"
        )
    if bias is not None and bias.shape != weights.shape[:1]:
        raise popart_exception(
            f"{operation.describe()}: expected a bias {format_shape(weights.shape[:1])}, found "
            f"{format_shape(bias.shape)}"
        )
    if kept.get("auto_pad") == "NOTSET":
        del kept["auto_pad"]
    check_lengths(kept, x.rank - 2)
    check_positive(operation, kept)
    x, kept["pads"] = cut_pads(operation, x, kept.get("pads"))
    made = operation.add("Conv", x, weights, bias, **kept)
    if min(made.shape) <= 0:
        raise popart_exception(
            f"Window parameter values combine to give invalid spatial output shape: "
            f"{format_shape(made.shape[2:])}"
        )
    return made


@rule("ConvTranspose")
def _conv_transpose(operation: Operation) -> Sequence[Tensor]:
    x, weights = operation.x, operation.input(1)
    _check_ranks(operation, x, weights)
    if any(each != 1 for each in operation.attribute("dilations") or ()):
        raise popart_exception("Non default value for dilations is not supported.")
    if x.shape[1] != weights.shape[0]:
        raise popart_exception(
            f"Unexpected number of channels in the input tensor: {x.shape[1]}. Given "
            f"non-transposed weight tensor of shape {format_shape(weights.shape)}, transposed "
            f"convolution expects input tensor of size {format_shape(x.shape)} to have "
            f"{weights.shape[0]} channels."
        )
    groups = int(operation.attribute("group", 1))
    if groups < 1 or weights.shape[0] % groups:
        raise popart_exception(
            f"group attribute in {operation.describe()} must be greater than zero and divide the "
            f"channels {weights.shape[0]}, found {groups}"
        )
    made = _transposed(operation, x, weights, groups)
    if min(made.shape[2:], default=1) <= 0:
        raise popart_exception(
            f"{operation.describe()}: pads and output_shape leave no output: "
            f"{format_shape(made.shape)}"
        )
    bias = operation.optional(2)
    if bias is None:
        return [made]
    if bias.shape != made.shape[1:2]:
        raise popart_exception(
            f"{operation.describe()}: expected a bias {format_shape(made.shape[1:2])}, found "
            f"{format_shape(bias.shape)}"
        )
    column = [1, bias.size, *[1] * (x.rank - 2)]
    return [operation.add("Add", made, operation.reshape(bias, column))]


def _transposed(operation: Operation, x: Tensor, weights: Tensor, groups: int) -> Tensor:
    """Return the transposed convolution: what the pads leave of all places that an element of the
    input reaches, and zeros where pads are negative."""
    axes = x.rank - 2
    strides = _resized(operation.attribute("strides"), axes, 1)
    check_positive(operation, {"strides": strides})
    if operation.attribute("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER") and not (
        operation.attribute("output_shape")
    ):
        kept = _attributes(operation, *_WINDOW, "output_padding")
        return operation.add("ConvTranspose", x, weights, **kept)
    begins, ends = _transposed_pads(operation, x, weights, groups, strides)
    cut = [max(pad, 0) for pad in (*begins, *ends)]
    made = operation.add("ConvTranspose", x, weights, group=groups, strides=strides, pads=cut)
    added = [max(-pad, 0) for pad in (*begins, *ends)]
    if not any(added):
        return made
    pads = operation.numbers([0, 0, *added[:axes], 0, 0, *added[axes:]])
    return operation.add("Pad", made, pads, operation.like(0, made), mode="constant")


def _transposed_pads(
    operation: Operation, x: Tensor, weights: Tensor, groups: int, strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return how much is cut off before and behind each spatial axis.

    The sizes of `output_shape` say it in sum. PopART cuts the larger half off behind, and with
    SAME_UPPER in front: ONNX does the reverse.
    """
    axes = x.rank - 2
    pads = _resized(operation.attribute("pads"), 2 * axes, 0)
    more = _resized(operation.attribute("output_padding"), axes, 0)
    reached = [
        stride * (size - 1) + kernel
        for stride, size, kernel in zip(strides, x.shape[2:], weights.shape[2:], strict=True)
    ]
    begins, ends = pads[:axes], [pad - each for pad, each in zip(pads[axes:], more, strict=True)]
    wanted = _output_sizes(operation, (x.shape[0], groups * weights.shape[1]), axes)
    sizes = [reached[i] - begins[i] - ends[i] for i in range(axes)]
    if not wanted or wanted == sizes:
        return begins, ends
    if operation.attribute("auto_pad") == "VALID":
        raise popart_exception(
            "`VALID` type for auto_pad cannot be used if the `output_shape` is also set"
        )
    totals = [reached[i] + more[i] - wanted[i] for i in range(axes)]
    halves = [total // 2 for total in totals]
    rests = [total - half for total, half in zip(totals, halves, strict=True)]
    if operation.attribute("auto_pad") == "SAME_UPPER":
        halves, rests = rests, halves
    return halves, [rest - each for rest, each in zip(rests, more, strict=True)]


def _output_sizes(operation: Operation, outer: tuple[int, int], axes: int) -> list[int]:
    """Return the sizes of `output_shape`, which may have batch and channels in front."""
    given = list(operation.attribute("output_shape") or ())
    if len(given) == axes + 2 and tuple(given[:2]) == outer:
        return given[2:]
    if given and len(given) != axes:
        raise popart_exception(
            f"{operation.describe()}: output_shape {format_shape(given)} has neither the {axes} "
            f"spatial sizes nor all sizes, which begin with {format_shape(outer)}"
        )
    return given


def _resized(values: Sequence[int] | None, count: int, neutral: int) -> list[int]:
    """Return a list of as many numbers as the operator has, as PopART does without a check."""
    return [*(values or ()), *[neutral] * count][:count]


_PER_GROUP = {"strides": ("stride", 1), "dilations": ("dilation", 1), "pads": ("pad", 2)}
"""Attributes of MultiConv that have values for each spatial axis of each convolution: their names
in errors, and the number of values."""


@chip_rule("MultiConv")
def _multiconv(operation: Operation) -> Sequence[Tensor]:
    """Add a convolution for each output, with three inputs and parameters of its own."""
    for name, neutral in (("inDilations", 1), ("outPads", 0)):
        if any(each != neutral for each in operation.attribute(name) or ()):
            raise popart_exception(f"{operation.describe()}: {name} are not supported")
    places = [GROUP_SIZE * index for index in range(len(operation.node.output))]
    axes = [max(0, operation.input(place).rank - 2) for place in places]
    parts = {
        name: _split(operation, name, shown, [count * axis for axis in axes])
        for name, (shown, count) in _PER_GROUP.items()
    }
    made = []
    for index, place in enumerate(places):
        x, weights = operation.input(place), operation.input(place + 1)
        kept: dict[str, Any] = {name: values[index] for name, values in parts.items() if values}
        made.append(_add_conv(operation, x, weights, operation.optional(place + 2), **kept))
    return made


def _split(operation: Operation, name: str, shown: str, counts: Sequence[int]) -> list[list[int]]:
    """Return an attribute's values for each convolution; none if it is absent."""
    values = list(operation.attribute(name) or ())
    if values and len(values) != sum(counts):
        raise popart_exception(
            f"Unexpected number of {shown} parameters for convolution op '{operation.describe()}': "
            f"expected {sum(counts)}, found {len(values)}"
        )
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    parts = zip(ends, counts, strict=True)
    return [values[end - count : end] for end, count in parts] if values else []
