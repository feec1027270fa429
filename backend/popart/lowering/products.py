"""Rules of products and windows: matrix products, convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Tensor
from popart.lowering.operation import FLOATS, Operation, broadcast, chip_rule, rule

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
    return [_add_conv(operation, *(operation.optional(place) for place in range(3)), **kept)]


def _add_conv(
    operation: Operation, x: Tensor | None, weights: Tensor | None, bias: Tensor | None, **kept: Any
) -> Tensor:
    assert x is not None  # the builder requires both
    assert weights is not None
    channels = x.shape[1] if x.rank > 1 else 0
    groups = int(kept.setdefault("group", channels // weights.shape[1]))
    if channels != groups * weights.shape[1]:
        raise popart_exception(
            f"{operation.describe()}: number of input channels (dim 1 of "
            f"{format_shape(x.shape)}) is not the number of groups, {groups}, times that of the "
            f"weights (dim 1 of {format_shape(weights.shape)})"
        )
    if kept.get("auto_pad") == "NOTSET":
        del kept["auto_pad"]
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
    if any(each != 1 for each in operation.attribute("dilations") or ()):
        raise popart_exception("Non default value for dilations is not supported.")
    if x.shape[1] != weights.shape[0]:
        raise popart_exception(
            f"Unexpected number of channels in the input tensor: {x.shape[1]}. Given "
            f"non-transposed weight tensor of shape {format_shape(weights.shape)}, transposed "
            f"convolution expects input tensor of size {format_shape(x.shape)} to have "
            f"{weights.shape[0]} channels."
        )
    kept = _attributes(operation, *_WINDOW, "output_padding", "output_shape")
    if not kept.get("output_shape", True):
        del kept["output_shape"]
    inputs = (operation.optional(place) for place in range(3))
    return [operation.add("ConvTranspose", *inputs, **kept)]


@chip_rule("MultiConv")
def _multiconv(operation: Operation) -> Sequence[Tensor]:
    """Add a convolution for each output, with three inputs and parameters of its own."""
    found, used = [], {"strides": 0, "dilations": 0, "pads": 0}
    for name in ("inDilations", "outPads"):
        neutral = 1 if name == "inDilations" else 0
        if any(each != neutral for each in operation.attribute(name) or ()):
            raise popart_exception(f"{operation.describe()}: {name} are not supported")
    for place in range(len(operation.node.output)):
        inputs = [operation.optional(3 * place + each) for each in range(3)]
        assert inputs[0] is not None  # the builder refuses less
        axes = inputs[0].rank - 2
        kept: dict[str, Any] = {}
        for name, start in used.items():
            count = 2 * axes if name == "pads" else axes
            values = operation.attribute(name)
            if values:
                kept[name] = list(values[start : start + count])
                used[name] += count
        found.append(_add_conv(operation, *inputs, **kept))
    return found


@rule("MaxPool")
def _max_pool(operation: Operation) -> Sequence[Tensor]:
    if operation.attribute("storage_order", 0):
        raise popart_exception("storage_order != 0, not supported")
    dilations = operation.attribute("dilations") or ()
    if any(each != 1 for each in dilations):
        raise popart_exception(
            f"MaxPool has dilations {format_shape(dilations)}. Dilations of value other than 1 are "
            "currently not supported."
        )
    return [_pool(operation)]


@rule("AveragePool")
def _average_pool(operation: Operation) -> Sequence[Tensor]:
    if operation.attribute("count_include_pad", 0):
        raise popart_exception("`count_include_pad` is not supported")
    return [_pool(operation)]


def _pool(operation: Operation) -> Tensor:
    if len(operation.attribute("kernel_shape", ())) != operation.x.rank - 2:
        raise popart_exception("invalid kernel_shape, not same rank as the tensor operated on")
    kept = _attributes(operation, "auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")
    return operation.add(operation.node.op_type, operation.x, **kept)
