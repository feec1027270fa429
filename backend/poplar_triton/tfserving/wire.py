"""Conversion between TensorProto and array.

The values of a tensor come as `tensor_content`, the memory of the array, or as a typed list. The
last value of a list counts for all elements beyond the list, and an empty list means zeros. The
typed lists are packed on the wire, and messages.proto takes each as its bytes: floats are read in
place, numbers of variable length by numpy. Lists that are not packed are read too, as protobuf
does. A number of variable length has seven bits per byte, the lowest first; the eighth bit is set
on all bytes but the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from popef._tools.arrays import Array
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.models import BY_DTYPE, BY_NUMBER, TYPES, ServingError, refuse

_MORE = 0x80
_BELOW = _MORE - 1
_PART = np.uint8(_BELOW)
_BITS = 7
_MAX_BYTES = 10
"""Maximum length of a number of 64 bits."""
_FEW_PARTS = 4
"""Maximum number of bytes of a number that has at most 32 bits."""
_AT_ONCE = 1 << 16
"""Number of values converted at a time; the intermediate data of each takes many times its size."""
_FEW_NUMBERS, _FEW_BYTES = 64, 256
"""Sizes up to which numpy takes longer to start than converting the numbers one by one."""
_64_BITS = 2**64 - 1
_NOT_WHOLE, _TOO_LONG = "the last number is incomplete", "a number is longer than ten bytes"


def read_varints(packed: bytes) -> npt.NDArray[np.uint64]:
    """Return the numbers; negative ones are their two's complement in 64 bits. Raises ValueError if
    the bytes are not whole numbers of at most ten bytes each."""
    octets = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # all bytes below 128: each is a number
        return octets.astype(np.uint64)
    if len(packed) <= _FEW_BYTES:
        return _read_few(packed)
    last = np.flatnonzero(octets < _MORE)
    if not last.size or last[-1] != octets.size - 1:
        raise ValueError(_NOT_WHOLE)
    numbers = np.empty(last.size, np.uint64)
    start = 0
    for place in range(0, last.size, _AT_ONCE):
        ends = last[place : place + _AT_ONCE] + 1
        numbers[place : place + _AT_ONCE] = _read_some(octets[start : ends[-1]], ends - start)
        start = ends[-1]
    return numbers


def _read_few(packed: bytes) -> npt.NDArray[np.uint64]:
    numbers, number, shift = [], 0, 0
    for octet in packed:
        if shift == _BITS * _MAX_BYTES:
            raise ValueError(_TOO_LONG)
        number |= (octet & _BELOW) << shift
        shift += _BITS
        if octet < _MORE:
            numbers.append(number & _64_BITS)
            number = shift = 0
    if shift:
        raise ValueError(_NOT_WHOLE)
    return np.array(numbers, np.uint64)


def _choose_unsigned(longest: int) -> type[np.uint32 | np.uint64]:
    """Return the type for numbers of at most `longest` bytes. 32 bits take half the time."""
    return np.uint32 if longest <= _FEW_PARTS else np.uint64


def _read_some(octets: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return the numbers that end at `ends`."""
    first = np.concatenate(([0], ends[:-1]))
    lengths = ends - first
    longest = int(lengths.max())
    if longest > _MAX_BYTES:
        raise ValueError(_TOO_LONG)
    unsigned = _choose_unsigned(longest)
    numbers: npt.NDArray[Any] = (octets[first] & _PART).astype(unsigned)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        part = (octets[first[longer] + place] & _PART).astype(unsigned)
        numbers[longer] |= part << unsigned(_BITS * place)
    return numbers


def write_varints(values: Array) -> bytes:
    """Return whole numbers, packed; negative ones take ten bytes."""
    if values.size <= _FEW_NUMBERS:
        return _write_few(values.ravel().tolist())
    if values.min() >= 0 and values.max() < _MORE:
        return values.astype(np.uint8).tobytes()
    flat = values.ravel()
    numbers = (
        flat.astype(np.int64).view(np.uint64)
        if values.dtype.kind == "i"
        else flat.astype(np.uint64)
    )
    return b"".join(
        _write_some(numbers[place : place + _AT_ONCE]) for place in range(0, numbers.size, _AT_ONCE)
    )


