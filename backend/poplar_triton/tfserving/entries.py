"""Limits of the parts of a request over gRPC. They are counted before protobuf makes objects of
them, and a request with many strings and unpacked numbers is converted into one of few parts.

A message of a few megabytes can have millions of parts, and making the objects stops all other
threads of the process. The bytes are read like protobuf reads them, in order. The depth is that of
the fields with which a valid request can have many parts: inputs, the dimensions of their shapes
and the pieces of their values. protobuf rejects invalid messages later.

The conversion runs in another process, where it blocks no thread of the server. Its result is read
as quickly as a request whose client has packed it: numbers as one packed list, strings as
tensor_content.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from google.protobuf.message import DecodeError

from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.models import BY_NUMBER, refuse
from poplar_triton.tfserving.wire import write_varints

MAX_PARTS = 4096
"""Maximum number of a request's inputs, output names, dimensions, pieces of packed values and
unknown fields."""
MAX_VALUES = 1 << 20
"""Maximum number of a request's strings and unpacked numbers."""
MANY_VALUES = 1 << 14
"""Number of strings and unpacked numbers that take long to read; counting so many takes some 20
ms."""
_STRINGS = 8
"""Number of the field string_val of a tensor."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf. 3 and 4 begin and end a group, whose fields are counted like others."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MORE, _BITS = 0x80, 7
_MAX_SHIFT = 63
"""Shift of the tenth byte of a varint, its last."""
Layout = Mapping[int, "Layout"]
"""Fields of a message that hold messages, by number."""
_SHAPE: Layout = {}
_TENSOR: Layout = {2: _SHAPE}
_INPUT: Layout = {2: _TENSOR}
_SPEC: Layout = {}
REQUEST: Layout = {1: _SPEC, 2: _INPUT}
"""Layout of a PredictRequest; the other requests have only a part of it."""


class _BrokenError(Exception):
    """Error of bytes that are not a valid message."""


class _EnoughError(Exception):
    """Signal that the count has reached its limit."""


class EntryCounter:
    """Counts the parts of one request, up to `enough` values. `kind` is the name of its kind in
    errors."""

    def __init__(self, kind: str, enough: int = MAX_VALUES + 1) -> None:
        self._kind = kind
        self._enough = enough
        self._parts = self._values = 0

    def check(self, message: bytes) -> bool:
        """Raise ServingError for more than MAX_PARTS parts or MAX_VALUES values; return whether all
        were counted."""
        if len(message) <= MAX_PARTS:
            return True  # each takes a byte
        try:
            self._walk(message, 0, len(message), REQUEST)
        except _EnoughError:
            return False
        except (_BrokenError, IndexError):
            pass
        return True

    def _walk(self, message: bytes, start: int, end: int, layout: Layout) -> None:
        while start < end:
            tag, start = _read_varint(message, start)
            number, wire = tag >> 3, tag & 7
            self._count(is_value=layout is _TENSOR and (wire != _BYTES or number == _STRINGS))
            if wire == _BYTES:
                size, start = _read_varint(message, start)
                if start + size > end:
                    raise _BrokenError
                if number in layout:
                    self._walk(message, start, start + size, layout[number])
                start += size
            elif wire == _VARINT:
                start = _read_varint(message, start)[1]
            else:
                start += _FIXED_BYTES.get(wire, 0)  # a group counts as its fields

    def _count(self, *, is_value: bool) -> None:
        if is_value:
            self._values += 1
        else:
            self._parts += 1
        if self._parts > MAX_PARTS:
            raise refuse(
                f"{self._kind}: expected at most {MAX_PARTS} inputs, names of outputs, dimensions "
                "and pieces of values together, found more; send values packed, or as "
                "tensor_content"
            )
        if self._values > MAX_VALUES:
            raise refuse(
                f"{self._kind}: expected at most {MAX_VALUES} strings and unpacked numbers, found "
                "more; send numbers packed or as tensor_content, and fewer rows in one request"
            )
        if self._values >= self._enough:
            raise _EnoughError


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """Return a number and the index of its end."""
    octet = message[start]
    if octet < _MORE:
        return octet, start + 1
    number = shift = 0
    while octet >= _MORE:
        if shift > _MAX_SHIFT:
            raise _BrokenError
        number |= (octet & (_MORE - 1)) << shift
        shift += _BITS
        start += 1
        octet = message[start]
    return number | octet << shift, start + 1


KIND = messages.PredictRequest.DESCRIPTOR.name


def compact(message: bytes) -> bytes:
    """Return a PredictRequest with the meaning of `message`, or `message` itself if it is invalid.
    Raises ServingError for a request of too many parts."""
    EntryCounter(KIND).check(message)
    try:
        request = messages.PredictRequest.FromString(message)
        for tensor in request.inputs.values():
            _pack_numbers(tensor)
            _pack_strings(tensor)
    except DecodeError:
        return message  # the later parser rejects it
    compacted: bytes = request.SerializeToString()
    return compacted


def _pack_numbers(tensor: messages.Tensor) -> None:
    """Pack the numbers: the message Lists reads numbers packed and unpacked, writes them packed,
    and keeps unknown fields."""
    lists = messages.Lists.FromString(tensor.SerializeToString())
    tensor.CopyFrom(messages.Tensor.FromString(lists.SerializeToString()))


def _pack_strings(tensor: messages.Tensor) -> None:
    """Pack the strings into content, which has all strings of a tensor. A list with fewer or too
    many strings is kept."""
    data_type, shape = BY_NUMBER.get(tensor.dtype), tensor.tensor_shape
    if (
        data_type is None
        or not data_type.dtype.hasobject
        or tensor.tensor_content
        or shape.unknown_rank
    ):
        return
    strings = list(tensor.string_val)
    sizes = [dim.size for dim in shape.dim]
    if strings and min(sizes, default=1) > 0 and math.prod(sizes) == len(strings):
        lengths = write_varints(np.array([len(string) for string in strings], np.int64))
        tensor.tensor_content = b"".join([lengths, *strings])
        tensor.ClearField("string_val")
