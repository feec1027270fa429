"""Removal of weights from a model's graph: they become constants of the executable, mapped from
where they lie, or are streamed."""

from __future__ import annotations

import onnx
from onnx import TensorProto
from onnxgraph import ON_DEVICE, count_bytes, iter_nodes, read_array, without_weights
from simipu.numerics import QUARTERS
from simipu.operators import operator_of

from popef._tools.arrays import Array

MAXIMUM_IR_VERSION = 10
"""Newest version of the ONNX format that the oldest supported ONNX Runtime (1.18) reads. Later
versions only add features that are not compiled here."""
_WEIGHT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, *QUARTERS)
MIN_CONSTANT_BYTES = 1024
"""Minimum number of bytes of a weight that leaves the graph. Smaller frozen weights stay, so that
ONNX Runtime may fold them."""


def extract_weights(
    model: onnx.ModelProto, least_bytes: int
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a copy of the model without its floating-point weights of at least that size, and
    those weights.

    The weights are streamed, or mapped from where they lie. Those that shapes depend on, such as
    the scales of Resize, stay.
    """
    settled = {
        node.input[place]
        for node in iter_nodes(model.graph)
        for place in operator_of(node).shaped_by
        if place < len(node.input)
    }
    tensors = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.data_type in _WEIGHT_TYPES
        and tensor.name not in settled
        and len(tensor.dims) > 0
        and count_bytes(tensor) >= least_bytes
    }
    light = without_weights(model, set(tensors), as_inputs=False)
    light.ir_version = min(light.ir_version, MAXIMUM_IR_VERSION)
    for tensor in tensors.values():
        stub = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            data_location=TensorProto.EXTERNAL,
        )
        stub.external_data.add(key="location", value=ON_DEVICE)
        light.graph.initializer.append(stub)
    return light, {name: read_array(tensor) for name, tensor in tensors.items()}
