"""The weights of a model, which may be gigabytes: looked after without copying them.

A weight may be outlined: its data lie in a file, from which `read_array` maps them, or in another model of
this process (`lend_weights`). What becomes of it then, as another precision, is written down by name
(`change_values`) and done when it is read. What the changes do, rooms above say (`register_change`).
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgraph.edit import copy_with_weights
from onnxgraph.tensors import count_bytes

LARGE = 1 << 18
"""Elements from which a weight is worth not copying."""
LARGE_BYTES = 4 * LARGE
OUTLINED_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Those that all passes know how to leave where they are."""
_TOKEN = secrets.token_hex(16)
"""Marks what this process has outlined: no model that comes from elsewhere can have this process read a
file."""
_CODED_TYPES = (TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ)
"""Read as codes: numpy has no such types."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Change:
    """What is done to the values of a weight."""

    make: Callable[..., Array]
    undoes: str
    """The change right before it that it takes back, exactly; "": none."""


_CHANGES: dict[str, _Change] = {}
_lenders: dict[str, TensorProto] = {}
"""Where the data of lent weights are, by their location, which is no file's name: it has NUL in it."""
_numbers = count()
_maps: WeakValueDictionary[tuple[int, ...], np.memmap[Any, Any]] = WeakValueDictionary()
"""The files that are mapped now."""
_made: WeakValueDictionary[tuple[str | int, ...], Array] = WeakValueDictionary()
"""Changed values that somebody holds, by where they come from and what became of them."""


def register_change(name: str, undoes: str = "") -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """A decorator for a function of values, and of whole numbers that `change_values` is given, which makes
    the values in another type."""

    def add(make: Callable[..., Array]) -> Callable[..., Array]:
        assert name not in _CHANGES, name
        _CHANGES[name] = _Change(make, undoes)
        return make

    return add


def outline(tensor: TensorProto, file: Path, offset: int) -> None:
    """Have the data of `tensor`, in place, lie in `file`: there must be `count_bytes` of them."""
    tensor.CopyFrom(_make_outlined(tensor, str(file), offset))


def _make_outlined(tensor: TensorProto, location: str, offset: int) -> TensorProto:
    made = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    made.data_location = TensorProto.EXTERNAL
    _write_down(
        made,
        {
            "location": location,
            "offset": str(offset),
            "stored": str(tensor.data_type),
            "shape": ",".join(map(str, tensor.dims)),
            "changes": "",
            "token": _TOKEN,
        },
    )
    return made


