"""The streams of the compiler's programs: what the host sends and gets, by handle."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from simipu import Direction, Stream

LOAD_PROGRAM, MAIN_PROGRAM = 0, 5
"""PopART's program indices: WeightsFromHost and Program."""


def make_streams(graph: onnx.GraphProto) -> tuple[Stream, ...]:
    """Those of a static graph's inputs and outputs, under the handles that PopART gives them."""
    inputs = [_stream(value, f"h2d_{value.name}", Direction.HOST_TO_DEVICE) for value in graph.input]
    outputs = [_stream(value, f"anchor_d2h_{value.name}", Direction.DEVICE_TO_HOST) for value in graph.output]
    return (*inputs, *outputs)


def _stream(value: onnx.ValueInfoProto, handle: str, direction: Direction) -> Stream:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Stream(handle, value.name, direction, dtype, tuple(dim.dim_value for dim in tensor.shape.dim))


def weight_stream(name: str, value: npt.NDArray[Any]) -> Stream:
    """That of a weight which the host sends once."""
    return Stream(f"h2d_{name}", name, Direction.HOST_TO_DEVICE, value.dtype, value.shape)
