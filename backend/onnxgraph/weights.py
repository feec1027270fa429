"""The weights of a model, which may be gigabytes: handled without copies.

A weight may be outlined: its data are in a file, from which `read_array` maps them, or in another
model of this process (`lend_weights`). Changes of it, such as another precision, are then recorded
by name (`change_values`) and applied on reading. Rooms above define the changes
(`register_change`).

Files of external data that an ONNX model from elsewhere refers to are checked: each must be in the
model's folder, be a regular file, and have the required size.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgraph.edit import copy_with_weights
from onnxgraph.nodes import FLOAT_TYPES, GraphError, count_bytes, iter_tensors
from popef._tools.arrays import Array
from popef._tools.file_kinds import HEAD_BYTES, recognize_substitute
from popef._tools.text import escape

LARGE = 1 << 18
"""Number of elements from which copying a weight is worth avoiding."""
LARGE_BYTES = 4 * LARGE
OUTLINED_TYPES = FLOAT_TYPES
"""Element types that all passes can leave outlined."""
_TOKEN = secrets.token_hex(16)
"""Mark of what this process has outlined: no model from elsewhere can make this process read a
file."""
_CODED_TYPES = (TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ)
"""Element types that are read as codes, because numpy has no such types."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Change of the values of a weight."""

    make: Callable[..., Array]
    undoes: str
    """Name of the change that this one reverts exactly, if that comes right before it; "" for
    none."""


_CHANGES: dict[str, _Change] = {}
_lenders: dict[str, TensorProto] = {}
"""Tensor with the data of each lent weight, by location, which is no file's name because it
contains NUL."""
_numbers = count()
_maps: WeakValueDictionary[tuple[int, ...], np.memmap[Any, Any]] = WeakValueDictionary()
"""Files that are mapped now."""
_RELEASE_SECONDS = 0.05
"""Interval at which pages are let go of. On a core that multiplies them, 100 MB are read in it."""
_made: WeakValueDictionary[tuple[str | int, ...], Array] = WeakValueDictionary()
"""Changed values that are still in use, by their origin and their changes."""