@contextmanager
def lend_weights(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """A copy of `model` to be changed, whose large weights are outlined while the with statement lasts: their
    data stay in `model`. Who keeps the copy, or a part of it, brings them in (`inline`) before its end."""
    lent: list[str] = []

    def lend(tensor: TensorProto) -> TensorProto:
        raw = tensor.data_location != TensorProto.EXTERNAL and tensor.HasField("raw_data")
        if not raw or tensor.data_type not in OUTLINED_TYPES or count_bytes(tensor) < LARGE_BYTES:
            return tensor
        lent.append(f"\0lent/{next(_numbers)}")
        _lenders[lent[-1]] = tensor
        return _make_outlined(tensor, lent[-1], 0)

    try:
        yield copy_with_weights(model, lend)
    finally:
        for location in lent:
            del _lenders[location]


def is_outlined(tensor: TensorProto) -> bool:
    """Whether `outline` has been there."""
    return any(entry.key == "token" and entry.value == _TOKEN for entry in tensor.external_data)


def describe_place(tensor: TensorProto) -> tuple[str, ...]:
    """Where the data of an outlined tensor lie, and what becomes of them when they are read: those of two
    that say the same are equal."""
    told = _describe(tensor)
    return tuple(told[key] for key in ("location", "offset", "stored", "shape", "changes"))


def is_lent(tensor: TensorProto) -> bool:
    """Whether the data of a tensor are another model's, for a while."""
    return is_outlined(tensor) and _describe(tensor)["location"] in _lenders


def read_array(tensor: TensorProto) -> Array:
    """The values of a tensor, of 8-bit floats the codes; a view of the file where it is outlined and nothing
    has changed it. Values that were changed are not made again while somebody holds them, and cannot be
    written."""
    if not is_outlined(tensor):
        return _read_codes(tensor) if tensor.data_type in _CODED_TYPES else numpy_helper.to_array(tensor)
    told = _describe(tensor)
    is_file = told["location"] not in _lenders
    key: tuple[str | int, ...] = describe_place(tensor)
    if is_file:
        key += _identify(told["location"])
    made = _made.get(key)
    if made is not None:
        return made
    stored = helper.tensor_dtype_to_np_dtype(int(told["stored"]))
    shape = tuple(map(int, filter(None, told["shape"].split(","))))
    values: Array
    if is_file:
        offset, size = int(told["offset"]), stored.itemsize * math.prod(shape)
        values = _map(told["location"])[offset : offset + size].view(stored).reshape(shape)
    else:
        values = numpy_helper.to_array(_lenders[told["location"]])
    for change in _listed(told):
        name, *arguments = change.split(":")
        values = _CHANGES[name].make(values, *map(int, arguments))
    values = np.asarray(values)
    if told["changes"]:
        values.flags.writeable = False
        _made[key] = values
    return values


def _identify(location: str) -> tuple[int, ...]:
    found = os.stat(location)
    return found.st_dev, found.st_ino, found.st_size


def _map(location: str) -> Array:
    """The bytes of a file, mapped once for all who hold a part of them: pages of each mapping count as memory
    of their own."""
    key = _identify(location)
    mapped = _maps.get(key)
    if mapped is None:
        mapped = _maps[key] = np.memmap(location, np.uint8, "r")
    return mapped


def _read_codes(tensor: TensorProto) -> Array:
    raw = tensor.raw_data if tensor.HasField("raw_data") else bytes(tensor.int32_data)
    return np.frombuffer(raw, np.uint8).reshape(tensor.dims)


def change_values(
    tensor: TensorProto, name: str, data_type: int, *arguments: int, shape: Sequence[int] | None = None
) -> None:
    """Put the values of `tensor`, in place, through the registered change `name`, which makes `data_type` of
    them, and `shape` where it is another: at once, or of outlined values when they are read. A tensor without
    data takes type and shape only."""
    if is_outlined(tensor):
        told = _describe(tensor)
        changes = _listed(told)
        if changes and changes[-1] == _CHANGES[name].undoes:
            changes.pop()
        else:
            changes.append(":".join(map(str, (name, *arguments))))
        _write_down(tensor, {**told, "changes": ";".join(changes)})
    elif has_data(tensor):
        hold(tensor, _CHANGES[name].make(numpy_helper.to_array(tensor), *arguments), data_type)
    tensor.data_type = data_type
    if shape is not None:
        tensor.dims[:] = shape


def _describe(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _listed(told: dict[str, str]) -> list[str]:
    return list(filter(None, told["changes"].split(";")))


def _write_down(tensor: TensorProto, told: dict[str, str]) -> None:
    del tensor.external_data[:]
    tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=told[key]) for key in told)


def hold(tensor: TensorProto, values: Array, data_type: int) -> None:
    """Make these the values of `tensor`, in place: as many as its shape holds, of the type's own kind."""
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.data_type = data_type
    tensor.dims.extend(dims)
    tensor.raw_data = values.tobytes()  # the only copy: gigabytes pass through here
    if name:
        tensor.name = name


def inline(tensor: TensorProto) -> None:
    """Bring the data of an outlined tensor into it, in place."""
    if is_outlined(tensor):
        hold(tensor, read_array(tensor), tensor.data_type)


def has_data(tensor: TensorProto) -> bool:
    """Whether a tensor brings its values, or says where they are, or none are needed."""
    if is_outlined(tensor):
        return True
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    if 0 in tensor.dims or tensor.data_type == TensorProto.STRING:
        return True
    if tensor.HasField("raw_data"):
        # To look at gigabytes, or ask for their size, would be to copy them; who admits a model has counted.
        return math.prod(tensor.dims) > LARGE or len(tensor.raw_data) > 0
    fields = (
        tensor.float_data,
        tensor.int32_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
    )
    return any(len(each) for each in fields)