def _write_some(numbers: npt.NDArray[np.uint64]) -> bytes:
    longest = max(1, -(-int(numbers.max()).bit_length() // _BITS))
    values: npt.NDArray[Any] = numbers.astype(_choose_unsigned(longest))
    lengths = np.ones(values.size, np.intp)
    for place in range(1, longest):
        lengths += values >= 1 << (_BITS * place)
    ends = np.cumsum(lengths)
    first = ends - lengths
    octets = np.empty(ends[-1], np.uint8)
    octets[first] = values.astype(np.uint8) | _MORE
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        part = values[longer] >> values.dtype.type(_BITS * place)
        octets[first[longer] + place] = part.astype(np.uint8) | _MORE
    octets[ends - 1] &= _PART
    return octets.tobytes()


def _write_few(numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for number in numbers:
        rest = number & _64_BITS
        while rest >= _MORE:
            packed.append(rest & _BELOW | _MORE)
            rest >>= _BITS
        packed.append(rest)
    return bytes(packed)


MAX_REPEATED_BYTES = 64 << 20
"""Maximum size of a tensor that is longer than its list of values. A request of a few bytes must
not fill the memory."""
MAX_AXES = 32
"""Maximum number of axes, which is numpy's limit; TensorFlow's is 254."""
MAX_PLACES = 1 << 48
"""Maximum number of elements of a shape, not counting axes of size 0. numpy rejects a size that
does not fit into 63 bits, empty or not."""
_LISTS = {
    "DT_FLOAT": "float_val",
    "DT_DOUBLE": "double_val",
    "DT_INT32": "int_val",
    "DT_INT16": "int_val",
    "DT_INT8": "int_val",
    "DT_UINT8": "int_val",
    "DT_UINT16": "int_val",
    "DT_INT64": "int64_val",
    "DT_BOOL": "bool_val",
    "DT_HALF": "half_val",
    "DT_UINT32": "uint32_val",
    "DT_UINT64": "uint64_val",
}
"""Field that holds the values of each type."""
_FIELD_OF_DTYPE = {
    data_type.dtype: _LISTS[data_type.name] for data_type in TYPES if data_type.name in _LISTS
}
_FIXED = ("float_val", "double_val")


def read_dtype(name: str, tensor: messages.Tensor) -> np.dtype[Any]:
    """Return the type of an input. Raises ServingError for a type that no model takes."""
    data_type = BY_NUMBER.get(tensor.dtype)
    if data_type is None:
        supported = ", ".join(f"{data_type.name} = {data_type.number}" for data_type in TYPES)
        raise _refuse(name, f"expected a dtype of {supported}; found number {tensor.dtype}")
    return data_type.dtype


def read_shape(name: str, tensor: messages.Tensor) -> tuple[int, ...]:
    """Return the shape of an input. Raises ServingError for an incomplete shape."""
    shape = tensor.tensor_shape
    if shape.unknown_rank:
        raise _refuse(name, "expected a shape, found unknown_rank")
    if len(shape.dim) > MAX_AXES:
        raise _refuse(name, f"expected at most {MAX_AXES} axes, found {len(shape.dim)}")
    sizes = [dim.size for dim in shape.dim]
    places = 1
    for size in sizes:
        if size < 0:
            raise _refuse(name, f"expected sizes of 0 or more in its shape, found {sizes}")
        places *= size or 1
    if places > MAX_PLACES:
        raise _refuse(name, f"expected a shape of at most 2**48 elements, found {sizes}")
    return tuple(sizes)


def read_values(
    name: str, tensor: messages.Tensor, dtype: np.dtype[Any], shape: Sequence[int]
) -> Array:
    """Return the array of an input whose `shape` the model takes.

    It may be read-only, and may hold one value for all elements. Raises ServingError if the values
    do not fill the shape.
    """
    count = math.prod(shape)
    if tensor.tensor_content:
        return _read_content(name, tensor.tensor_content, dtype, count).reshape(shape)
    values = _read_strings(tensor) if dtype.hasobject else _read_list(name, tensor, dtype, count)
    if values.size > count:
        raise _refuse(
            name, f"expected at most {count} values for shape {list(shape)}, found {values.size}"
        )
    if values.size < count:
        return _repeat(name, values, dtype, count, shape)
    return values.reshape(shape)


def write_tensor(tensor: messages.Tensor, array: Array, *, as_content: bool) -> None:
    """Fill in a tensor of a response, as typed values or as content. Strings are never content."""
    described = BY_DTYPE[array.dtype]
    tensor.dtype = described.number
    dims = tensor.tensor_shape.dim
    for size in array.shape:
        dims.add(size=size)
    if array.dtype.hasobject:
        tensor.string_val.extend(array.ravel().tolist())
    elif as_content:
        tensor.tensor_content = array.tobytes()
    elif array.size:
        getattr(tensor, _FIELD_OF_DTYPE[array.dtype]).append(_pack(array))


def _pack(array: Array) -> bytes:
    if array.dtype.kind == "f" and array.dtype.itemsize > np.dtype(np.float16).itemsize:
        return array.tobytes()
    return write_varints(array.view(np.uint16) if array.dtype == np.float16 else array)


def _read_content(name: str, content: bytes, dtype: np.dtype[Any], count: int) -> Array:
    if dtype.hasobject:
        return _split_strings(name, content, count)
    if len(content) != count * dtype.itemsize:
        raise _refuse(
            name,
            f"expected {count * dtype.itemsize} bytes of tensor_content ({count} of {dtype.name}), "
            f"found {len(content)}",
        )
    array = np.frombuffer(content, dtype)
    # Only one bit of a boolean counts; numpy would return other bits of its byte unchanged.
    return array.view(np.uint8) != 0 if dtype == np.bool_ else array


def _split_strings(name: str, content: bytes, count: int) -> Array:
    """Return the strings in `content`, which has the lengths of all strings before the strings."""
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) < 128)  # noqa: PLR2004  a length's last byte
    try:
        if not 0 < count <= ends.size:
            raise ValueError
        start = int(ends[count - 1]) + 1
        lengths = [int(length) for length in read_varints(content[:start])]
        if start + sum(lengths) != len(content):
            raise ValueError
    except ValueError:
        raise _refuse(
            name, f"expected the lengths of {count} strings, then the strings, in tensor_content"
        ) from None
    strings = np.empty(count, np.object_)
    for index, length in enumerate(lengths):
        strings[index] = content[start : start + length]
        start += length
    return strings


def _read_strings(tensor: messages.Tensor) -> Array:
    strings = np.empty(len(tensor.string_val), np.object_)
    strings[:] = list(tensor.string_val)
    return strings


def _read_list(name: str, tensor: messages.Tensor, dtype: np.dtype[Any], count: int) -> Array:
    field = _FIELD_OF_DTYPE[dtype]
    chunks = getattr(tensor, field)
    packed = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    try:
        if field in _FIXED:
            values: Array = np.frombuffer(packed, dtype)
        else:
            values = _narrow(read_varints(packed), dtype)
        return values if values.size >= count else _read_unpacked(tensor, field, dtype)
    except (ValueError, DecodeError) as error:
        raise _refuse(
            name, f"expected packed values in {field}, found {len(packed)} other bytes: {error}"
        ) from None


def _read_unpacked(tensor: messages.Tensor, field: str, dtype: np.dtype[Any]) -> Array:
    """Return all values of a list, including those that are not packed, which Tensor does not
    know."""
    values = getattr(messages.Lists.FromString(tensor.SerializeToString()), field)
    if field in _FIXED:
        return np.array(values, dtype)
    return _narrow(np.array(values, np.uint64 if dtype == np.uint64 else np.int64), dtype)


def _narrow(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return the low bits of 64-bit numbers, as TensorFlow does."""
    if dtype == np.bool_:
        return np.not_equal(numbers, 0)
    if dtype == np.float16:
        return numbers.astype(np.uint16).view(dtype)
    narrow: Array = numbers.astype(dtype)
    return narrow


def _repeat(
    name: str, values: Array, dtype: np.dtype[Any], count: int, shape: Sequence[int]
) -> Array:
    """Repeat the last value for all elements beyond the list. An empty list gives zeros."""
    if count * dtype.itemsize > MAX_REPEATED_BYTES:
        raise _refuse(
            name,
            f"expected all {count} values of a tensor of more than {MAX_REPEATED_BYTES >> 20} MiB, "
            f"found {values.size}",
        )
    if not values.size:
        return np.broadcast_to(np.array(b"" if dtype.hasobject else 0, dtype), shape)
    if values.size == 1:
        return np.broadcast_to(values.reshape((1,) * len(shape)), shape)
    rest: Array = np.full(count - values.size, values[-1], dtype)
    repeated: Array = np.concatenate((values, rest))
    return repeated.reshape(tuple(shape))


def _refuse(name: str, what: str) -> ServingError:
    return refuse(f"input {name!r}: {what}")
