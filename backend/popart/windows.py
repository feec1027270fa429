"""Checks of windows (strides, dilations, pads, kernels) when a node is added.

PopART's builder rejects wrong windows of convolutions and poolings at once, and wrong pads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from popart.errors import format_shape, popart_exception

FindShape = Callable[[str], "list[int] | None"]


def check_windows(
    op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any], find_shape: FindShape
) -> None:
    """Raise popart_exception if a node's window does not fit the shapes that are known.

    Args:
        op_type: Type of the operator; of a MultiConv one convolution is given.
        inputs: Ids of its inputs.
        attributes: Its attributes.
        find_shape: Function that returns the shape of a tensor, or None.
    """
    if op_type in ("Conv", "MultiConv"):
        _check_convolution(inputs, attributes, find_shape)
    elif op_type in ("AveragePool", "MaxPool"):
        shape = find_shape(inputs[0])
        if shape:
            _check_window(shape, attributes["kernel_shape"], attributes)
    elif op_type == "Pad" and "pads" in attributes:
        shape = find_shape(inputs[0])
        if shape and len(attributes["pads"]) != 2 * len(shape):
            raise popart_exception(
                f"Padding vector (length {len(attributes['pads'])}) doesn't contain 2 entries per "
                f"input dimension {len(shape)}"
            )


def _check_convolution(
    inputs: Sequence[str], attributes: Mapping[str, Any], find_shape: FindShape
) -> None:
    weights = find_shape(inputs[1])
    kernel = weights[2:] if weights else []
    kernel_shape = attributes.get("kernel_shape")
    if weights and kernel_shape is not None and list(kernel_shape) != kernel:
        raise popart_exception(
            f"kernel_shape, {format_shape(kernel_shape)}, does not match inferred shape from "
            f"weight input '{inputs[1]}', {format_shape(kernel)}"
        )
    shape = find_shape(inputs[0])
    if shape:
        _check_window(shape, kernel, attributes)


def _check_window(shape: list[int], kernel: Sequence[int], attributes: Mapping[str, Any]) -> None:
    spatial = shape[2:]
    if not spatial:
        raise popart_exception("Input tensor has no spatial dimensions")
    rank = len(spatial)
    strides, pads, dilations = (attributes.get(key, ()) for key in ("strides", "pads", "dilations"))
    check_lengths(attributes, rank)
    if len(kernel) != rank or not all(strides or [1]):
        return
    pads, strides, dilations = (
        pads or [0] * 2 * rank,
        strides or [1] * rank,
        dilations or [1] * rank,
    )
    sizes = []
    for axis, size in enumerate(spatial):
        # An output element for each place of the window: those of the padded input that the
        # dilated kernel leaves, every stride-th of them.
        room = size + pads[axis] + pads[rank + axis] - dilations[axis] * (kernel[axis] - 1) - 1
        steps = -(-room // strides[axis]) if attributes.get("ceil_mode") else room // strides[axis]
        sizes.append(steps + 1)
    if min(sizes) < 0:
        raise popart_exception(
            "Window parameter values combine to give invalid spatial output shape: "
            f"{format_shape(sizes)}"
        )


def check_lengths(attributes: Mapping[str, Any], rank: int) -> None:
    """Raise popart_exception for lists that do not have a value, or two, for each spatial axis."""
    for name in ("strides", "pads", "outPads", "dilations", "inDilations"):
        count = len(attributes.get(name) or ())
        if name in ("pads", "outPads"):
            if count not in (0, 2 * rank):
                raise popart_exception(
                    f"Padding vector (length {count}) does not have 2 values for each spatial "
                    f"dimension {rank}"
                )
        elif count not in (0, rank):
            raise popart_exception(
                f"Length of {name} vector {count} != number of spatial dimensions {rank}"
            )
