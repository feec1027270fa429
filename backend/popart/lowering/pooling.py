"""Rules of poolings. Their windows are PopART's: pads may be negative, and ceil_mode adds a last
window wherever one begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxgraph import Results

from popart.errors import format_shape, popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import FLOATS, Operation, check_floats, cut_pads, rule
from popart.windows import check_lengths

SPATIAL = 2
"""First axis along which a window moves."""


@rule("MaxPool")
def _max_pool(op: Graph, node: Operation) -> Results:
    if node.get("storage_order", 0):
        raise popart_exception("storage_order != 0, not supported")
    dilations = node.get("dilations") or ()
    if any(dilation != 1 for dilation in dilations):
        raise popart_exception(
            f"MaxPool has dilations {format_shape(dilations)}. Dilations of value other than 1 are "
            "currently not supported."
        )
    if node.has_output(1):
        raise popart_exception(f"{node.describe()}: the output 'Indices' is not supported")
    return _pool(op, node)


@rule("AveragePool", "LpPool")
def _average_pool(op: Graph, node: Operation) -> Results:
    if node.get("count_include_pad", 0):
        raise popart_exception("`count_include_pad` is not supported")
    check_floats(node, node.x)
    return _pool(op, node)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(op: Graph, node: Operation) -> Results:
    x, power = node.x, int(node.get("p", 2))
    check_floats(node, x)
    if x.rank < 3 or not all(x.shape[2:]) or power < 1:  # noqa: PLR2004
        raise popart_exception(
            f"{node.describe()}: expected an input with spatial axes that have elements, "
            f"and a power of at least 1, found {format_shape(x.shape)} and {power}"
        )
    attributes = {"p": power} if node.node.op_type == "GlobalLpPool" else {}
    return op.add(node.node.op_type, x, **attributes)


def check_positive(node: Operation, attributes: Mapping[str, Any]) -> None:
    """Raise popart_exception for strides, dilations and kernels that are not positive."""
    for name in ("strides", "dilations", "kernel_shape"):
        values = list(attributes.get(name) or ())
        if any(value < 1 for value in values):
            raise popart_exception(
                f"{node.describe()}: {name} {format_shape(values)} must be positive"
            )


def _pool(op: Graph, node: Operation) -> Tensor:
    x, kernel = node.x, list(node.get("kernel_shape", ()))
    axes = x.rank - 2
    if len(kernel) != axes or not kernel:
        raise popart_exception("invalid kernel_shape, not same rank as the tensor operated on")
    attributes = {name: node.get(name) for name in ("strides", "pads")}
    check_lengths(attributes, axes)
    check_positive(node, {**attributes, "kernel_shape": kernel})
    if node.get("auto_pad", "NOTSET") != "NOTSET":
        return _add_pool(op, node, x, kernel, auto_pad=node.get("auto_pad"), **attributes)
    strides = list(attributes["strides"] or [1] * axes)
    x, pads = cut_pads(op, x, attributes["pads"] or [0] * 2 * axes, SPATIAL)
    if node.get("ceil_mode", 0):
        pads = _pad_to_ceil(x.shape[2:], kernel, strides, pads)
    sizes = [
        (size + pads[i] + pads[axes + i] - kernel[i]) // strides[i] + 1
        for i, size in enumerate(x.shape[2:])
    ]
    if min(sizes) < 1:
        raise popart_exception(
            "Window parameter values combine to give invalid spatial output shape: "
            f"{format_shape(sizes)}"
        )
    if all(pad < kernel[i % axes] for i, pad in enumerate(pads)):
        return _add_pool(op, node, x, kernel, pads=pads, strides=strides)
    return _pool_padded(op, node, x, kernel, pads, strides)


def _add_pool(op: Graph, node: Operation, x: Tensor, kernel: Sequence[int], **named: Any) -> Tensor:
    kind = node.node.op_type
    power = {"p": int(node.get("p", 2))} if kind == "LpPool" else {}
    if power and power["p"] < 1:
        raise popart_exception(
            f"{node.describe()}: expected a power of at least 1, found {power['p']}"
        )
    return op.add(kind, x, kernel_shape=list(kernel), **named, **power)


def _pad_to_ceil(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Return pads with which the last windows end where the padded input does. There is a window at
    each stride for which a place of the input or of the pads is left."""
    axes, padded = len(sizes), list(pads)
    for i, size in enumerate(sizes):
        room = size + pads[i] + pads[axes + i] - kernel[i]
        count = -(-room // strides[i]) + 1
        padded[axes + i] = (count - 1) * strides[i] + kernel[i] - size - pads[i]
    return padded


def _pool_padded(
    op: Graph,
    node: Operation,
    x: Tensor,
    kernel: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Tensor:
    """Pool an input that is padded before: ONNX Runtime wants pads that are smaller than windows.
    An average counts elements of the input only; without any it is 0."""
    axes, kind = len(kernel), node.node.op_type
    is_max = kind == "MaxPool"
    lowest = -np.inf if x.element_type in FLOATS else np.iinfo(x.dtype).min
    bounds = op.ints([0, 0, *pads[:axes], 0, 0, *pads[axes:]])
    filler = op.like(lowest if is_max else 0, x.element_type)
    padded = op.Pad(x, bounds, filler, mode="constant")
    pooled = _add_pool(op, node, padded, kernel, strides=list(strides))
    if kind != "AveragePool":
        return pooled
    counts = np.ones([1, 1, *pooled.shape[2:]])
    for i, size in enumerate(x.shape[2:]):
        starts = np.arange(pooled.shape[2 + i]) * strides[i] - pads[i]
        inside = np.clip(starts + kernel[i], 0, size) - np.clip(starts, 0, size)
        counts *= inside.reshape([-1 if axis == 2 + i else 1 for axis in range(2 + axes)])
    share = np.prod(kernel) / np.maximum(counts, 1)
    return pooled * op.constant(share, x.dtype)
