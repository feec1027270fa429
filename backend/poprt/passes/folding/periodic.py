"""Pass that stores one period of an initializer that repeats, and makes the rest on the chip."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import FLOAT_TYPES, iter_graphs, replace_nodes
from onnxgraph.edit import drop_initializers
from onnxgraph.weights import has_data, read_array

from popef._tools.arrays import Array
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.names import NameScope

_MIN_BYTES = 1024
"""Minimum size of an initializer for which a node pays off. Float tensors for axes, shapes or
indices are not that large."""


@register("fold_periodic_initializer", stage=Stage.PATTERNS, option="fold_periodic_initializer")
class FoldPeriodicInitializer(Pass):
    """Keep of an initializer of floats that repeats along its axes one period, and Expand or Tile
    it.

    Takes memory for weights off the chip, and costs cycles. Only where at least half of it goes.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace initializers by nodes whose results have the initializers' names."""
        names = NameScope.of(model)
        for graph in reversed(list(iter_graphs(model.graph))):
            fixed = {value.name for value in graph.input}
            nodes, tensors = [], []
            for tensor in graph.initializer:
                period = None if tensor.name in fixed else _find_period(tensor)
                if period is not None:
                    held = names.take(f"{tensor.name}/period", is_numbered=True)
                    tensors.append(numpy_helper.from_array(period, held))
                    node, how = _repeat(tensor, tensors[-1], names)
                    nodes.append(node)
                    tensors.append(how)
            if nodes:
                drop_initializers(graph, {node.output[0] for node in nodes})
                graph.initializer.extend(tensors)
                replace_nodes(graph, [*nodes, *graph.node])
        return model


def _repeat(
    tensor: TensorProto, period: TensorProto, names: NameScope
) -> tuple[onnx.NodeProto, TensorProto]:
    """Return the node that makes a tensor from its period, and the constant with its repeats or
    shape."""
    pairs = list(zip(tensor.dims, period.dims, strict=True))
    if all(part in (1, whole) for whole, part in pairs):
        op_type, numbers = "Expand", [whole for whole, _ in pairs]
    else:
        op_type, numbers = "Tile", [whole // part for whole, part in pairs]
    how = numpy_helper.from_array(
        np.array(numbers, np.int64), names.take(f"{tensor.name}/repeats", is_numbered=True)
    )
    node = helper.make_node(
        op_type, [period.name, how.name], [tensor.name], name=f"{tensor.name}/repeat"
    )
    return node, how


def _find_period(tensor: TensorProto) -> Array | None:
    """Return the period of a tensor; None if it is more than half of the tensor."""
    if tensor.data_type not in FLOAT_TYPES or not has_data(tensor):
        return None
    values = read_array(tensor)
    if values.nbytes < _MIN_BYTES:
        return None
    # Compare bits: -0 differs from 0, and NaN equals NaN.
    bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    for axis in range(bits.ndim):
        for part in _iter_parts(bits.shape[axis]):
            while bits.shape[axis] % part == 0 and _repeats(bits, axis, bits.shape[axis] // part):
                bits = np.take(bits, range(bits.shape[axis] // part), axis)
    return bits.view(values.dtype) if 2 * bits.size <= values.size else None


def _repeats(values: Array, axis: int, period: int) -> bool:
    """Return whether each slice along an axis equals the one `period` before it."""
    turned = np.moveaxis(values, axis, 0)
    if not np.array_equal(turned[period], turned[0]):  # decides most cases
        return False
    return np.array_equal(turned[period:], turned[:-period])


def _iter_parts(size: int) -> Iterator[int]:
    """Yield the prime factors of a size, each once."""
    for part in range(2, math.isqrt(size) + 1):
        if size % part == 0:
            yield part
            while size % part == 0:
                size //= part
    if size > 1:
        yield size
