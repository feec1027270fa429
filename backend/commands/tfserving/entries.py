"""How many parts a request over gRPC has, counted before protobuf makes objects of them: a message of a few
megabytes can have millions, and making them stops all other threads of the process.

The bytes are walked as protobuf reads them, in order and as deep as a sound request has parts without end:
inputs, the dimensions of their shapes and the pieces of their values. What is broken is protobuf's to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from commands.tfserving.errors import Code, ServingError

MAX_PARTS = 4096
"""Limit of a request's inputs, output names, dimensions, pieces of packed values and unknown fields."""
MAX_VALUES = 1 << 20
"""Limit of a request's strings and unpacked numbers."""
_STRINGS = 8
"""The field string_val of a tensor."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MORE, _BITS = 0x80, 7
_MAX_SHIFT = 63
Layout = Mapping[int, "Layout"]
"""The fields of a message that hold messages, by number."""
_SHAPE: Layout = {}
_TENSOR: Layout = {2: _SHAPE}
_INPUT: Layout = {2: _TENSOR}
_SPEC: Layout = {}
REQUEST: Layout = {1: _SPEC, 2: _INPUT}
"""A PredictRequest; the other requests have only a part of it."""


class _BrokenError(Exception):
    """No message."""


class EntryCounter:
    """Counts the parts of one request of a kind that is called `kind` in errors."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._parts = self._values = 0

    def check(self, message: bytes) -> None:
        """Raise ServingError for more than MAX_PARTS parts or MAX_VALUES values."""
        try:
            self._walk(message, 0, len(message), REQUEST)
        except (_BrokenError, IndexError):
            return

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
                start += _FIXED_BYTES.get(wire, 0)  # a group is as its fields

    def _count(self, *, is_value: bool) -> None:
        if is_value:
            self._values += 1
        else:
            self._parts += 1
        if self._parts > MAX_PARTS:
            raise ServingError(
                Code.INVALID_ARGUMENT,
                f"{self._kind}: expected at most {MAX_PARTS} inputs, names of outputs, dimensions and pieces "
                "of values together, found more; send values packed, or as tensor_content",
            )
        if self._values > MAX_VALUES:
            raise ServingError(
                Code.INVALID_ARGUMENT,
                f"{self._kind}: expected at most {MAX_VALUES} strings and unpacked numbers, found more; send "
                "numbers packed or as tensor_content, and fewer rows in one request",
            )


def _read_varint(message: bytes, start: int) -> tuple[int, int]:
    """A number, and where it ends."""
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
