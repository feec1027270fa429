"""The weights of a model, which may be gigabytes: looked after without copying them."""

from __future__ import annotations

import math
from typing import TypeVar

import onnx
from onnx import TensorProto, helper
from simipu.numerics import iter_subgraphs

LARGE = 1 << 18
"""Elements from which a weight is worth not copying."""
_MOST_BESIDE_DATA = 1 << 16
"""Bytes that a tensor without data has at the most: its name and description, above all."""
_SIZED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)


def used_names(graph: onnx.GraphProto) -> set[str]:
    """Names that nodes, their bodies' too, and outputs take."""
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    return used.union(*(used_names(subgraph) for node in graph.node for subgraph in iter_subgraphs(node)))


def drop_weights(graph: onnx.GraphProto, kept: set[str]) -> None:
    """Drop all weights but those, in place, and those twice there; gigabytes stay where they are."""
    last = {tensor.name: i for i, tensor in enumerate(graph.initializer)}
    for i in reversed(range(len(graph.initializer))):
        name = graph.initializer[i].name
        if name not in kept or last[name] != i:
            del graph.initializer[i]


def without_weights(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """A copy that has inputs in the place of those weights, which are not copied."""
    light = _copy(model, "graph")
    light.graph.CopyFrom(_copy(model.graph, "initializer"))
    known = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            light.graph.initializer.append(tensor)
        elif tensor.name not in known:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light


def _copy(message: _Message, left_out: str) -> _Message:
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        elif field.message_type is not None:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy


def has_data(tensor: TensorProto) -> bool:
    """Whether a tensor brings its values, or none are needed."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    if tensor.ByteSize() > _MOST_BESIDE_DATA:
        return True  # to look at them would be to copy them
    fields = (tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    return 0 in tensor.dims or tensor.data_type == TensorProto.STRING or any(len(each) for each in fields)


def is_whole(tensor: TensorProto) -> bool:
    """Whether a tensor of floats has as many bytes of values as its shape and type say. Nothing is copied to find out."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type not in _SIZED or min(tensor.dims, default=0) < 1:
        return False
    size = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    beside = [name for name in ("name", "data_type", "doc_string", "data_location") if tensor.HasField(name)]
    rest = TensorProto(dims=tensor.dims, **{name: getattr(tensor, name) for name in beside})
    # A field's key, the length of what follows, and that.
    return tensor.ByteSize() - rest.ByteSize() == 1 + math.ceil(size.bit_length() / 7) + size
