"""Streams of a graph: what the host sends to the chip and receives, under PopART's handles."""

from __future__ import annotations

import numpy as np
import onnx
from onnxgraph import find_inputs
from simipu import Direction, Stream

from popef._tools.arrays import Array


def make_streams(graph: onnx.GraphProto) -> tuple[Stream, ...]:
    """Return the streams of a static graph's inputs and outputs, with PopART's handles."""
    inputs = [
        _stream(value, f"h2d_{value.name}", Direction.HOST_TO_DEVICE)
        for value in find_inputs(graph)
    ]
    outputs = [
        _stream(value, f"anchor_d2h_{value.name}", Direction.DEVICE_TO_HOST)
        for value in graph.output
    ]
    return (*inputs, *outputs)


def _stream(value: onnx.ValueInfoProto, handle: str, direction: Direction) -> Stream:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Stream(
        handle, value.name, direction, dtype, tuple(dim.dim_value for dim in tensor.shape.dim)
    )


def weight_stream(name: str, value: Array) -> Stream:
    """Return the stream of a weight that the host sends once."""
    return Stream(f"h2d_{name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
