"""Shapes and element sizes of a graph's tensors, by shape inference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import TensorProto


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's compiled shape and the bytes of one element."""

    shape: tuple[int, ...]
    bytes_per_element: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return self.size * self.bytes_per_element


def collect_values(model: onnx.ModelProto) -> dict[str, Value]:
    """Shape and element size of every tensor of the main graph, as far as they can be inferred."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = {t.name: Value(tuple(t.dims), _bytes_per_element(t.data_type)) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            values.setdefault(info.name, Value(shape, _bytes_per_element(tensor.elem_type)))
    return values


def _bytes_per_element(data_type: int) -> int:
    if data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 4
    return min(4, onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)
