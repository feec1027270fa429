"""Windows of nodes: how many a pool has, and faults of an input that is shorter than the window.
Shape inference reports none, and ONNX Runtime only in the run."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnxgraph import attribute

from simipu.operators.entry import Fault, Shapes

_SAME = (b"SAME_UPPER", b"SAME_LOWER")
_LEADING = 2
"""Axes of a filter or an input before those that a window slides along."""


def count_windows(node: onnx.NodeProto, sizes: Sequence[int]) -> list[int]:
    """Return the number of a pool's windows along each axis of an image."""
    rank = len(sizes)
    strides = attribute(node, "strides") or [1] * rank
    dilations = attribute(node, "dilations") or [1] * rank
    auto_pad = attribute(node, "auto_pad", b"NOTSET")
    pads = (attribute(node, "pads") if auto_pad == b"NOTSET" else None) or [0] * 2 * rank
    counts = []
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        extent = (attribute(node, "kernel_shape")[axis] - 1) * dilations[axis] + 1
        room = size + pads[axis] + pads[axis + rank] - extent
        if auto_pad in _SAME:
            count = -(-size // stride)
        elif attribute(node, "ceil_mode", 0):
            count = -(-room // stride) + 1
            count -= (count - 1) * stride >= size + pads[axis]  # it would begin in the padding
        else:
            count = room // stride + 1
        counts.append(max(0, count))
    return counts


def window_fault(filters: int | None = None) -> Fault:
    """Return a check of nodes whose window is the input number `filters`, or `kernel_shape` of the
    node."""

    def find(node: onnx.NodeProto, shapes: Shapes) -> str:
        source = shapes[0] if shapes else None
        window = tuple(attribute(node, "kernel_shape", ()))
        filter_shape = shapes[filters] if filters is not None and filters < len(shapes) else None
        kernel = window or (filter_shape or ())[_LEADING:]
        if source is None or len(source) != len(kernel) + _LEADING or 0 in source:
            return ""
        return _compare(node, source[_LEADING:], kernel)

    return find


def _compare(node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]) -> str:
    rank = len(sizes)
    is_padded = attribute(node, "auto_pad", b"NOTSET") in _SAME
    if is_padded or attribute(node, "ceil_mode", 0):
        return ""
    pads = tuple(attribute(node, "pads", ())) or (0,) * (2 * rank)
    dilations = tuple(attribute(node, "dilations", ())) or (1,) * rank
    if len(pads) != 2 * rank or len(dilations) != rank:
        return ""
    for axis in range(rank):
        padded = sizes[axis] + pads[axis] + pads[axis + rank]
        window = (kernel[axis] - 1) * dilations[axis] + 1
        if padded < window:
            pads_too = f", and {padded} with pads" if padded != sizes[axis] else ""
            return (
                f"its window has {window} elements along axis {axis + _LEADING}, its input only "
                f"{sizes[axis]}{pads_too}; give the model a longer input (--input_shape)"
            )
    return ""
