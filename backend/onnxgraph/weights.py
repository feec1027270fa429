"""The weights of a model, which may be gigabytes: looked after without copying them.

A weight may be outlined: its data lie in a file, from which `read_array` maps them, in the type that they
have there, while the tensor may have become one of another precision.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

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
        half = np.where(infinite & np.isfinite(values), np.copysign(np.finfo(np.float16).max, half), half)
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
