"""The weights of a model, which may be gigabytes: looked after without copying them.

A weight may be outlined: its data lie in a file, from which `read_array` maps them, in the type that they
have there, while the tensor may have become one of another precision.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu.numerics import iter_subgraphs
from simipu.numerics.rounding import HALF_MAX

LARGE = 1 << 18
"""Elements from which a weight is worth not copying."""
LARGE_BYTES = 4 * LARGE
OUTLINED_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Those that all passes know how to leave where they are."""
_TOKEN = secrets.token_hex(16)
"""Marks what this process has outlined: no model that comes from elsewhere can have this process read a
file."""
_MOST_BESIDE_DATA = 1 << 16
"""Bytes that a tensor without data has at the most: its name and description, above all."""
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


def without_weights(model: onnx.ModelProto, names: set[str], *, as_inputs: bool = True) -> onnx.ModelProto:
    """A copy that has inputs in the place of those weights, unless not `as_inputs`; they are not copied."""
    light = _copy(model, "graph")
    light.graph.CopyFrom(_copy(model.graph, "initializer"))
    known = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            light.graph.initializer.append(tensor)
        elif as_inputs and tensor.name not in known:
            light.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
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


def outline(tensor: TensorProto, file: Path, offset: int) -> None:
    """Have the data of `tensor`, in place, lie in `file`: there must be `count_bytes` of them."""
    told = {"location": str(file), "offset": str(offset), "stored": str(tensor.data_type), "token": _TOKEN}
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in told.items()]
    kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, external_data=entries)
    kept.data_location = TensorProto.EXTERNAL
    tensor.CopyFrom(kept)


def is_outlined(tensor: TensorProto) -> bool:
    """Whether `outline` has been there."""
    return any(entry.key == "token" and entry.value == _TOKEN for entry in tensor.external_data)


def read_array(tensor: TensorProto) -> npt.NDArray[Any]:
    """The values of a tensor; a view of the file where it is outlined and has kept its type."""
    if not is_outlined(tensor):
        return numpy_helper.to_array(tensor)
    told = {entry.key: entry.value for entry in tensor.external_data}
    stored = helper.tensor_dtype_to_np_dtype(int(told["stored"]))
    values = np.memmap(told["location"], stored, "r", int(told["offset"]), tuple(tensor.dims))
    if int(told["stored"]) == tensor.data_type:
        return np.asarray(values)
    return round_to_half(values) if tensor.data_type == TensorProto.FLOAT16 else values.astype(np.float32)


def retype(tensor: TensorProto, data_type: int) -> None:
    """Turn a tensor of floats, in place, to half or float: to half to nearest, finite values clamped to the
    finite range."""
    if tensor.data_type == data_type:
        return
    if is_outlined(tensor) or not has_data(tensor):
        tensor.data_type = data_type
        return
    values = numpy_helper.to_array(tensor)
    wanted = round_to_half(values) if data_type == TensorProto.FLOAT16 else values.astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(wanted, tensor.name))


def round_to_half(values: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """The nearest halves; finite values beyond their range become the largest."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    infinite = np.isinf(half)
    if infinite.any():
        half = np.where(infinite & np.isfinite(values), np.copysign(np.float16(HALF_MAX), half), half)
    return half


def inline(tensor: TensorProto) -> None:
    """Bring the data of an outlined tensor into it, in place."""
    if is_outlined(tensor):
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(read_array(tensor)), tensor.name))


def has_data(tensor: TensorProto) -> bool:
    """Whether a tensor brings its values, or says where they are, or none are needed."""
    if is_outlined(tensor):
        return True
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    if tensor.ByteSize() > _MOST_BESIDE_DATA:
        return True  # to look at them would be to copy them
    fields = (
        tensor.raw_data,
        tensor.float_data,
        tensor.int32_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
    )
    return 0 in tensor.dims or tensor.data_type == TensorProto.STRING or any(len(each) for each in fields)