def register_change(
    name: str, undoes: str = ""
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Return a decorator that registers a change of values.

    The decorated function takes values, and the whole numbers given to `change_values`, and returns
    the values in another type.
    """

    def add(make: Callable[..., Array]) -> Callable[..., Array]:
        assert name not in _CHANGES, name
        _CHANGES[name] = _Change(make, undoes)
        return make

    return add


def outline(tensor: TensorProto, file: Path, offset: int) -> None:
    """Move the data of `tensor`, in place, to `file`, which must hold `count_bytes` of them at
    `offset`."""
    tensor.CopyFrom(_make_outlined(tensor, str(file), offset))


def _make_outlined(tensor: TensorProto, location: str, offset: int) -> TensorProto:
    outlined = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    outlined.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "stored": str(tensor.data_type)}
    entries |= {"shape": ",".join(map(str, tensor.dims)), "changes": "", "token": _TOKEN}
    _write_down(outlined, entries)
    return outlined


@contextmanager
def lend_weights(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield a copy of `model` to be changed, whose large weights are outlined during the with
    statement.

    Their data stay in `model`. Code that keeps the copy, or a part of it, must read them in
    (`inline`) before the end.
    """
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
    """Return whether the tensor is outlined by this process."""
    return any(entry.key == "token" and entry.value == _TOKEN for entry in tensor.external_data)


def describe_place(tensor: TensorProto) -> tuple[str, ...]:
    """Return the place of an outlined tensor's data and the changes on reading.

    Two tensors with equal results have equal values.
    """
    entries = _describe(tensor)
    return tuple(entries[key] for key in ("location", "offset", "stored", "shape", "changes"))


def is_lent(tensor: TensorProto) -> bool:
    """Return whether the data of a tensor are lent by another model."""
    return is_outlined(tensor) and _describe(tensor)["location"] in _lenders


def read_array(tensor: TensorProto) -> Array:
    """Return the values of a tensor, for 8-bit floats the codes.

    The result is a view of the file if the tensor is outlined and unchanged. Changed values are
    cached while in use, and are read-only.
    """
    if not is_outlined(tensor):
        coded = tensor.data_type in _CODED_TYPES
        return _read_codes(tensor) if coded else numpy_helper.to_array(tensor)
    entries = _describe(tensor)
    is_file = entries["location"] not in _lenders
    key: tuple[str | int, ...] = describe_place(tensor)
    if is_file:
        key += _identify(entries["location"])
    array = _made.get(key)
    if array is not None:
        return array
    stored = helper.tensor_dtype_to_np_dtype(int(entries["stored"]))
    shape = tuple(map(int, filter(None, entries["shape"].split(","))))
    values: Array
    if is_file:
        offset, size = int(entries["offset"]), stored.itemsize * math.prod(shape)
        values = _map(entries["location"])[offset : offset + size].view(stored).reshape(shape)
    else:
        values = numpy_helper.to_array(_lenders[entries["location"]])
    for change in _listed(entries):
        name, *arguments = change.split(":")
        values = _CHANGES[name].make(values, *map(int, arguments))
    values = np.asarray(values)
    if entries["changes"]:
        values.flags.writeable = False
        _made[key] = values
    return values


def _identify(location: str) -> tuple[int, ...]:
    status = os.stat(location)
    return status.st_dev, status.st_ino, status.st_size


def _map(location: str) -> Array:
    """Return the bytes of a file, mapped once for all users, because the pages of each mapping
    count as separate memory."""
    key = _identify(location)
    mapped = _maps.get(key)
    if mapped is None:
        mapped = _maps[key] = np.memmap(location, np.uint8, "r")
    return mapped


@contextmanager
def holding_few_pages() -> Iterator[None]:
    """Within this context, let go of the pages of mapped files some times a second.

    Otherwise a model of gigabytes stays in the memory of a process that has read it once. A page
    that is read again comes from the system's cache of the file.
    """
    ended = threading.Event()

    def release_repeatedly() -> None:
        while not ended.wait(_RELEASE_SECONDS):
            release_pages()

    thread = threading.Thread(target=release_repeatedly, name="pages of weights", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def release_pages() -> None:
    """Let go of the pages of all mapped files."""
    for reference in _maps.valuerefs():
        if (mapped := reference()) is not None:
            mapping = mapped.base
            assert isinstance(mapping, mmap.mmap)
            mapping.madvise(mmap.MADV_DONTNEED)


def _read_codes(tensor: TensorProto) -> Array:
    raw = tensor.raw_data if tensor.HasField("raw_data") else bytes(tensor.int32_data)
    return np.frombuffer(raw, np.uint8).reshape(tensor.dims)


def change_values(
    tensor: TensorProto,
    name: str,
    data_type: int,
    *arguments: int,
    shape: Sequence[int] | None = None,
) -> None:
    """Apply the registered change `name` to the values of `tensor`, in place.

    The change gives `data_type` and, if not None, `shape`. It is applied at once, or on reading if
    the values are outlined. A tensor without data gets only type and shape.
    """
    if is_outlined(tensor):
        entries = _describe(tensor)
        changes = _listed(entries)
        if changes and changes[-1] == _CHANGES[name].undoes:
            changes.pop()
        else:
            changes.append(":".join(map(str, (name, *arguments))))
        _write_down(tensor, {**entries, "changes": ";".join(changes)})
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
    tensor.external_data.extend(
        onnx.StringStringEntryProto(key=key, value=told[key]) for key in told
    )


def hold(tensor: TensorProto, values: Array, data_type: int) -> None:
    """Set the values of `tensor`, in place: as many as its shape holds, of the type's own kind."""
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.data_type = data_type
    tensor.dims.extend(dims)
    tensor.raw_data = values.tobytes()  # the only copy: gigabytes pass through here
    if name:
        tensor.name = name


def inline(tensor: TensorProto) -> None:
    """Read the data of an outlined tensor into it, in place."""
    if is_outlined(tensor):
        hold(tensor, read_array(tensor), tensor.data_type)


ON_DEVICE = "device"
"""Location of a weight that leaves the graph: a program gets it when it is loaded."""


def is_on_device(tensor: TensorProto) -> bool:
    """Return whether a tensor stands for a weight that a program gets when it is loaded."""
    return tensor.data_location == TensorProto.EXTERNAL and any(
        entry.key == "location" and entry.value == ON_DEVICE for entry in tensor.external_data
    )


def has_data(tensor: TensorProto) -> bool:
    """Return whether a tensor has its values, knows where they are, or needs none."""
    if is_outlined(tensor):
        return True
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    if 0 in tensor.dims or tensor.data_type == TensorProto.STRING:
        return True
    if tensor.HasField("raw_data"):
        # Reading raw_data, or its size, copies gigabytes; the check on admission has counted them.
        return math.prod(tensor.dims) > LARGE or len(tensor.raw_data) > 0
    kinds = ("float", "int32", "int64", "double", "uint64")
    return any(len(getattr(tensor, f"{kind}_data")) for kind in kinds)


def find_folders(file: Path) -> tuple[Path, Path]:
    """Return the folders that may hold the external data of the model in `file`: its own, and that
    of the real file if it is a link. The cache of the Hugging Face hub has a model and its data as
    links into one folder."""
    return file.parent, file.resolve().parent


def find_data(tensor: TensorProto, folder: Path, *others: Path) -> tuple[Path, int]:
    """Return the file with the external data of `tensor`, of a model in `folder`, and their offset.
    A link in `folder` may lead to one of the `others`.

    Raises FileNotFoundError if there is no such file. Raises GraphError if it is outside of the
    folders, is a device or a pipe, or does not hold data of the tensor's size.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, size = entries.get("location", ""), count_bytes(tensor)
    where = (
        f"external data of weight {escape(tensor.name, 100)!r}, location {escape(location, 100)!r}"
    )
    mode: int | None = None
    try:
        file = Path(folder, location).resolve()
        inside = bool(location) and any(
            file.is_relative_to(parent.resolve()) for parent in (folder, *others)
        )
        # Not `exists`, which from Python 3.14 on hides that a name is too long.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = file.stat().st_mode
    except (OSError, ValueError) as error:  # a name that is too long, or holds NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise GraphError(
            f"{where}: expected a valid file name, found one that the system rejects ({reason})"
        ) from None
    if not inside:
        raise GraphError(
            f"{where}: expected a file inside the model's folder {folder}; move it beside the model"
        )
    if mode is None:
        raise FileNotFoundError(
            f"{where}: there is no such file in {folder}; put it beside the model"
        )
    if not stat.S_ISREG(mode):
        raise GraphError(f"{where}: expected a regular file, found a folder, a device or a pipe")
    with file.open("rb") as opened:
        if substitute := recognize_substitute(opened.read(HEAD_BYTES)):
            raise GraphError(f"{where}: expected raw numbers, found {substitute}")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise GraphError(
            f"{where}: expected numbers for offset and length, found {entries}"
        ) from None
    if offset < 0 or length != size or offset + size > file.stat().st_size:
        raise GraphError(
            f"{where}: expected {size} bytes for shape {list(tensor.dims)}, found length {length} "
            f"at offset {offset} of {file.stat().st_size} bytes; the data belong to another model, "
            "or are truncated"
        )
    return file, offset


def bring_in(tensor: TensorProto, *folders: Path) -> None:
    """Read the external data of `tensor` into it; raises like `find_data`."""
    file, offset = find_data(tensor, *folders)
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read(count_bytes(tensor))
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def bring_all_in(model: onnx.ModelProto, *folders: Path) -> None:
    """Read the external data of every tensor of `model`; raises like `find_data`."""
    for tensor, _ in iter_tensors(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            bring_in(tensor, *folders)
